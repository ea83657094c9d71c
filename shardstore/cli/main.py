"""The command `shardstore`: lists its subcommands, imports the one that is called.

Contract: every way out of a command ends in one of the documented exit codes (`common`), an error
is one line on standard error, and a reader that goes away early (`| head`) is no error worth a
traceback. What the subcommands do stands in their own files.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from shardstore.cli.common import EXIT_INTERRUPTED, EXIT_UNAVAILABLE, EXIT_USAGE, exit_code
from shardstore.errors import ShardStoreError

COMMANDS = {
    "init": ("shardstore.cli.init", "Create an empty store."),
    "info": ("shardstore.cli.info", "Where a store stands and how large it is."),
    "status": ("shardstore.cli.status", "Healthy or not, who writes, and what to type next."),
    "log": ("shardstore.cli.log", "The history of commits, newest first."),
    "ls": ("shardstore.cli.ls", "The tensors of a commit."),
    "diff": ("shardstore.cli.diff", "What changed between two commits."),
    "cat": ("shardstore.cli.cat", "One tensor: a summary, or its bytes."),
    "fsck": ("shardstore.cli.fsck", "Look for damage; changes nothing."),
    "recover": ("shardstore.cli.recover", "Finish or undo what a crash left."),
    "snapshot": ("shardstore.cli.snapshot", "Name a commit and keep it, or delete a name."),
    "snapshots": ("shardstore.cli.snapshots", "The snapshots by name."),
    "branch": ("shardstore.cli.branch", "List, make or delete branches."),
    "switch": ("shardstore.cli.switch", "Make another branch the current one."),
    "clone": ("shardstore.cli.clone", "Copy a store into another directory."),
    "publish": ("shardstore.cli.publish", "Bring a durable store to where this one is."),
    "rewind": ("shardstore.cli.rewind", "Move the head to a kept commit."),
    "undo": ("shardstore.cli.undo", "Revert the newest rewind, switch or deletion."),
    "retention": ("shardstore.cli.retention", "Which commits stay kept without a name."),
    "gc": ("shardstore.cli.gc", "Give back the space of what is no longer kept."),
    "archive": ("shardstore.cli.archive", "Pack a snapshot, to take less room."),
    "convert": ("shardstore.cli.convert", "Write the head's objects in another format."),
    "import": ("shardstore.cli.import_", "Take files of other systems in, as commits."),
    "export": ("shardstore.cli.export", "Write a commit as files that other tools read."),
    "wal": ("shardstore.cli.wal", "The frames of the write-ahead log."),
    "bench": ("shardstore.cli.bench", "What a disk can do, and what a commit will cost there."),
}

OUTPUT = "standard output"
_fillers: list[io.FileIO] = []

# Short-lived and without cycles to speak of: collecting while a log is replayed only costs time.
_GC_THRESHOLDS = (200_000, 20, 20)


class Root(click.Group):
    """The group of all commands. `main` maps every outcome to an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        home = COMMANDS[cmd_name][0]
        command: click.Command = getattr(import_module(home), home.rpartition(".")[2])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table above, so that asking for help imports nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        code = self._outcome(words, prog_name or "shardstore", extra)
        if not standalone_mode:
            return code
        sys.exit(code)

    def _outcome(self, args: list[str], prog_name: str, extra: dict[str, Any]) -> int:
        try:
            # Not click's own way out, which ends a broken pipe with 1: here that says "corrected".
            with self.make_context(prog_name, args, **extra) as context:
                code = self.invoke(context)
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except click.exceptions.Exit as leaving:
            return leaving.exit_code
        except click.ClickException as error:
            return _fail(error.format_message(), EXIT_USAGE)
        except (click.Abort, KeyboardInterrupt):
            return _fail("interrupted", EXIT_INTERRUPTED)
        except BrokenPipeError:
            _give_output_up()
            return EXIT_UNAVAILABLE
        except ShardStoreError as error:
            return _fail(str(error), exit_code(error))
        except OSError as error:
            if error.filename == OUTPUT:
                _give_output_up()
            place = f" on {error.filename}" if error.filename else ""
            return _fail(f"the system refused{place}: {error.strerror or error}", EXIT_UNAVAILABLE)


def _give_output_up() -> None:
    with suppress(OSError):
        sys.stdout.close()  # else the interpreter tries once more, and complains


def _fail(message: str, code: int) -> int:
    with suppress(OSError):
        click.echo("error: " + " ".join(message.split()), err=True)
    return code


root = Root(
    name="shardstore",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Look at and look after stores of tensor shards.\n\n"
    "PATH is a store's directory. REF is head, NAME (a snapshot or branch), step:N or seq:N.",
    epilog="Exit codes: 0 done, 4 damage found, 8 could not run, 16 wrong usage; 'recover' also "
    "exits 1 where it corrected something.",
)


def _warn(message: Warning | str, *_place: Any, **_more: Any) -> None:
    """A warning as a user of the command wants it: one line, and not where in the code it arose."""
    with suppress(OSError):
        click.echo(f"warning: {message}", err=True)


def _fill_closed() -> None:
    """Standard files that the caller closed become empty ones: whoever closed the output wants
    none, and a file of the store must never get the number that messages are printed to."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            io.FileIO(number, closefd=False)
        except OSError:
            # Gets the lowest number that is free, which is this one; kept until the process ends.
            _fillers.append(io.FileIO(os.devnull, "r+"))
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


class _Output(io.FileIO):
    """Standard output, whose errors say that it is."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = OUTPUT
            raise


def _name_output() -> None:
    shown, number = sys.stdout, -1
    with suppress(OSError):  # it may stand for something in memory
        number = shown.fileno()
    if isinstance(shown, io.TextIOWrapper) and number == 1:
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(1, "w", closefd=False)),
            encoding=shown.encoding, errors=shown.errors, line_buffering=shown.line_buffering,
        )  # fmt: skip


def main() -> None:
    """The console script."""
    _fill_closed()
    _name_output()
    gc.set_threshold(*_GC_THRESHOLDS)
    warnings.showwarning = _warn
    root.main()
