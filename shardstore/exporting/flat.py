"""A commit as a flat checkpoint: `step_NNNNNN.bin`, its sidecars, and its layout if it has shards.

Contract: weights, m and v are those of the parts `params` and `optim` in fp32, exactly, in the
order of the layout; everything is checked before anything is written. The store's shards are read
one after the other, twice: once for the weights, once for the moments.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

from shardstore.errors import UsageError
from shardstore.exporting.new_files import NewFile, NewFiles
from shardstore.exporting.plain import ExportedFile
from shardstore.flat_layout import (
    COUNT_MAX,
    FLAT_SHARD,
    HEADER_BYTES,
    OPTIM,
    PARAMS,
    SIDECAR_SHARD,
    SIDECAR_TENSOR,
    SIDECARS,
    Layout,
    layout_of,
)
from shardstore.pinned_view import PinnedView
from shardstore.views import TensorInfo

_STEP = "step"
_Rows = dict[tuple[str, str, str], TensorInfo]


def export_flat(
    view: PinnedView, directory: str, layout: Layout | None, advance: Callable[[int], None]
) -> tuple[list[ExportedFile], list[str]]:
    """Write the checkpoint; the files, and what has to be said of it."""
    step = view.commit.step
    rows = {(row.shard, row.part, row.tensor): row for row in view.tensors()}
    chosen = layout or _own_layout(rows)
    _check(view, rows, chosen)
    names, stem = _sidecars(view), f"step_{step:06d}"
    extra = layout is None and chosen.by_shard().keys() != {FLAT_SHARD}
    wanted = [*(f"{stem}.{name}.json" for name in names), f"{stem}.bin"]
    if extra:
        wanted.insert(0, f"{stem}.layout.json")
    done, warnings = [], []
    size = HEADER_BYTES + 12 * chosen.count
    with NewFiles(directory, wanted, size) as files:
        if extra:
            text = json.dumps(chosen.to_json(), indent=1).encode()
            done.append(_small(files, f"{stem}.layout.json", text))
        for name in names:
            with view.load(SIDECAR_SHARD, name) as loaded:
                done.append(_small(files, f"{stem}.{name}.json", bytes(loaded.raw(SIDECAR_TENSOR))))
        file = files.open(f"{stem}.bin")
        warnings += _write(view, file, chosen, advance)
        file.finish()
        done.append(ExportedFile(path=file.path, shard=None, part=None, bytes=size))
        files.publish()
    return done, warnings


def flat_bytes(view: PinnedView, layout: Layout | None) -> int:
    """Bytes of the parts that will be read."""
    rows = {(row.shard, row.part, row.tensor): row for row in view.tensors()}
    return 12 * (layout or _own_layout(rows)).count


def _own_layout(rows: _Rows) -> Layout:
    """The commit's tensors by name."""
    return layout_of(
        (row.shard, row.tensor, row.shape)
        for key, row in sorted(rows.items())
        if key[1] == PARAMS and key[0] != SIDECAR_SHARD
    )


def _check(view: PinnedView, rows: _Rows, layout: Layout) -> None:
    """UsageError names the first thing that a flat checkpoint cannot hold."""
    step = view.commit.step
    if step > COUNT_MAX:
        raise UsageError(f"step {step} is beyond int32, a flat checkpoint counts to {COUNT_MAX}")
    if layout.count > COUNT_MAX:
        raise UsageError(
            f"step {step} has {layout.count} parameters, a flat checkpoint counts to {COUNT_MAX} "
            "(int32); export it as safetensors"
        )
    wanted = set()
    for piece in layout.slices:
        for part, name in (
            (PARAMS, piece.name), (OPTIM, f"m.{piece.name}"), (OPTIM, f"v.{piece.name}"),
        ):  # fmt: skip
            key = (piece.shard, part, name)
            found = rows.get(key)
            if found is None or (found.dtype, found.shape) != ("F32", piece.shape):
                told = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
                raise UsageError(
                    f"shard {piece.shard!r} part {part!r} tensor {name!r}: a flat checkpoint "
                    f"needs F32 {list(piece.shape)}, found {told} in step {step}"
                )
            wanted.add(key)
    for key in sorted(rows):
        if key not in wanted and key[0] != SIDECAR_SHARD and key[1:] != (OPTIM, _STEP):
            raise UsageError(
                f"shard {key[0]!r} part {key[1]!r} tensor {key[2]!r} has no place in a flat "
                "checkpoint of this layout; export it as safetensors"
            )


def _sidecars(view: PinnedView) -> list[str]:
    return [name for name in SIDECARS if (SIDECAR_SHARD, name) in view.commit.parts]


def _small(files: NewFiles, name: str, data: bytes) -> ExportedFile:
    file = files.open(name)
    file.write(data)
    file.finish()
    return ExportedFile(path=file.path, shard=None, part=None, bytes=len(data))


def _write(
    view: PinnedView, file: NewFile, layout: Layout, advance: Callable[[int], None]
) -> list[str]:
    step, steps, count = view.commit.step, set(), layout.count
    file.write_at(0, struct.pack("<ii", step, count))
    shards = layout.by_shard()
    for shard, pieces in shards.items():
        with view.load(shard, PARAMS) as loaded:
            for piece in pieces:
                file.write_at(HEADER_BYTES + 4 * piece.begin, loaded.raw(piece.name))
                advance(4 * piece.count)
    for shard, pieces in shards.items():
        with view.load(shard, OPTIM) as loaded:
            for piece in pieces:
                for region, role in ((1, "m"), (2, "v")):
                    begin = HEADER_BYTES + 4 * (region * count + piece.begin)
                    file.write_at(begin, loaded.raw(f"{role}.{piece.name}"))
                    advance(4 * piece.count)
            if _STEP in loaded.names:
                steps.add(int.from_bytes(loaded.raw(_STEP), "little"))
    if steps <= {step}:
        return []
    told = ", ".join(map(str, sorted(steps)[:10]))
    return [f"the optimizer has seen {told} updates; the file can only say step {step}"]
