"""A trace of what a run is doing, for tests that kill it at a chosen moment.

One JSON line per event goes to a pipe before the event happens. With an acknowledgement pipe the
run waits after each line until a byte comes back, so that a parent can stop it exactly there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any


class PipeTrace:
    """Writes events to `events`, and waits on `answers` if given. Both are file descriptors."""

    def __init__(self, events: int, answers: int | None) -> None:
        self._events = events
        self._answers = answers

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        line = json.dumps({"event": event, **fields}) + "\n"
        os.write(self._events, line.encode("ascii"))
        if self._answers is not None and not os.read(self._answers, 1):
            # The parent is gone: nobody will ever answer again.
            self._answers = None
