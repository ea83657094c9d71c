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
    """Compares an object's data with its header while the file's pieces arrive, front to back.

    Nothing of a piece is kept, so that its memory may be used for the next one.
    """

    def __init__(self, header: ObjectHeader, *, file: str) -> None:
        layout, label = header.layout, header.label
        self._file = file
        self._where = f"shard {label.shard!r} part {label.part!r} at step {label.step}"
        places = [
            (entry.begin, entry.end, entry.spec.name, expected)
            for entry, expected in zip(layout.tensors, header.digests, strict=True)
        ]
        self._places = sorted([*places, *((begin, end, "", "") for begin, end in layout.pads)])
        self._next = 0
        self._state = xxhash.xxh3_128()
        self._spoilt: tuple[int, int] | None = None
        """First byte of the current padding that is not zero: where, and what."""

    def feed(self, at: int, piece: memoryview) -> Iterator[CorruptionError]:
        """`piece` stands at offset `at`, where the last one ended. Every difference in what ends
        in it; the header region and what lies behind the object are not looked at."""
        end = at + len(piece)
        while self._next < len(self._places):
            begin, stop, name, expected = self._places[self._next]
            start, until = max(begin, at), min(stop, end)
            if start < until:
                self._take(piece[start - at : until - at], start, is_padding=not name)
            if stop > end:
                return
            self._next += 1
            error = self._verdict(begin, name, expected)
            self._state.reset()
            self._spoilt = None
            if error is not None:
                yield error

    def _take(self, data: memoryview, start: int, *, is_padding: bool) -> None:
        if not is_padding:
            self._state.update(data)
        elif self._spoilt is None and (rest := bytes(data).lstrip(b"\0")):
            self._spoilt = (start + len(data) - len(rest), rest[0])

    def _verdict(self, begin: int, name: str, expected: str) -> CorruptionError | None:
        if name and (found := self._state.hexdigest()) != expected:
            what = f"tensor {name!r} of {self._where} is damaged"
            return CorruptionError(
                what, file=self._file, offset=begin, expected=expected, found=found
            )
        if self._spoilt is not None:
            offset, byte = self._spoilt
            what = f"padding of {self._where} is damaged"
            return CorruptionError(what, file=self._file, offset=offset, expected=0, found=byte)
        return None


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
    yield from DataCheck(header, file=file).feed(0, view)


def check_data(header: ObjectHeader, data: Bytes, *, file: str) -> None:
    """Raise the first damage that `find_damage` finds."""
    for error in find_damage(header, data, file=file):
        raise error
