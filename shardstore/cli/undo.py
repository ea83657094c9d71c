"""`shardstore undo`: reverts the newest rewind, switch or deletion that is not undone yet."""

from __future__ import annotations

import click

from shardstore.cli.common import (
    command,
    consent,
    json_option,
    path_argument,
    reading,
    yes_option,
)
from shardstore.cli.output import echo_json
from shardstore.errors import UsageError
from shardstore.format.manifest import UndoEntry
from shardstore.fs.posix import PosixFileSystem
from shardstore.recovery import read_store_file
from shardstore.store import Store
from shardstore.wal.reader import read_log
from shardstore.wal.state import State


@command("undo", example="shardstore undo run --yes")
@path_argument
@yes_option
@json_option
def undo(path: str, yes: bool, as_json: bool) -> None:
    """Revert the newest rewind, switch or deletion of the store at PATH; the last three can be
    reverted.

    What it leaves behind is kept too.
    """
    with reading(path) as root:
        uuid = read_store_file(PosixFileSystem(), root)
        state = read_log(PosixFileSystem(), root, uuid=uuid).state
    waiting = [entry for entry in state.undo if not entry.done]
    if not waiting:
        raise UsageError(
            "nothing to undo: none of the last three rewinds, switches and deletions is left"
        )
    consent(_describe(waiting[-1], state), yes=yes)
    with Store.open(path, "r+") as store:
        entry, head = store.undo(), store.head
    place = {"step": head.step, "seq": head.seq} if head else None
    if as_json:
        echo_json({"op": entry.op, "name": entry.name, "record": entry.seq, "head": place})
    elif entry.op == "rewind" and head:
        click.echo(f"{entry.name} is back at step {head.step} (seq {head.seq})")
    elif entry.op == "switch" and head:
        click.echo(
            f"{entry.name} is the current branch again, at step {head.step} (seq {head.seq})"
        )
    else:
        click.echo(f"{_deleted(entry)} is back")


def _describe(entry: UndoEntry, state: State) -> str:
    if entry.op == "rewind" and entry.commit is not None:
        commit = state.commits[entry.commit]
        return f"move the head of {entry.name} back to step {commit.step} (seq {commit.seq})"
    if entry.op == "switch":
        return f"switch from {state.current} back to {entry.name}"
    return f"bring back the deleted {_deleted(entry)}"


def _deleted(entry: UndoEntry) -> str:
    return f"{'snapshot' if entry.snapshot else 'branch'} {entry.name}"
