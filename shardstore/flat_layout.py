"""The layout of flat checkpoints, which import and export share: which stretch is which tensor.

A layout file is JSON: a list of objects with `shard`, `name` and `shape`, in the order in which the
tensors' elements stand in the file. A list under `tensors` does as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shardstore.errors import InvalidNameError, UsageError
from shardstore.format.names import check_data_name

HEADER_BYTES = 8
COUNT_MAX = 2**31 - 1
PARAMS = "params"
OPTIM = "optim"
FLAT_SHARD = "flat"
FLAT_TENSOR = "weight"
SIDECAR_SHARD = "sidecars"
SIDECAR_TENSOR = "json"
SIDECARS = ("loss", "samples", "state")
_KEYS = {"shard", "name", "shape"}
_DIMENSIONS_MAX = 64


@dataclass(frozen=True, slots=True)
class Slice:
    """One tensor's stretch, in elements from the start of each region."""

    shard: str
    name: str
    shape: tuple[int, ...]
    begin: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """All tensors of a flat checkpoint, in its order."""

    slices: tuple[Slice, ...]

    @property
    def count(self) -> int:
        return sum(piece.count for piece in self.slices)

    def by_shard(self) -> dict[str, list[Slice]]:
        shards: dict[str, list[Slice]] = {}
        for piece in self.slices:
            shards.setdefault(piece.shard, []).append(piece)
        return shards

    def to_json(self) -> list[dict[str, Any]]:
        return [{"shard": p.shard, "name": p.name, "shape": list(p.shape)} for p in self.slices]


def single(count: int) -> Layout:
    """Everything as one tensor of one shard."""
    return Layout((Slice(FLAT_SHARD, FLAT_TENSOR, (count,), 0),))


def layout_of(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> Layout:
    """Of (shard, name, shape) in order."""
    slices, begin = [], 0
    for shard, name, shape in tensors:
        slices.append(Slice(shard, name, shape, begin))
        begin += slices[-1].count
    return Layout(tuple(slices))


def parse_layout(data: bytes, path: str) -> Layout:
    """What stands in a layout file; UsageError names the entry that is wrong."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"layout {path} is not JSON: {error}") from None
    rows = value.get("tensors") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise UsageError(
            f"layout {path}: expected a list of tensors with {', '.join(sorted(_KEYS))}"
        )
    layout = layout_of(_row(row, number, path) for number, row in enumerate(rows))
    seen: set[tuple[str, str]] = set()
    for piece in layout.slices:
        if (piece.shard, piece.name) in seen:
            raise UsageError(f"layout {path}: {piece.shard!r} has two tensors {piece.name!r}")
        seen.add((piece.shard, piece.name))
    if layout.count > COUNT_MAX:
        raise UsageError(
            f"layout {path} has {layout.count} elements; a flat checkpoint counts up to "
            f"{COUNT_MAX} (int32)"
        )
    return layout


def _row(row: Any, number: int, path: str) -> tuple[str, str, tuple[int, ...]]:
    where = f"layout {path}: entry {number}"
    if not isinstance(row, dict) or row.keys() != _KEYS:
        raise UsageError(f"{where} must have exactly {', '.join(sorted(_KEYS))}")
    shape = row["shape"]
    good = isinstance(shape, list) and len(shape) <= _DIMENSIONS_MAX
    if not good or any(type(n) is not int or not 0 <= n <= COUNT_MAX for n in shape):
        raise UsageError(f"{where}: shape must be a list of counts")
    try:
        shard = check_data_name("shard", row["shard"])
        name = check_data_name("tensor", row["name"])
    except InvalidNameError as error:
        raise UsageError(f"{where}: {error}") from None
    if shard == SIDECAR_SHARD:
        raise UsageError(f"{where}: shard {SIDECAR_SHARD!r} is kept for sidecars")
    return shard, name, tuple(shape)
