"""Threads whose work is over end a moment later: until then they are still listed."""

from __future__ import annotations

import threading
import time

LONGEST_END_SECONDS = 30.0


def left_over(before: set[threading.Thread]) -> set[threading.Thread]:
    """Those that are there besides `before`, and stay."""
    until = time.monotonic() + LONGEST_END_SECONDS
    while (others := set(threading.enumerate()) - before) and time.monotonic() < until:
        time.sleep(0.001)
    return others
