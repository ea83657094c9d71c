"""Objects as ordinary safetensors files (FORMAT.md section 5.2): the header, written and read.

Contract: no padding tensors, no holes; the tensors' bytes stand by element size, the widest first,
so that each is aligned to its element. Reading raises nothing but CorruptionError and accepts only
what `build_header` writes. Places are offsets in the file. In memory such an object has the layout
of a raw one; `codecs.foreign` moves the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardstore.errors import CorruptionError
from shardstore.format.digests import Bytes
from shardstore.format.fields import (
    check_name,
    check_own_digest,
    check_spelling,
    declared_tensor,
    parse_members,
    parse_sealed_label,
    possible_layout,
    wrong_header,
)
from shardstore.format.headers import ObjectHeader
from shardstore.format.names import SAFETENSORS
from shardstore.format.placement import (
    DTYPE_SIZES,
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    METADATA_KEY,
    ObjectLabel,
    TensorSpec,
    seal,
    unsealed_fields,
)

_ALIGNMENT_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainHeader:
    """A header that was read and found sound in itself."""

    object: ObjectHeader
    """Its layout is the one in memory."""
    places: dict[str, tuple[int, int]]
    """Begin and end in the file, by tensor, in the order of declaration."""


def build_header(specs: Sequence[TensorSpec], label: ObjectLabel, digests: Sequence[str]) -> bytes:
    """The file's bytes before the data."""
    places = data_places(specs)
    members: dict[str, Any] = {METADATA_KEY: unsealed_fields(label, digests, SAFETENSORS)}
    for spec in specs:
        begin, end = places[spec.name]
        members[spec.name] = {
            "data_offsets": [begin, end],
            "dtype": spec.dtype,
            "shape": list(spec.shape),
        }
    text = json.dumps(members, separators=(",", ":")).encode("ascii")
    size = -(-len(text) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return seal(size.to_bytes(LENGTH_BYTES, "little") + text.ljust(size))


def data_places(specs: Sequence[TensorSpec]) -> dict[str, tuple[int, int]]:
    """Begin and end from the start of the data, by tensor, in the order of the file."""
    places, position = {}, 0
    for spec in sorted(specs, key=lambda spec: -DTYPE_SIZES[spec.dtype]):
        places[spec.name] = (position, position + spec.nbytes)
        position += spec.nbytes
    return places


def header_length(first: Bytes, *, file: str, file_size: int) -> int:
    """Size of the header region, from the first 8 bytes of a file of `file_size` bytes."""
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    region = LENGTH_BYTES + length
    if len(first) < LENGTH_BYTES or region > file_size or length > HEADER_BYTES_MAX:
        raise CorruptionError(
            "the header's length is impossible",
            file=file,
            offset=0,
            expected=f"within the file's {file_size} bytes and at most {HEADER_BYTES_MAX}",
            found=length,
        )
    return region


def parse_header(region: Bytes, *, file: str, file_size: int) -> PlainHeader:
    """Read a header region of a file of `file_size` bytes."""
    data = bytes(region)
    check_own_digest(data, file)
    members = parse_members(data, file)
    label, digests = parse_sealed_label(members.pop(METADATA_KEY, None), SAFETENSORS, file)
    specs = [declared_tensor(name, value, file)[0] for name, value in members.items()]
    for spec in specs:
        check_name("tensor", spec.name, file)
    layout = possible_layout(specs, label, file)
    if len(digests) != len(specs):
        raise wrong_header("the list of digests is wrong", file, len(specs), len(digests))
    check_spelling(build_header(specs, label, digests), data, file)
    size = len(data)
    planned = data_places(specs)
    places = {s.name: (size + planned[s.name][0], size + planned[s.name][1]) for s in specs}
    end = max((end for _, end in places.values()), default=size)
    if end != file_size:
        raise CorruptionError(
            "the file's length is wrong",
            file=file,
            offset=min(end, file_size),
            expected=f"{end} bytes",
            found=f"{file_size} bytes",
        )
    header = ObjectHeader(layout=layout, label=label, digests=digests)
    return PlainHeader(object=header, places=places)
