"""`shardstore export`: a commit as files that other tools read."""

from __future__ import annotations

import click

from shardstore.cli.common import command, json_option, parse_ref, path_argument, progress
from shardstore.cli.output import echo_json, shown, size_text
from shardstore.errors import UsageError
from shardstore.exporting.flat import export_flat, flat_bytes
from shardstore.exporting.plain import ExportedFile, chosen_parts, export_plain
from shardstore.flat_layout import Layout, parse_layout
from shardstore.format.manifest import Part
from shardstore.format.names import PT, SAFETENSORS
from shardstore.importing.carrying import SETTINGS
from shardstore.importing.small_files import read_small
from shardstore.opening import check_outside
from shardstore.pinned_view import PinnedView
from shardstore.refs import Ref
from shardstore.store import Store

_FLAT = "flat"


@command(
    "export",
    example="shardstore export run out\n"
    "shardstore export run out --ref best --part params --format pt\n"
    "shardstore export run out --format flat --layout layout.json --json",
)
@path_argument
@click.argument("dest", type=click.Path())
@click.option("--ref", type=parse_ref, default="head", metavar="REF", help="By default the head.")
@click.option(
    "--format", "file_format", type=click.Choice((SAFETENSORS, PT, _FLAT)), default=SAFETENSORS,
    help="A file for each part, or one flat checkpoint.",
)  # fmt: skip
@click.option("--shard", "shards", multiple=True, metavar="NAME", help="Only these shards.")
@click.option("--part", "parts", multiple=True, metavar="NAME", help="Only these parts.")
@click.option("--layout", type=click.Path(), help="Order of a flat checkpoint's tensors.")
@json_option
def export(
    path: str,
    dest: str,
    ref: Ref,
    file_format: str,
    shards: tuple[str, ...],
    parts: tuple[str, ...],
    layout: str | None,
    as_json: bool,
) -> None:
    """Write commit REF of the store at PATH into the directory DEST, which is made if need be.

    Each part becomes DEST/PART/SHARD.safetensors or .pt (which needs PyTorch), or the whole
    commit becomes DEST/step_NNNNNN.bin with the sidecars that were imported with it; without
    --layout its tensors stand by name, and a layout file says so. Every byte is verified, a writer
    may go on meanwhile, and no file is overwritten.
    """
    if file_format != _FLAT and layout is not None:
        raise UsageError("--layout goes with --format flat only")
    if file_format == _FLAT and (shards or parts):
        raise UsageError("--format flat takes the whole commit; leave out --shard and --part")
    order = None if layout is None else parse_layout(read_small(layout), layout)
    check_outside(dest, itself=True)
    with Store.open(path, settings=SETTINGS) as store, store.pin(ref) as view:
        warnings: list[str] = []
        if file_format == _FLAT:
            files, warnings = _flat(view, dest, order)
        else:
            keys = chosen_parts(view, shards, parts)
            files = _plain(view, dest, file_format, keys)
        step = view.commit.step
    if as_json:
        rows = [{"file": f.path, "shard": f.shard, "part": f.part, "bytes": f.bytes} for f in files]
        echo_json({"path": path, "step": step, "files": rows, "warnings": warnings})
        return
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    size = sum(file.bytes for file in files)
    click.echo(f"{shown(dest)}: step {step} in {len(files)} files ({size_text(size)})")


def _flat(
    view: PinnedView, dest: str, order: Layout | None
) -> tuple[list[ExportedFile], list[str]]:
    with progress("parameters", flat_bytes(view, order)) as advance:
        return export_flat(view, dest, order, advance)


def _plain(view: PinnedView, dest: str, file_format: str, keys: list[Part]) -> list[ExportedFile]:
    wanted = set(keys)
    size = sum(view.size_of(*key) for key in wanted)
    with progress("parts", size) as advance:
        return export_plain(view, dest, file_format, keys, advance)
