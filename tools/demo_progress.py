"""Progress on standard error: bars at a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from tools.demo_children import OnStep

_LINES = 10


def say(text: str) -> None:
    """One line about what is going on."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def training(name: str, steps: int) -> Iterator[OnStep]:
    """Yields what to call with each acknowledged step and its loss."""
    if not sys.stderr.isatty():
        yield lambda step, loss: _line(name, step, steps, loss)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        *(TimeElapsedColumn(), TimeRemainingColumn()),
    )
    # What is said meanwhile is drawn above the bar: rich redirects standard error.
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(name, total=steps)

        def show(step: int, loss: float) -> None:
            bars.update(task, completed=step, description=f"{name}, loss {loss:.4f}")

        yield show


def _line(name: str, step: int, steps: int, loss: float) -> None:
    if step % max(1, steps // _LINES) == 0 or step == 1:
        say(f"{name}: step {step} of {steps}, loss {loss:.4f}")
