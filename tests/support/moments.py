"""The moments at which Python may find a signal: when a function begins, after each call and at
each turn of a loop, in the store's own code and in what the standard library has for threads.
"""

from __future__ import annotations

import dis
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import shardstore

PACKAGE = str(Path(shardstore.__file__).parent)
LIBRARY = str(Path(threading.__file__).parent)
TRACED = (
    PACKAGE,
    *(f"{LIBRARY}/{name}" for name in ("threading", "queue", "concurrent", "contextlib")),
)
PRETENDED = tuple(f"{PACKAGE}/fs/{name}" for name in ("memory", "faulty", "crash_states"))
"""What stands for the operating system, whose calls are whole."""


class Moments:
    """Counts the moments at which the thread that made this could be interrupted, and raises at
    the n-th."""

    def __init__(self, nth: int = 0) -> None:
        self.count = 0
        self.nth = nth
        self.place = ""

    def __enter__(self) -> Moments:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, _arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(TRACED) or _is_pretended(frame):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        self._moment(frame)
        code, before = frame.f_code.co_code, ""

        def within(frame: FrameType, event: str, _arg: object) -> Any:
            nonlocal before
            if event == "opcode":
                now = dis.opname[code[frame.f_lasti]]
                if before.startswith(("CALL", "JUMP_BACKWARD")) and now != "PUSH_EXC_INFO":
                    before = now
                    self._moment(frame)
                before = now
            return within

        return within

    def _moment(self, frame: FrameType) -> None:
        self.count += 1
        if self.count == self.nth:
            self.place = f"moment {self.nth}: {frame.f_code.co_filename}:{frame.f_lineno}"
            sys.settrace(None)
            raise KeyboardInterrupt


def _is_pretended(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(PRETENDED):
            return True
        frame = frame.f_back
    return False
