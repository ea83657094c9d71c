"""The laboratory's command line and its directory.

Contract: wrong usage raises `UsageError` before anything is touched; nothing is removed that the
laboratory does not make itself.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tools.lab.part import BY_NAME, PARTS
from tools.work_directory import UsageError, make_empty

EXIT_WRONG, EXIT_UNABLE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 8, 16, 130
MINUTES = 5.0
MINUTES_MIN = 0.05
MADE = {"work", "logs", "page.txt", "result.json"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; --help explains")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options; a wrong one raises UsageError."""
    parser = _Parser(
        prog="tools/crashlab",
        description="Tries to break the store on your own disk: damage, full disks, system calls "
        "that fail, power cuts, kills, crash states, any order of calls. Says what held and what "
        "could not be tried here, and why.",
        epilog="Exit codes: 0 nothing was wrong, 1 findings, 8 nothing could be tried, 16 wrong "
        "usage, 130 interrupted. Example: tools/crashlab --minutes 5 --dir /mnt/data/crashlab. "
        "As root it mounts small file systems below DIR too; without, that part is left out.",
    )
    parser.add_argument("--minutes", type=float, metavar="N",
                        help=f"time for all parts together; default {MINUTES:g}")  # fmt: skip
    parser.add_argument("--dir", type=Path, default=Path("crashlab-run"), metavar="DIR",
                        help="a directory on the disk to test; default crashlab-run")  # fmt: skip
    parser.add_argument("--part", action="append", default=[], metavar="NAME",
                        help=f"only this one, may be repeated: {', '.join(BY_NAME)}")  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="N",
                        help="repeats what is drawn; the day's number by default")  # fmt: skip
    parser.add_argument("--record", type=Path, metavar="FILE",
                        help="keep the result there, beside the last ones of other profiles "
                        "(benchmarks/results/crashlab.json)")  # fmt: skip
    flags = {
        "--long": "the long profile of every part, by numbers and not by time: hours",
        "--overwrite": "remove what an earlier call left in DIR",
        "--json": "print the result as JSON instead of the page",
    }
    for name, text in flags.items():
        parser.add_argument(name, action="store_true", help=text)
    return _checked(parser.parse_args(words))


def _checked(found: argparse.Namespace) -> argparse.Namespace:
    if found.long and found.minutes is not None:
        raise UsageError("--long has numbers and no time: leave out --minutes")
    if found.minutes is None:
        found.minutes = MINUTES
    if not found.minutes >= MINUTES_MIN:
        raise UsageError(f"--minutes must be at least {MINUTES_MIN}, found {found.minutes}")
    unknown = [name for name in found.part if name not in BY_NAME]
    if unknown:
        raise UsageError(f"no such part: {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    if found.seed is None:
        found.seed = int(time.time() // 86400)
    found.parts = [part for part in PARTS if not found.part or part.name in found.part]
    return found


def make_directory(directory: Path, *, overwrite: bool) -> None:
    """Make it, empty of what an earlier call made."""
    make_empty(directory, "--dir", overwrite=overwrite, made=MADE, below=("work", "logs"))
