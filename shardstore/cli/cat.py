"""`shardstore cat`: one tensor, as a summary or as its bytes."""

from __future__ import annotations

import sys
from typing import Any

import click

from shardstore.cli.common import command, json_option, path_argument, ref_argument
from shardstore.cli.output import echo_json, facts, size_text
from shardstore.cli.values import decode, shown_number, statistics
from shardstore.errors import PartNotFoundError, UsageError
from shardstore.loaded import LoadedObject
from shardstore.refs import Ref
from shardstore.store import Store

_FIRST_VALUES = 8
_STATISTICS_BYTES_MAX = 4 * 1024 * 1024


@command(
    "cat",
    example="shardstore cat run block_000 params w\n"
    "shardstore cat run block_000 params w step:12 --raw > w.bin",
)
@path_argument
@click.argument("shard")
@click.argument("part")
@click.argument("tensor")
@ref_argument
@click.option("--raw", is_flag=True, help="Write the bytes: little-endian, C order.")
@json_option
def cat(path: str, shard: str, part: str, tensor: str, ref: Ref, raw: bool, as_json: bool) -> None:
    """Show TENSOR of SHARD and PART in commit REF (by default the head), verified.

    Least, greatest and mean are given for tensors of up to 4 MiB.
    """
    if raw and as_json:
        raise UsageError("--raw and --json exclude each other")
    if raw and sys.stdout.isatty():
        raise UsageError("--raw writes bytes: send them to a file or another command")
    with (
        Store.open(path) as store,
        store.pin(ref) as view,
        view.load(shard, part) as loaded,
    ):
        if tensor not in loaded.names:
            raise PartNotFoundError(
                f"shard {shard!r} part {part!r} has no tensor {tensor!r}, only "
                f"{', '.join(map(repr, loaded.names))}"
            )
        if raw:
            sys.stdout.buffer.write(loaded.raw(tensor))
            return
        values = _summary(loaded, tensor)
    if as_json:
        echo_json(values)
    else:
        _show(values)


def _summary(loaded: LoadedObject, tensor: str) -> dict[str, Any]:
    at = loaded.names.index(tensor)
    spec, data = loaded.specs[at], loaded.raw(tensor)
    size = len(data)
    element = size // max(1, _count(spec.shape))
    first = decode(data[: _FIRST_VALUES * element], spec.dtype)
    small = size <= _STATISTICS_BYTES_MAX
    return {
        "shard": loaded.shard,
        "part": loaded.part,
        "tensor": tensor,
        "step": loaded.step,
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "bytes": size,
        "digest": loaded.header.digests[at],
        "first": [[v.real, v.imag] if isinstance(v, complex) else v for v in first],
        "statistics": statistics(decode(data, spec.dtype)) if small else None,
    }


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _show(values: dict[str, Any]) -> None:
    first = [
        shown_number(complex(*value) if isinstance(value, list) else value)
        for value in values["first"]
    ]
    rows: list[tuple[str, Any]] = [
        ("tensor", f"{values['shard']} {values['part']} {values['tensor']}"),
        ("written", f"at step {values['step']}"),
        ("type", f"{values['dtype']} {values['shape']}, {size_text(values['bytes'])}"),
        ("digest", values["digest"]),
        ("values", " ".join(first) + (" ..." if len(first) == _FIRST_VALUES else "")),
    ]
    if values["statistics"] is not None:
        named = ", ".join(f"{k} {shown_number(v)}" for k, v in values["statistics"].items())
        rows.append(("finite", named))
    facts(rows)
