"""Reading the header of a raw object (FORMAT.md section 5).

Contract: whatever the bytes are, reading raises nothing but CorruptionError, which names the file
and the offset, and never allocates more than the file is long. A header is accepted only if
writing its content again gives the same bytes, so two spellings of one object do not exist.
`placement` plans and writes headers; `layout` checks data against them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
from shardstore.format.names import RAW
from shardstore.format.placement import (
    BLOCK_BYTES,
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    METADATA_KEY,
    ObjectLabel,
    ObjectLayout,
    build_header,
)

_PADDING = re.compile(r"__pad_[0-9]+__", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectHeader:
    """A header region that was read and found sound in itself."""

    layout: ObjectLayout
    label: ObjectLabel
    digests: tuple[str, ...]
    """The tensors' digests, in declaration order."""


def header_length(first: Bytes, *, file: str, file_size: int) -> int:
    """Size of the header region, from the first 8 bytes of a file of `file_size` bytes."""
    if file_size < BLOCK_BYTES or len(first) < LENGTH_BYTES:
        raise CorruptionError(
            "the file is too short for an object",
            file=file,
            offset=min(file_size, len(first)),
            expected=f"{BLOCK_BYTES} bytes or more",
            found=f"{file_size} bytes",
        )
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    region = LENGTH_BYTES + length
    if length > HEADER_BYTES_MAX or region > file_size or region % BLOCK_BYTES:
        raise CorruptionError(
            "the header's length is impossible",
            file=file,
            offset=0,
            expected=f"{LENGTH_BYTES} less than a multiple of {BLOCK_BYTES}, within the "
            f"file's {file_size} bytes and at most {HEADER_BYTES_MAX}",
            found=length,
        )
    return region


def parse_header(region: Bytes, *, file: str, file_size: int | None = None) -> ObjectHeader:
    """Read a header region; with `file_size` the file's length is checked too."""
    data = bytes(region)
    length = header_length(data[:LENGTH_BYTES], file=file, file_size=len(data))
    if length != len(data):
        raise CorruptionError(
            "the header's length is wrong", file=file, offset=0, expected=len(data), found=length
        )
    check_own_digest(data, file)
    members = parse_members(data, file)
    label, digests = parse_sealed_label(members.pop(METADATA_KEY, None), RAW, file)
    layout = _layout(members, label, file)
    if len(digests) != len(layout.tensors):
        raise wrong_header("the list of digests is wrong", file, len(layout.tensors), len(digests))
    check_spelling(build_header(layout, label, digests), data, file)
    if file_size is not None:
        check_size(layout, file_size, file)
    return ObjectHeader(layout=layout, label=label, digests=digests)


def check_size(layout: ObjectLayout, size: int, file: str) -> None:
    """Whether a file of `size` bytes can hold the whole object, and nothing else."""
    if size != layout.total_bytes:
        raise CorruptionError(
            "the file's length is wrong",
            file=file,
            offset=min(size, layout.total_bytes),
            expected=f"{layout.total_bytes} bytes",
            found=f"{size} bytes",
        )


def _layout(members: Mapping[str, Any], label: ObjectLabel, file: str) -> ObjectLayout:
    """The layout planned for the declared tensors, if that is where the header puts them."""
    declared = [(name, declared_tensor(name, value, file)) for name, value in members.items()]
    # All padding is declared after all tensors, under names that no tensor may have.
    count = sum(1 for name, _ in declared if not _PADDING.fullmatch(name))
    specs = [spec for _, (spec, _) in declared[:count]]
    for spec in specs:
        check_name("tensor", spec.name, file)
    layout = possible_layout(specs, label, file)
    base = layout.header_bytes
    planned: list[Any] = [(e.spec.name, e.begin - base, e.end - base) for e in layout.tensors]
    for index, (begin, end) in enumerate(layout.pads):
        planned.append((f"__pad_{index}__", begin - base, end - base))
    planned.append("the end")
    found = [*((name, *place) for name, (_, place) in declared), "the end"]
    if planned != found:
        at = next(i for i, (ours, theirs) in enumerate(zip(planned, found, strict=False))
                  if ours != theirs)  # fmt: skip
        what = "tensors overlap, leave holes or are out of order"
        raise wrong_header(what, file, planned[at], found[at])
    return layout
