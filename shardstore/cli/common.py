"""What the commands share: exit codes, parameters, consent, progress.

Contract: 0 done, 4 damage (CorruptionError, ForeignFileError, findings), 8 could not run (the world
is in the way: UnavailableError, PoisonedError, the operating system, nobody reading), 16 wrong
usage. Commands that only read open the store for reading and change no byte. `output` prints.
"""

from __future__ import annotations

import math
import posixpath
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardstore.errors import (
    CorruptionError,
    ForeignFileError,
    NotAStoreError,
    ShardStoreError,
    StorageError,
    UsageError,
)
from shardstore.progress import Advance

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from shardstore.refs import Ref

EXIT_OK = 0
EXIT_CORRECTED = 1
EXIT_DIFFERENT = 1
EXIT_DAMAGE = 4
EXIT_UNAVAILABLE = 8
EXIT_USAGE = 16
EXIT_INTERRUPTED = 130

Function = TypeVar("Function", bound=Callable[..., Any])

_CODES = "Exit codes: 0 done, 4 damage, 8 could not run, 16 wrong usage."


def exit_code(error: ShardStoreError) -> int:
    """The exit code that an error of the store stands for."""
    if isinstance(error, CorruptionError | ForeignFileError):
        return EXIT_DAMAGE
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_UNAVAILABLE


def command(name: str, *, example: str, codes: str = _CODES) -> Callable[..., click.Command]:
    """A click command whose help ends with an example and the exit codes."""
    epilog = "\b\nExample:\n" + "\n".join(f"  {line}" for line in example.splitlines())
    return click.command(name, epilog=f"{epilog}\n\n{codes}", context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    })  # fmt: skip


def parse_ref(text: str) -> Ref:
    """A ref in the command line's spelling."""
    from shardstore.refs import Ref  # late: most commands, and all help, do without

    return Ref.parse(text)


def path_argument(function: Function) -> Function:
    return click.argument("path", type=click.Path())(function)


def ref_argument(function: Function) -> Function:
    return click.argument("ref", type=parse_ref, default="head", metavar="[REF]")(function)


class FiniteRange(click.FloatRange):
    """A range without NaN, which compares with nothing and so slips through, and infinities."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a number of this range", param, ctx)
        return found


def json_option(function: Function) -> Function:
    text = "Print JSON; NaN and infinities stand as strings."
    return click.option("--json", "as_json", is_flag=True, help=text)(function)


def terabytes_option(function: Function) -> Function:
    text = "Rated endurance of the disk, in units of 10^12 bytes written (its data sheet says)."
    return click.option(
        "--rated-tbw", "rated_bytes", type=FiniteRange(min=0, min_open=True),
        callback=_terabytes, metavar="TB", is_eager=True, help=text,
    )(function)  # fmt: skip


def _terabytes(_context: click.Context, _option: click.Parameter, value: float) -> float | None:
    from shardstore.wear import TERABYTE

    return None if value is None else value * TERABYTE


def years_option(function: Function) -> Function:
    text = "Say which durability makes the disk last that long; needs --rated-tbw."
    kind = FiniteRange(min=0, min_open=True)
    return click.option("--years", type=kind, callback=_years, help=text)(function)


def _years(context: click.Context, _option: click.Parameter, value: float) -> float | None:
    if value is not None and context.params.get("rated_bytes") is None:
        raise UsageError("--years needs --rated-tbw: what the disk is rated for")
    return value


def yes_option(function: Function) -> Function:
    return click.option("--yes", is_flag=True, help="Do it without asking.")(function)


def consent(what: str, *, yes: bool) -> None:
    """Ask at a terminal; elsewhere the flag has to say yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"this would {what}; give --yes to do it (nobody is here to be asked)")
    if not click.confirm(f"This will {what}. Go on?", err=True):
        raise UsageError("nothing was changed")


@contextmanager
def progress(label: str, total: int) -> Iterator[Advance]:
    """A bar of bytes with the time left, on standard error and at a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    # Asked for late: drawing is the only thing that needs it, and it costs a command's start.
    from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with _bar(label, total, *columns) as advance:
        yield advance


@contextmanager
def counting(label: str, total: int) -> Iterator[Advance]:
    """A bar of things done, on standard error and at a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.progress import MofNCompleteColumn, TimeRemainingColumn

    with _bar(label, total, MofNCompleteColumn(), TimeRemainingColumn()) as advance:
        yield advance


@contextmanager
def _bar(label: str, total: int, *columns: ProgressColumn) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    first = (TextColumn("{task.description}"), BarColumn())
    with Progress(*first, *columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def reading(path: str) -> Iterator[str]:
    """Reading a store below the public methods: gives the root as they spell it, and makes the
    system's refusals of the store's files the store's errors."""
    root = posixpath.normpath(path) if path else "."
    try:
        yield root
    except OSError as error:
        place = str(error.filename)
        if not place.startswith(root):
            raise
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise NotAStoreError(_what_is_missing(root, place)) from error
        raise StorageError(
            f"reading store {root} failed on {place}: {error.strerror}", errno=error.errno
        ) from error


def _what_is_missing(root: str, place: str) -> str:
    """The store itself, or a file of it."""
    from shardstore.fs.system import local_file_system

    fs = local_file_system()
    try:
        fs.list_directory(root)
    except FileNotFoundError:
        return f"{root} is not a store: there is nothing of that name"
    except OSError as error:
        return f"{root} is not a store: {error.strerror}"
    return f"{root} is not a whole store: {place} does not exist"
