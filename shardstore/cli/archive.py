"""`shardstore archive`: packs a snapshot."""

from __future__ import annotations

from dataclasses import asdict

import click

from shardstore.archive import LEVEL, LEVELS, Archived
from shardstore.cli.common import command, json_option, path_argument, progress
from shardstore.cli.output import echo_json, size_text
from shardstore.errors import RefNotFoundError
from shardstore.store import Store


@command(
    "archive",
    example="shardstore archive run step_00001000\n"
    "shardstore archive run best --delta-against step_00001000 --json",
)
@path_argument
@click.argument("name")
@click.option(
    "--delta-against", "against", metavar="NAME",
    help="Try the objects of this snapshot as bases; by default those of the nearest archived one.",
)  # fmt: skip
@click.option("--alone", is_flag=True, help="Pack every object by itself.")
@click.option(
    "--level", type=click.IntRange(LEVELS[0], LEVELS[-1]), default=LEVEL, show_default=True,
    help="zstd's level: higher ones take longer and gain little.",
)  # fmt: skip
@json_option
def archive(
    path: str, name: str, against: str | None, alone: bool, level: int, as_json: bool
) -> None:
    """Pack the snapshot NAME of the store at PATH, which takes less room then.

    It stays what it was, bit for bit: it can be loaded, pinned, checked, and gone back to. Every
    packed file is read back before the objects that it stands for are given up; those that the
    head or others need stay. The disk must have room for both forms until then. An object that is
    packed as a difference needs its base for as long as it is there, also after the other
    snapshot was deleted.
    """
    with Store.open(path) as store:
        if all(snapshot.name != name for snapshot in store.snapshots):
            raise RefNotFoundError(
                f"no snapshot is called {name!r}; 'shardstore snapshots' lists them"
            )
        size = sum(row.bytes for row in store.objects(name))
    with Store.open(path, "r+") as store, progress("objects", size) as advance:
        done = store.archive(name, against=against, alone=alone, level=level, advance=advance)
    if as_json:
        rate = done.gigabytes_per_second
        echo_json({**asdict(done), "ratio": done.ratio, "gigabytes_per_second": rate})
    else:
        click.echo(_text(done))


def _text(done: Archived) -> str:
    deltas = f", {done.deltas} of them as differences to {done.against}" if done.deltas else ""
    shared = f", {done.shared} packed already" if done.shared else ""
    return (
        f"archived {done.name} (step {done.step}): {done.objects} objects{deltas}{shared}, "
        f"{size_text(done.bytes_after)} instead of {size_text(done.bytes_before)} "
        f"(ratio {done.ratio:.2f}, {done.gigabytes_per_second:.2f} GB/s); "
        f"{size_text(done.bytes_freed)} are free for what is written next, or for 'shardstore gc'"
    )
