"""Objects as bytes (FORMAT.md section 5): the face of the layout, and checking data.

Contract: `data` is always the whole file, header region included, and offsets are those of the
file. `placement` plans and writes, `headers` reads; whether an object is the one that was meant
(its digest against the reference) is for the callers to check.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardstore.errors import CorruptionError
from shardstore.format.digests import Bytes, digest, short_digest
from shardstore.format.headers import ObjectHeader, check_size, header_length, parse_header
from shardstore.format.placement import (
    BLOCK_BYTES,
    DTYPE_SIZES,
    ObjectLabel,
    ObjectLayout,
    TensorEntry,
    TensorSpec,
    build_header,
    plan_layout,
)

__all__ = [
    "BLOCK_BYTES",
    "DTYPE_SIZES",
    "ObjectHeader",
    "ObjectLabel",
    "ObjectLayout",
    "TensorEntry",
    "TensorSpec",
    "build_header",
    "check_data",
    "find_damage",
    "head_digest",
    "header_length",
    "object_digest",
    "parse_header",
    "plan_layout",
]

HEAD_BYTES = 256 * 1024


def object_digest(header_region: Bytes) -> str:
    """The digest that stands in an object's reference."""
    return digest(header_region)


def head_digest(data: Bytes, header_bytes: int) -> str:
    """Digest of the first 256 KiB behind the header region; `data` is the file's beginning."""
    return short_digest(memoryview(data)[header_bytes : header_bytes + HEAD_BYTES])


def find_damage(header: ObjectHeader, data: Bytes, *, file: str) -> Iterator[CorruptionError]:
    """Every difference between an object's data and its header, in the order of the file.

    `data` is the whole file, header region included (which is not looked at again).
    """
    view = memoryview(data)
    layout, label = header.layout, header.label
    try:
        check_size(layout, len(view), file)
    except CorruptionError as error:
        yield error
        return
    where = f"shard {label.shard!r} part {label.part!r} at step {label.step}"
    places: list[tuple[int, int, str, str]] = [
        (entry.begin, entry.end, entry.spec.name, expected)
        for entry, expected in zip(layout.tensors, header.digests, strict=True)
    ]
    places += [(begin, end, "", "") for begin, end in layout.pads]
    for begin, end, name, expected in sorted(places):
        if not name:
            yield from _padding_damage(view, begin, end, where, file)
        elif (found := digest(view[begin:end])) != expected:
            what = f"tensor {name!r} of {where} is damaged"
            yield CorruptionError(what, file=file, offset=begin, expected=expected, found=found)


def check_data(header: ObjectHeader, data: Bytes, *, file: str) -> None:
    """Raise the first damage that `find_damage` finds."""
    for error in find_damage(header, data, file=file):
        raise error


def _padding_damage(
    view: memoryview, begin: int, end: int, where: str, file: str
) -> Iterator[CorruptionError]:
    padding = bytes(view[begin:end])
    if rest := padding.lstrip(b"\0"):
        offset = end - len(rest)
        what = f"padding of {where} is damaged"
        yield CorruptionError(what, file=file, offset=offset, expected=0, found=rest[0])
