"""`shardstore undo`: reverts the newest rewind, switch or deletion that is not undone yet."""

from __future__ import annotations

import click

from shardstore import Store, UndoableChange
from shardstore.cli.common import command, consent, json_option, path_argument, yes_option
from shardstore.cli.output import echo_json
from shardstore.errors import UsageError


@command("undo", example="shardstore undo run --yes")
@path_argument
@yes_option
@json_option
def undo(path: str, yes: bool, as_json: bool) -> None:
    """Revert the newest rewind, switch or deletion of the store at PATH; the last three can be
    reverted.

    What it leaves behind is kept too.
    """
    with Store.open(path) as store:
        waiting, current = store.undoable, store.current_branch
    if not waiting:
        raise UsageError(
            "nothing to undo: none of the last three rewinds, switches and deletions is left"
        )
    consent(_describe(waiting[0], current), yes=yes)
    with Store.open(path, "r+") as store:
        change, head = store.undo(), store.head
    place = {"step": head.step, "seq": head.seq} if head else None
    if as_json:
        echo_json({"op": change.op, "name": change.name, "record": change.record, "head": place})
    elif change.op == "rewind":
        click.echo(f"{change.name} is back at {_place(change)}")
    elif change.op == "switch":
        click.echo(f"{change.name} is the current branch again, at {_place(change)}")
    else:
        click.echo(f"{change.kind} {change.name} is back")


def _describe(change: UndoableChange, current: str) -> str:
    if change.op == "rewind":
        return f"move the head of {change.name} back to {_place(change)}"
    if change.op == "switch":
        return f"switch from {current} back to {change.name}"
    return f"bring back the deleted {change.kind} {change.name}"


def _place(change: UndoableChange) -> str:
    return "its beginning" if change.seq is None else f"step {change.step} (seq {change.seq})"
