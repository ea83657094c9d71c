"""`shardstore snapshot`: names a commit and keeps it, or deletes a name."""

from __future__ import annotations

import click

from shardstore.cli.common import command, consent, json_option, path_argument, yes_option
from shardstore.cli.output import echo_json
from shardstore.errors import RefNotFoundError, UsageError
from shardstore.refs import Ref
from shardstore.store import Store


@command(
    "snapshot",
    example="shardstore snapshot run best\nshardstore snapshot run --at step:12\n"
    "shardstore snapshot run --delete best --yes",
)
@path_argument
@click.argument("name", required=False)
@click.option("--at", type=Ref.parse, metavar="REF", help="The commit; by default the head.")
@click.option("--delete", "deleted", metavar="NAME", help="Delete a snapshot instead.")
@yes_option
@json_option
def snapshot(
    path: str, name: str | None, at: Ref | None, deleted: str | None, yes: bool, as_json: bool
) -> None:
    """Make a snapshot of the store at PATH: commit REF gets NAME (or one after its step).

    No data is copied; what a snapshot names is kept until it is deleted.
    """
    if deleted is None:
        _create(path, name, at or Ref.head, as_json)
    elif name is not None or at is not None:
        raise UsageError("--delete takes the name itself; NAME and --at belong to a new snapshot")
    else:
        _delete(path, deleted, yes, as_json)


def _create(path: str, name: str | None, at: Ref, as_json: bool) -> None:
    with Store.open(path, "r+") as store:
        made = store.snapshot(name, at)
    if as_json:
        echo_json({"name": made.name, "seq": made.seq, "step": made.step, "time": made.time})
    else:
        click.echo(f"snapshot {made.name}: step {made.step} (seq {made.seq})")


def _delete(path: str, name: str, yes: bool, as_json: bool) -> None:
    with Store.open(path) as store:
        found = next((s for s in store.snapshots if s.name == name), None)
    if found is None:
        raise RefNotFoundError(f"no snapshot is called {name!r}; 'shardstore snapshots' lists them")
    what = f"delete snapshot {name} of step {found.step} (seq {found.seq})"
    consent(what, yes=yes)
    with Store.open(path, "r+") as store:
        store.delete(name)
    if as_json:
        echo_json({"deleted": name, "seq": found.seq, "step": found.step})
    else:
        click.echo(f"deleted snapshot {name}; 'shardstore undo' brings it back for now")
