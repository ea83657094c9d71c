"""Workers for tests: the completion of commits is held back until somebody waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from shardstore.jobs import Done, Flag, Job
from shardstore.workers import InlineWorkers


class HeldWorkers(InlineWorkers):
    """One thread, so that runs repeat exactly, and commits in flight all the same."""

    def __init__(self) -> None:
        self._held: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()

    def complete(self, call: Callable[..., Any], *args: Any) -> Job[Any]:
        self._held.append((call, args))
        return Done()

    @property
    def held(self) -> int:
        return len(self._held)

    def run(self, count: int | None = None) -> None:
        """The oldest calls, all of them by default."""
        while self._held and count != 0:
            call, args = self._held.popleft()
            count = None if count is None else count - 1
            call(*args)

    def wait(self, flag: Flag) -> None:
        while not flag.is_set():
            assert self._held, "nothing that was submitted will set this flag"
            self.run(1)

    def close(self) -> None:
        self.run()
