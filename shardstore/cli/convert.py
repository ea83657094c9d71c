"""`shardstore convert`: the head's objects in another storage format."""

from __future__ import annotations

from typing import Any

import click

from shardstore.cli.common import (
    command,
    consent,
    json_option,
    path_argument,
    progress,
    yes_option,
)
from shardstore.cli.output import echo_json, size_text
from shardstore.conversion import Conversion, objects_to_convert
from shardstore.conversion import convert as convert_store
from shardstore.format.names import FORMATS
from shardstore.store import Store


@command(
    "convert",
    example="shardstore convert run --format safetensors\n"
    "shardstore convert run --format raw --yes --json",
)
@path_argument
@click.option(
    "--format", "storage_format", type=click.Choice(FORMATS), required=True,
    help="The storage format to write.",
)  # fmt: skip
@yes_option
@json_option
def convert(path: str, storage_format: str, yes: bool, as_json: bool) -> None:
    """Write the objects of the head of the store at PATH again, in another storage format.

    One commit at the head's step, with its metadata; the tensors stay the same, and so does their
    digest. The commit before it is kept like any other parent, so the disk must have room for
    both. What later commits write is up to who opens the store: by default raw. 'pt' needs PyTorch.
    """
    with Store.open(path) as store:
        rows = objects_to_convert(store, storage_format)
    size = sum(row.bytes for row in rows)
    if rows:
        consent(f"write {len(rows)} objects ({size_text(size)}) again as {storage_format}", yes=yes)
    with (
        Store.open(path, "r+", format=storage_format) as store,
        progress("objects", size) as advance,
    ):
        done = convert_store(store, advance)
    if as_json:
        echo_json(_json(done))
    else:
        click.echo(_text(done))


def _json(done: Conversion) -> dict[str, Any]:
    return {
        "format": done.storage_format,
        "seq": done.seq,
        "step": done.step,
        "state_digest": done.state_digest,
        "objects": len(done.after),
        "bytes_before": sum(row.bytes for row in done.before),
        "bytes_after": sum(row.bytes for row in done.after),
    }


def _text(done: Conversion) -> str:
    where = f"step {done.step} (seq {done.seq})"
    if not done.after:
        return f"{where} is {done.storage_format} already; nothing was written"
    before, after = (sum(row.bytes for row in rows) for rows in (done.before, done.after))
    return (
        f"{where}: {len(done.after)} objects are {done.storage_format} now, {size_text(after)} "
        f"instead of {size_text(before)}; state digest {done.state_digest} as before"
    )
