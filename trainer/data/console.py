"""What the commands print: results, warnings, progress.

Results go to standard output, warnings and progress to standard error, progress to a terminal
only.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click

from trainer.data.manifest import Progress, no_progress


@contextlib.contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yields a callback that draws one bar per kind of work, or tells nobody."""
    if not sys.stderr.isatty():
        yield no_progress
        return
    # rich costs start-up time, so it is imported only where something is drawn.
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show


def warn(warnings: Iterable[str]) -> None:
    """One line each."""
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def show_result(result: dict[str, Any], as_json: bool) -> None:
    """One JSON object on one line, or an indented table."""
    if as_json:
        click.echo(json.dumps(result))
    else:
        _show_table(result, "")


def _show_table(result: dict[str, Any], indent: str) -> None:
    for name, value in result.items():
        if isinstance(value, dict):
            click.echo(f"{indent}{name}")
            _show_table(value, indent + "  ")
        else:
            click.echo(f"{indent}{name:<18} {value}")
