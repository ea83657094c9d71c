"""`shardstore branch`: makes a branch, deletes one, or lists them."""

from __future__ import annotations

import click

from shardstore.cli.common import (
    command,
    consent,
    json_option,
    parse_ref,
    path_argument,
    yes_option,
)
from shardstore.cli.output import echo_json, table
from shardstore.errors import RefNotFoundError, UsageError
from shardstore.refs import Ref
from shardstore.store import Store
from shardstore.views import Branch


@command(
    "branch",
    example="shardstore branch run\nshardstore branch run trial --at step:12\n"
    "shardstore branch run --delete trial --yes",
)
@path_argument
@click.argument("name", required=False)
@click.option("--at", type=parse_ref, metavar="REF", help="Where it begins; by default the head.")
@click.option("--delete", "deleted", metavar="NAME", help="Delete a branch instead.")
@yes_option
@json_option
def branch(
    path: str, name: str | None, at: Ref | None, deleted: str | None, yes: bool, as_json: bool
) -> None:
    """List the branches of the store at PATH, or make the branch NAME beginning at commit REF.

    No data is copied. Commits go to the current branch, marked with *; 'shardstore switch' makes
    another the current one.
    """
    if deleted is not None:
        if name is not None or at is not None:
            raise UsageError("--delete takes the name itself; NAME and --at belong to a new branch")
        _delete(path, deleted, yes, as_json)
    elif name is not None:
        _create(path, name, at or Ref.head, as_json)
    elif at is not None:
        raise UsageError("--at says where a new branch begins; give its NAME too")
    else:
        _list(path, as_json)


def _list(path: str, as_json: bool) -> None:
    with Store.open(path) as store:
        found = store.branches
    if as_json:
        echo_json([_json(one) for one in found])
    else:
        rows = [
            ("*" if one.current else "", one.name, *("none" if v is None else v for v in place))
            for one in found
            for place in [(one.step, one.seq)]
        ]
        table(("", "name", "step", "seq"), rows)


def _create(path: str, name: str, at: Ref, as_json: bool) -> None:
    with Store.open(path, "r+") as store:
        made = store.branch(name, at)
    if as_json:
        echo_json(_json(made))
    else:
        click.echo(
            f"branch {made.name} begins at step {made.step} (seq {made.seq}); "
            f"'shardstore switch' goes there"
        )


def _delete(path: str, name: str, yes: bool, as_json: bool) -> None:
    with Store.open(path) as store:
        found = next((one for one in store.branches if one.name == name), None)
    if found is None:
        raise RefNotFoundError(f"no branch is called {name!r}; 'shardstore branch' lists them")
    if found.current:
        raise UsageError(
            f"{name!r} is the current branch and cannot be deleted; switch to another first"
        )
    consent(f"delete branch {name} at step {found.step} (seq {found.seq})", yes=yes)
    with Store.open(path, "r+") as store:
        store.delete(name)
    if as_json:
        echo_json({"deleted": name, "seq": found.seq, "step": found.step})
    else:
        click.echo(f"deleted branch {name}; 'shardstore undo' brings it back for now")


def _json(one: Branch) -> dict[str, object]:
    return {"name": one.name, "seq": one.seq, "step": one.step, "current": one.current}
