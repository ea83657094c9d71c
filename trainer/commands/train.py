"""`trainer train`: train, or go on training, until `--max-steps`."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import click

from trainer import loop
from trainer.commands.options import make_settings, reported, settings_options
from trainer.config import TrainSettings
from trainer.trace import PipeTrace


@click.command()
@settings_options()
@click.option("--trace-fd", type=int, help="Write an event per line to this descriptor (tests).")
@click.option("--trace-answer-fd", type=int, help="Wait for a byte here after each event (tests).")
@reported
def train(trace_fd: int | None, trace_answer_fd: int | None, **values: Any) -> None:
    """Train until --max-steps. An empty run is initialised, any other goes on where it stands.

    \b
    Example: trainer train --run-dir run --preset nano --data-dir data/train \\
                 --val-data-dir data/val --validate-every 50 --max-steps 300
    Exit codes: 0 done, 4 damaged or changed data, 8 could not run, 16 usage, 130 interrupted.
    """
    settings = make_settings(values)
    trace = None if trace_fd is None else PipeTrace(trace_fd, trace_answer_fd)
    report = _Terminal(settings) if sys.stderr.isatty() else _Lines(settings)
    try:
        loop.train(settings, report, trace)
    finally:
        report.close()


class _Lines:
    """Plain lines: the first steps, every tenth of the run, and every validation."""

    def __init__(self, settings: TrainSettings) -> None:
        self._every = max(1, settings.max_steps // 10)

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        text = _describe(event, fields)
        if event == "step":
            step = int(fields["step"])
            if step > 3 and step % self._every:
                return
        if text:
            click.echo(text, err=event == "warning")

    def close(self) -> None:
        return


class _Terminal:
    """A progress bar; what is not a step is printed above it."""

    def __init__(self, settings: TrainSettings) -> None:
        # Drawing costs start-up time, so it is imported only where there is a terminal.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bars.add_task("starting", total=settings.max_steps)
        self._bars.start()

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        if event in ("step", "resumed"):
            text = "training" if event == "resumed" else f"loss {fields['train_loss']:.4f}"
            self._bars.update(self._task, completed=int(fields["step"]), description=text)
        else:
            self._bars.console.print(_describe(event, fields), highlight=False)

    def close(self) -> None:
        self._bars.stop()


def _describe(event: str, fields: Mapping[str, Any]) -> str:
    if event == "warning":
        return f"warning: {fields['text']}"
    if event == "resumed":
        return f"from step {fields['step']} to {fields['max_steps']}"
    if event == "wear":
        return f"disk: {fields['text']}"
    if event == "validated":
        perplexity = math.exp(min(fields["val_loss"], 700.0))
        return (
            f"step {fields['step']}: held-out loss {fields['val_loss']:.4f} "
            f"(perplexity {perplexity:,.1f})"
        )
    if event == "snapshot":
        return f"snapshot {fields['name']}"
    return (
        f"step {fields['step']}: loss {fields['train_loss']:.4f}, "
        f"{fields['tokens_per_sec']:,.0f} tokens/s"
    )
