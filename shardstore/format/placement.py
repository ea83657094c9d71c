"""Where an object's tensors lie, and the header that says so (FORMAT.md section 5, writing).

Contract: `plan_layout` is a pure function of names, dtypes, shapes, shard and part, so that a slot
written again for the same shard has the same size at every step. The header it plans for has fields
of fixed width; `build_header` always fills exactly `header_bytes`. Offsets are those of the file.
`layout` reads headers back and checks data against them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardstore.errors import InvalidTensorError
from shardstore.format.digests import DIGEST_LENGTH, ZERO_DIGEST, digest
from shardstore.format.names import FORMAT_VERSION, RAW

BLOCK_BYTES = 4096
ALIGNMENT_BYTES = 64
LENGTH_BYTES = 8
HEADER_BYTES_MAX = 100_000_000
"""Beyond this safetensors' own readers refuse a header."""
OBJECT_BYTES_MAX = 2**63 - 1
METADATA_KEY = "__metadata__"

DTYPE_SIZES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "C64": 8,
}
"""Bytes of one element, by safetensors' dtype name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """What a tensor is, without its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_SIZES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A tensor and its place, as offsets in the file."""

    spec: TensorSpec
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLayout:
    """The places of one object; data begins at `header_bytes`."""

    tensors: tuple[TensorEntry, ...]
    """In declaration order."""
    pads: tuple[tuple[int, int], ...]
    """Begin and end of each run of zeros, `__pad_0__` first."""
    header_bytes: int
    total_bytes: int

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(entry.spec for entry in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLabel:
    """Which object of which transaction this is: the header's metadata but for the digests."""

    store: str
    """uuid"""
    shard: str
    part: str
    step: int
    txn: str
    """Write id of the transaction, in the text form of `manifest.write_id`."""
    write: str
    """Write id of this object."""
    expect: str
    parent: str


def plan_layout(specs: Iterable[TensorSpec], shard: str, part: str) -> ObjectLayout:
    """Places for tensors of distinct names; InvalidTensorError if no file could hold them."""
    entries, pads = [], []
    position = 0
    for spec in specs:
        _check_countable(spec, shard, part)
        begin = _round_up(position, ALIGNMENT_BYTES)
        if begin > position:
            pads.append((position, begin))
        position = begin + spec.nbytes
        entries.append(TensorEntry(spec=spec, begin=begin, end=position))
    end = _round_up(position, BLOCK_BYTES)
    if end > position:
        pads.append((position, end))
    relative = ObjectLayout(tensors=tuple(entries), pads=tuple(pads), header_bytes=0, total_bytes=0)
    text = _header_text(relative, blank_label(shard, part), [ZERO_DIGEST] * len(entries))
    header = _round_up(LENGTH_BYTES + len(text), BLOCK_BYTES)
    if header - LENGTH_BYTES > HEADER_BYTES_MAX or header + end > OBJECT_BYTES_MAX:
        raise InvalidTensorError(
            f"shard {shard!r} part {part!r}: {len(entries)} tensors need a header of {header} and "
            f"{end} bytes of data, expected at most {HEADER_BYTES_MAX} and {OBJECT_BYTES_MAX}; "
            "spread them over more parts"
        )
    return _moved(relative, header, header + end)


def build_header(layout: ObjectLayout, label: ObjectLabel, digests: Sequence[str]) -> bytes:
    """The header region. `layout` must have been planned for the label's shard and part."""
    text = _header_text(layout, label, digests)
    size = layout.header_bytes - LENGTH_BYTES
    assert len(text) <= size < len(text) + BLOCK_BYTES, "layout and label do not belong together"
    return seal(size.to_bytes(LENGTH_BYTES, "little") + text.ljust(size))


def seal(region: bytes) -> bytes:
    """The header region with its own digest where zeros stand."""
    begin = own_digest_offset(region)
    return region[:begin] + own_digest(region, begin).encode() + region[begin + DIGEST_LENGTH :]


def own_digest_offset(region: bytes) -> int:
    """Where the header's own digest stands, -1 if nowhere.

    The sequence occurs once: inside a JSON string its quotes would be escaped, and a tensor of
    that name is followed by a brace.
    """
    key = b'"header":"'
    found = region.find(key)
    return found if found < 0 else found + len(key)


def own_digest(region: bytes, begin: int) -> str:
    """Digest of the region with the digits at `begin` replaced by zeros."""
    return digest(region[:begin], ZERO_DIGEST.encode(), region[begin + DIGEST_LENGTH :])


def format_name(storage_format: str) -> str:
    """The name of a storage format, and the version of FORMAT.md, in an object's metadata."""
    return f"shardstore.{storage_format}.{FORMAT_VERSION}"


def label_fields(label: ObjectLabel, digests: Sequence[str], storage_format: str) -> dict[str, str]:
    """The label and the tensors' digests as every storage format writes them, keys sorted."""
    return {
        "digests": ",".join(digests),
        "expect": label.expect,
        "format": format_name(storage_format),
        "parent": label.parent,
        "part": label.part,
        "shard": label.shard,
        "step": f"{label.step:020d}",
        "store": label.store,
        "txn": label.txn,
        "write": label.write,
    }


def unsealed_fields(
    label: ObjectLabel, digests: Sequence[str], storage_format: str
) -> dict[str, str]:
    """The same for a header that holds a digest of itself, zeros where that will stand."""
    fields = {**label_fields(label, digests, storage_format), "header": ZERO_DIGEST}
    return {key: fields[key] for key in sorted(fields)}


def _header_text(layout: ObjectLayout, label: ObjectLabel, digests: Sequence[str]) -> bytes:
    """The header's JSON without fill, its own digest zero. Members stand in the order of
    FORMAT.md: metadata, tensors as declared, padding."""
    assert len(digests) == len(layout.tensors), "one digest a tensor"
    metadata = unsealed_fields(label, digests, RAW)
    base = layout.header_bytes
    members: dict[str, Any] = {METADATA_KEY: metadata}
    for entry in layout.tensors:
        place = [entry.begin - base, entry.end - base]
        shape = list(entry.spec.shape)
        members[entry.spec.name] = {
            "data_offsets": place,
            "dtype": entry.spec.dtype,
            "shape": shape,
        }
    for index, (begin, end) in enumerate(layout.pads):
        members[f"__pad_{index}__"] = {
            "data_offsets": [begin - base, end - base],
            "dtype": "U8",
            "shape": [end - begin],
        }
    assert len(members) == 1 + len(layout.tensors) + len(layout.pads), "names must be distinct"
    return json.dumps(members, separators=(",", ":")).encode("ascii")


def blank_label(shard: str, part: str) -> ObjectLabel:
    """Of an object that nobody has written yet."""
    write = f"{0:016x}-{0:016x}"
    zero = ZERO_DIGEST
    return ObjectLabel(
        store=zero, shard=shard, part=part, step=0, txn=write, write=write, expect=zero, parent=zero
    )


def _check_countable(spec: TensorSpec, shard: str, part: str) -> None:
    """Dimensions must multiply without leaving 63 bits even where one of them is 0."""
    if math.prod(size or 1 for size in spec.shape) * DTYPE_SIZES[spec.dtype] > OBJECT_BYTES_MAX:
        raise InvalidTensorError(
            f"shard {shard!r} part {part!r} tensor {spec.name!r}: found shape {spec.shape} of "
            f"{spec.dtype}, expected at most {OBJECT_BYTES_MAX} bytes"
        )


def _moved(layout: ObjectLayout, header: int, total: int) -> ObjectLayout:
    tensors = tuple(
        TensorEntry(spec=entry.spec, begin=entry.begin + header, end=entry.end + header)
        for entry in layout.tensors
    )
    pads = tuple((begin + header, end + header) for begin, end in layout.pads)
    return ObjectLayout(tensors=tensors, pads=pads, header_bytes=header, total_bytes=total)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
