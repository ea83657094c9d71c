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
SEED_FILE = "seed"
MINUTES = 5.0
MINUTES_MIN = 0.05
MADE = {"work", "logs", "page.txt", "result.json", "batches"}


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
        "usage, 130 interrupted. Examples: tools/crashlab --minutes 5 --dir /mnt/data/crashlab; "
        "tools/crashlab --long --part kills --dir lab, and after it was stopped the same with "
        "--resume. "
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
        "--long": "the long profile of every part, or of those named by --part, by numbers and not "
        "by time: hours",
        "--resume": "with --long: go on with the batches that an earlier call has left in DIR",
        "--overwrite": "remove what an earlier call left in DIR",
        "--json": "print the result as JSON instead of the page",
    }
    for name, text in flags.items():
        parser.add_argument(name, action="store_true", help=text)
    return _checked(parser.parse_args(words))


def _checked(found: argparse.Namespace) -> argparse.Namespace:
    if found.long and found.minutes is not None:
        raise UsageError("--long has numbers and no time: leave out --minutes")
    if found.resume and not found.long:
        raise UsageError("--resume goes with --long: a timed run begins anew")
    if found.resume and found.seed is None:
        found.seed = _seed_of(found.dir)
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


def _seed_of(directory: Path) -> int | None:
    """Of the call that is gone on with."""
    try:
        return int((directory / "batches" / SEED_FILE).read_text())
    except (OSError, ValueError):
        return None


def make_directory(options: argparse.Namespace) -> None:
    """Make it, empty of what an earlier call made; what goes on from there stays."""
    directory: Path = options.dir
    make_empty(
        directory,
        "--dir",
        overwrite=options.overwrite or options.resume,
        made=MADE - {"batches"} if options.resume else MADE,
        below=("work", "logs"),
    )
    if options.long:
        (directory / "batches").mkdir(exist_ok=True)
        (directory / "batches" / SEED_FILE).write_text(f"{options.seed}\n")
