"""`shardstore gc`: gives the disk space of what is no longer kept back."""

from __future__ import annotations

import click

from shardstore.cli.common import command, consent, json_option, path_argument, yes_option
from shardstore.cli.output import echo_json, size_text
from shardstore.collecting import Collected
from shardstore.store import Store


@command("gc", example="shardstore gc run --dry-run\nshardstore gc run --yes")
@path_argument
@click.option("--all", "everything", is_flag=True, help="Leave no room for the next commit either.")
@click.option("--dry-run", is_flag=True, help="Only tell what would go; changes nothing.")
@yes_option
@json_option
def gc(path: str, everything: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Un-keep commits that the retention of the store at PATH no longer asks for, and unlink the
    object files that nothing needs.

    Files that one more commit of all parts writes into stay, unless --all is given. Snapshots,
    branches and what 'shardstore undo' may bring back are never touched.
    """
    with Store.open(path) as store:
        done = store.gc(everything=everything, dry_run=True)
    if not dry_run and (done.unkept or done.files):
        consent(f"give up {_text(done)}", yes=yes)
        with Store.open(path, "r+") as store:
            done = store.gc(everything=everything)
    if as_json:
        values = {"unkept": list(done.unkept), "files": done.files, "bytes": done.bytes}
        echo_json({**values, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"would give up {_text(done)}; nothing was changed")
    else:
        click.echo(f"gave up {_text(done)}")


def _text(done: Collected) -> str:
    commits = f"{len(done.unkept)} commits"
    if done.unkept:
        commits += f" (seq {', '.join(map(str, done.unkept))})"
    return f"{commits} and {done.files} object files, {size_text(done.bytes)}"
