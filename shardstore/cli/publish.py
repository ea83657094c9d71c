"""`shardstore publish`: brings a durable store to where the active one is."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from shardstore.cli.common import command, json_option, path_argument, progress
from shardstore.cli.output import echo_json, size_text
from shardstore.errors import LockedError, StorageError
from shardstore.opening import check_outside, place
from shardstore.publishing import Published
from shardstore.store import Store


@command(
    "publish",
    example="shardstore publish /dev/shm/run /data/run\nshardstore publish run archive --json",
)
@path_argument
@click.argument("dest", type=click.Path())
@json_option
def publish(path: str, dest: str, as_json: bool) -> None:
    """Copy what changed in the store at PATH since the last time to the durable store DEST.

    DEST is made where it is missing. It takes over the state, the names and the history as one
    transaction; its own retention says what it keeps besides. Refused where DEST went on by itself.
    A writer may be at work on PATH.
    """
    check_outside(place(dest, None)[1], itself=False)  # opening PATH writes already
    with _open(path) as store:
        done = store.publish(dest, progress=partial(progress, "objects"))
    if as_json:
        echo_json(_json(done))
    else:
        click.echo(_text(done))


def _open(path: str) -> Store:
    """For writing, to note the publication; for reading beside a writer, on a full disk or where
    nothing may be written, which does as well: what was published is found in the logs."""
    try:
        return Store.open(path, "r+")
    except (LockedError, StorageError):
        return Store.open(path)


def _json(done: Published) -> dict[str, Any]:
    return {
        "path": done.path,
        "created": done.created,
        "step": done.step,
        "records": done.records,
        "objects": done.objects,
        "bytes": done.bytes,
        "seq": done.position.seq,
    }


def _text(done: Published) -> str:
    step = "no commit yet" if done.step is None else f"step {done.step}"
    if not done.created and not done.records:
        return f"{done.path} is at {step} already; nothing was written"
    made = "made, " if done.created else ""
    return (
        f"{done.path}: {made}{step}, {done.records} records of history, {done.objects} objects "
        f"({size_text(done.bytes)})"
    )
