"""Progress on standard error: a bar at a terminal, plain lines anywhere else."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import rich.progress

    from tools.lab.result import PartResult

_LINE_SECONDS = 15.0


class Progress:
    """Of one part; use it in a `with` block."""

    def __init__(self, name: str, number: int, count: int, seconds: float) -> None:
        self._title = f"[{number}/{count}] {name}"
        self._seconds, self._began = seconds, time.monotonic()
        self._next = self._began + _LINE_SECONDS
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None

    def __enter__(self) -> Self:
        if not sys.stderr.isatty():
            about = "" if math.isinf(self._seconds) else f", about {self._seconds:.0f} s"
            _say(f"{self._title}{about}")
            return self
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        total = None if math.isinf(self._seconds) else self._seconds
        self._task = self._bar.add_task(self._title, total=total)
        self._bar.start()
        return self

    def show(self, done: int, goal: int) -> None:
        """So many trials are done, of so many where there is a goal."""
        now, of = time.monotonic(), f" of {goal:,}" if goal else ""
        text = f"{self._title}: {done:,}{of}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text, completed=now - self._began)
        elif now >= self._next:
            self._next = now + _LINE_SECONDS
            _say(text)

    def end(self, result: PartResult) -> None:
        """What it came to."""
        self._stop()
        out = result.outcome
        if not result.ran:
            _say(f"{self._title}: could not be run: {out.cannot or 'it tried nothing'}")
            return
        wrong = f"{len(out.wrong)} WRONG" if out.wrong else "nothing wrong"
        _say(f"{self._title}: {out.tried:,} {out.unit}, {wrong} ({result.seconds:.0f} s)")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
