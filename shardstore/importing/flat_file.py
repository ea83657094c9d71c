"""Flat checkpoints: `step_NNNNNN.bin`, with a layout and sidecars.

The file is int32 step, int32 n, then n float32 weights, n first moments m and n second moments v,
little-endian: 8 + 12 n bytes. A layout says which stretch is which tensor of which shard, in order;
without one everything is one shard `flat`. Each shard becomes the parts `params` (its tensors) and
`optim` (`m.<name>`, `v.<name>`, `step`). Sidecars are kept byte for byte, in the shard `sidecars`.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from shardstore.errors import UsageError
from shardstore.flat_layout import (
    COUNT_MAX,
    HEADER_BYTES,
    OPTIM,
    PARAMS,
    SIDECAR_SHARD,
    SIDECAR_TENSOR,
    SIDECARS,
    Layout,
    Slice,
    single,
)
from shardstore.format.placement import TensorSpec
from shardstore.importing.contents import ForeignTensor, constant, stretch
from shardstore.importing.files import ForeignFile, check_data, unknown
from shardstore.importing.plan import Plan, PlannedPart, PlannedStep, checked

SIDECAR_BYTES_MAX = 256 << 20
_NAME = re.compile(r"step_(\d+)\.bin\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class FlatHeader:
    """What the first eight bytes say, and the file bears out."""

    step: int
    count: int


def fits(file: ForeignFile, head: bytes) -> bool:
    """Whether the file is as long as its first bytes say."""
    count = int.from_bytes(head[4:HEADER_BYTES], "little")
    return len(head) >= HEADER_BYTES and file.size == HEADER_BYTES + 12 * count


def is_named(path: str) -> bool:
    """Whether the file is called like a flat checkpoint."""
    return _NAME.search(path) is not None


def read_header(file: ForeignFile) -> FlatHeader:
    """ForeignFileError where step, count and length do not belong together."""
    head = file.head()
    check_data(file, head)
    if len(head) < HEADER_BYTES:
        raise file.wrong("it is too short for a flat checkpoint", HEADER_BYTES, len(head))
    step, count = struct.unpack_from("<ii", head)
    if count < 0 and file.size == HEADER_BYTES + 12 * (count % 2**32):
        raise file.wrong("its count is beyond int32", f"{COUNT_MAX} at most", count % 2**32)
    if step < 0 or count < 0:
        raise unknown(file, head, "a flat checkpoint: step and count from 0 on")
    expected = HEADER_BYTES + 12 * count
    if file.size != expected:
        what = "bytes stand behind its end" if file.size > expected else "it is cut off"
        raise file.wrong(
            f"{what}: {count} parameters at step {step}", f"{expected} bytes", file.size
        )
    return FlatHeader(step, count)


def plan_flat(paths: Sequence[str], layout: Layout | None, layout_path: str | None) -> Plan:
    """What importing these files would do: a commit each, in the order of their steps; of several
    each becomes a snapshot."""
    found: dict[int, PlannedStep] = {}
    warnings: list[str] = []
    for path in paths:
        file = ForeignFile(path)
        try:
            header = read_header(file)
        finally:
            file.close()
        if header.step in found:
            raise UsageError(f"two files are of step {header.step}, {path} is one of them")
        slices = _slices(file, header, layout, layout_path)
        parts, names = _parts(file, header, slices), _sidecars(path, warnings)
        match = _NAME.search(path)
        if match is not None and int(match.group(1)) != header.step:
            warnings.append(f"{path} says step {header.step} inside: that counts, not its name")
        found[header.step] = PlannedStep(
            step=header.step,
            parts=checked((*parts, *names)),
            facts={"file": os.path.basename(path), "parameters": header.count},
            snapshot=f"step_{header.step:08d}" if len(paths) > 1 else None,
        )
    steps = tuple(found[step] for step in sorted(found))
    source = os.path.basename(paths[0]) + (f" and {len(paths) - 1} more" if paths[1:] else "")
    return Plan(kind="flat", source=source, steps=steps, whole=True, warnings=tuple(warnings))


def _slices(
    file: ForeignFile, header: FlatHeader, layout: Layout | None, layout_path: str | None
) -> Layout:
    if layout is None:
        return single(header.count)
    if layout.count != header.count:
        raise file.wrong(
            f"the layout {layout_path} is of another model", f"{layout.count} parameters",
            header.count,
        )  # fmt: skip
    return layout


def _parts(file: ForeignFile, header: FlatHeader, layout: Layout) -> list[PlannedPart]:
    parts = []
    for shard, slices in layout.by_shard().items():
        weights = tuple(_stretch(file, header, piece, 0, piece.name) for piece in slices)
        moments = [
            _stretch(file, header, piece, region, f"{role}.{piece.name}")
            for piece in slices
            for region, role in ((1, "m"), (2, "v"))
        ]
        scalar = TensorSpec(name="step", dtype="I64", shape=())
        step = constant(scalar, struct.pack("<q", header.step))
        parts.append(PlannedPart(shard=shard, part=PARAMS, tensors=weights, files=(file,)))
        parts.append(PlannedPart(shard=shard, part=OPTIM, tensors=(*moments, step), files=(file,)))
    return parts


def _stretch(
    file: ForeignFile, header: FlatHeader, piece: Slice, region: int, name: str
) -> ForeignTensor:
    begin = HEADER_BYTES + 4 * (region * header.count + piece.begin)
    return stretch(file, TensorSpec(name=name, dtype="F32", shape=piece.shape), begin)


def _sidecars(path: str, warnings: list[str]) -> list[PlannedPart]:
    """The checkpoint's own sidecars, else those of its directory."""
    stem, folder = path.removesuffix(".bin"), os.path.dirname(path)
    parts = []
    for name in SIDECARS:
        near = [f"{stem}.{name}.json", os.path.join(folder, f".{name}.json")]
        there = next((place for place in near if os.path.lexists(place)), None)
        if there is None:
            warnings.append(f"{path} has no sidecar .{name}.json")
            continue
        file = ForeignFile(there, within=folder or ".")
        try:
            _check_sidecar(file)
        finally:
            file.close()
        spec = TensorSpec(name=SIDECAR_TENSOR, dtype="U8", shape=(file.size,))
        tensors = (stretch(file, spec, 0),)
        parts.append(PlannedPart(shard=SIDECAR_SHARD, part=name, tensors=tensors, files=(file,)))
    return parts


def _check_sidecar(file: ForeignFile) -> None:
    """Whether it begins and ends like JSON; it is not read beyond that."""
    if file.size > SIDECAR_BYTES_MAX:
        raise file.wrong("it is too long for a sidecar", SIDECAR_BYTES_MAX, file.size)
    head = file.head()
    check_data(file, head)
    tail = file.read(max(0, file.size - 64), min(64, file.size))
    if head.lstrip()[:1] not in (b"{", b"[") or tail.rstrip()[-1:] not in (b"}", b"]"):
        raise file.wrong("this is no whole JSON", "an object or a list", head[:24])
