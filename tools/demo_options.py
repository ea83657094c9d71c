"""The main job's command line and its work directory.

Contract: wrong usage raises `UsageError` before anything is touched; nothing is ever removed that
the job does not make itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tools.demo_result import STEPS_MIN
from tools.work_directory import UsageError, make_empty

STEPS = 200
LARGE = {"data": "the rows", "steady": "the run never stopped", "killed": "the run killed"}
MADE = {*LARGE, "logs", "page.txt", "result.json", "loss.png"}
EXIT_FAILED, EXIT_UNABLE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 8, 16, 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; --help explains")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options; a wrong one raises UsageError."""
    parser = _Parser(
        prog="tools/demo",
        description="Trains a small model on real text, kills it three times, recovers it, and "
        "compares it with a run that was never stopped.",
        epilog="Exit codes: 0 everything held, 1 something did not, 8 it could not be done, "
        "16 wrong usage, 130 interrupted.",
    )
    options = {
        "--corpus": ("stdlib", "DIR", "a directory of text instead of Python's own library"),
        "--steps": (STEPS, "N", f"steps of each run; default {STEPS}, at least {STEPS_MIN}"),
        "--work": (Path("demo-run"), "DIR", "where everything happens; default demo-run"),
    }
    for name, (default, shown, text) in options.items():
        parser.add_argument(name, type=type(default), default=default, metavar=shown, help=text)
    flags = {
        "--overwrite": "remove what an earlier job made in the work directory",
        "--keep": "keep data and runs (some 400 MB) also when everything held",
        "--json": "print the result as JSON instead of the page",
    }
    for name, text in flags.items():
        parser.add_argument(name, action="store_true", help=text)
    found = parser.parse_args(words)
    if found.steps < STEPS_MIN:
        raise UsageError(f"--steps must be at least {STEPS_MIN}, found {found.steps}")
    return found


def make_work_directory(work: Path, *, overwrite: bool) -> None:
    """Make it, empty of what an earlier job made."""
    make_empty(work, "--work", overwrite=overwrite, made=MADE, below=("logs",))
