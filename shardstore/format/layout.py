"""Objects as bytes (FORMAT.md section 5): the face of the layout, and checking data.

Contract: `data` is always the whole file, header region included, and offsets are those of the
file. `placement` plans and writes, `headers` reads; whether an object is the one that was meant
(its digest against the reference) is for the callers to check.
"""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

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
    "DataCheck",
    "ObjectHeader",
    "ObjectLabel",
    "ObjectLayout",
    "TensorEntry",
    "TensorSpec",
    "build_header",
    "check_data",
    "check_size",
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


class DataCheck:
    """Compares an object's data with its header while the file arrives, front to back.

    `view` is the whole file's memory, of which `advance(end)` says how much is there.
    """

    def __init__(self, header: ObjectHeader, view: memoryview, *, file: str) -> None:
        layout, label = header.layout, header.label
        self._view = view
        self._file = file
        self._where = f"shard {label.shard!r} part {label.part!r} at step {label.step}"
        places = [
            (entry.begin, entry.end, entry.spec.name, expected)
            for entry, expected in zip(layout.tensors, header.digests, strict=True)
        ]
        self._places = sorted([*places, *((begin, end, "", "") for begin, end in layout.pads)])
        self._next = 0
        self._state = xxhash.xxh3_128()
        self._hashed = self._places[0][0] if self._places else 0

    def advance(self, end: int) -> Iterator[CorruptionError]:
        """Every difference in what lies whole before `end` and was not told of before."""
        while self._next < len(self._places):
            begin, stop, name, expected = self._places[self._next]
            if name and self._hashed < min(stop, end):
                self._state.update(self._view[self._hashed : min(stop, end)])
                self._hashed = min(stop, end)
            if stop > end:
                return
            if not name:
                yield from _padding_damage(self._view, begin, stop, self._where, self._file)
            elif (found := self._state.hexdigest()) != expected:
                what = f"tensor {name!r} of {self._where} is damaged"
                yield CorruptionError(
                    what, file=self._file, offset=begin, expected=expected, found=found
                )
            self._next += 1
            if self._next < len(self._places):
                self._state.reset()
                self._hashed = self._places[self._next][0]


def find_damage(header: ObjectHeader, data: Bytes, *, file: str) -> Iterator[CorruptionError]:
    """Every difference between an object's data and its header, in the order of the file.

    `data` is the whole file, header region included (which is not looked at again).
    """
    view = memoryview(data)
    try:
        check_size(header.layout, len(view), file)
    except CorruptionError as error:
        yield error
        return
    yield from DataCheck(header, view, file=file).advance(len(view))


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
