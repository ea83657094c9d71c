"""`shardstore clone`: a copy of a store, from which both go on."""

from __future__ import annotations

from functools import partial

import click

from shardstore.cli.common import command, json_option, parse_ref, path_argument, progress
from shardstore.cli.output import echo_json, size_text
from shardstore.refs import Ref
from shardstore.store import Store


@command(
    "clone",
    example="shardstore clone run run-b\nshardstore clone run run-best --ref best --json",
)
@path_argument
@click.argument("dest", type=click.Path())
@click.option("--ref", type=parse_ref, metavar="REF", help="Take only this commit along.")
@json_option
def clone(path: str, dest: str, ref: Ref | None, as_json: bool) -> None:
    """Copy the store at PATH into DEST, a new or empty directory.

    The copy is of one moment, every byte is verified, and a writer may go on meanwhile. Snapshots,
    branches and the whole history come along. What is cut off leaves no store in DEST.
    """
    with Store.open(path) as store:
        made = store.clone(dest, ref=ref, progress=partial(progress, "objects"))
        step = made.position.step
    if as_json:
        told = {"path": made.path, "objects": made.objects, "bytes": made.bytes, "step": step}
        echo_json(told)
    else:
        where = "an empty store" if step is None else f"step {step}"
        click.echo(
            f"{made.path}: {where}, {made.objects} objects ({size_text(made.bytes)}) and the log"
        )
