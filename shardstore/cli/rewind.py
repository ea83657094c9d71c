"""`shardstore rewind`: moves the head to a kept commit."""

from __future__ import annotations

import click

from shardstore import Commit, Store
from shardstore.cli.common import command, consent, json_option, path_argument, yes_option
from shardstore.cli.output import echo_json
from shardstore.errors import RefNotFoundError
from shardstore.refs import Ref


@command("rewind", example="shardstore rewind run step:12\nshardstore rewind run best --yes")
@path_argument
@click.argument("ref", type=Ref.parse, metavar="REF")
@yes_option
@json_option
def rewind(path: str, ref: Ref, yes: bool, as_json: bool) -> None:
    """Move the head of the store at PATH to commit REF.

    Nothing is copied and no history is lost; 'shardstore undo' goes back.
    """
    with Store.open(path) as store:
        head, target = store.head, store.commit_of(ref)
    if head is None:
        raise RefNotFoundError("the store has no commit yet")
    consent(f"move the head of {head.branch} from {_place(head)} to {_place(target)}", yes=yes)
    with Store.open(path, "r+") as store:
        left = store.head or head
        reached = store.rewind(Ref.seq(target.seq))
    if as_json:
        echo_json({"branch": head.branch, "head": _json(reached), "left": _json(left)})
    else:
        click.echo(f"{head.branch} is at {_place(reached)}; 'shardstore undo' goes back")


def _place(commit: Commit) -> str:
    return f"step {commit.step} (seq {commit.seq})"


def _json(commit: Commit) -> dict[str, int]:
    return {"step": commit.step, "seq": commit.seq}
