"""Archived objects: packed piece by piece, each for itself or as the difference to a base's.

Contract: as of `codecs.foreign`: in memory an object has the raw layout, `encode` makes a file of
it and `decode` fills memory again, after the caller has compared the file with its reference.
Pieces are packed and unpacked by the workers' threads; all of them are done when a function
returns, however it ends. `packing` does one piece, `format.archive_file` the header.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardstore.codecs.contents import Contents
from shardstore.errors import CorruptionError
from shardstore.format.archive_file import (
    DELTA,
    PIECE_BYTES,
    ArchiveHeader,
    Piece,
    base_name,
    build_header,
    header_length,
    parse_header,
    width_of,
)
from shardstore.format.digests import digest, short_digest
from shardstore.format.manifest import ObjectRef
from shardstore.format.placement import ObjectLabel, ObjectLayout
from shardstore.jobs import Job, settle_jobs
from shardstore.workers import Workers

if TYPE_CHECKING:
    from shardstore.codecs import packing


@dataclass(frozen=True, slots=True)
class Base:
    """A verified object in memory, which others are packed against."""

    reference: ObjectRef
    layout: ObjectLayout
    view: memoryview

    def tensors(self, layout: ObjectLayout) -> dict[str, memoryview]:
        """Its tensors that are in `layout` too, of the same dtype and shape."""
        wanted = set(layout.specs)
        return {
            entry.spec.name: self.view[entry.begin : entry.end]
            for entry in self.layout.tensors
            if entry.spec in wanted
        }


def encode(
    view: memoryview,
    layout: ObjectLayout,
    label: ObjectLabel,
    digests: Sequence[str],
    base: Base | None,
    level: int,
    workers: Workers,
) -> tuple[list[memoryview], bool]:
    """The pieces of the whole file, and whether the base is needed to read it."""
    from shardstore.codecs import packing  # late: it imports numpy

    done = _packed(view, layout, base, level, workers)
    used = base if any(one.method == DELTA for one in done) else None
    if used is not None and not packing.base_pays(done):
        used, done = None, _packed(view, layout, None, level, workers)
    pieces = [Piece(len(one.frame), one.method, short_digest(one.frame)) for one in done]
    name = None if used is None else base_name(used.reference)
    header = build_header(layout.specs, label, digests, name, pieces)
    return [memoryview(header), *(one.frame for one in done)], used is not None


def _packed(
    view: memoryview, layout: ObjectLayout, base: Base | None, level: int, workers: Workers
) -> list[packing.Packed]:
    from shardstore.codecs import packing

    others = {} if base is None else base.tensors(layout)
    jobs: list[Job[packing.Packed]] = []
    try:
        for entry in layout.tensors:
            width, other = width_of(entry.spec.dtype), others.get(entry.spec.name)
            for at in range(entry.begin, entry.end, PIECE_BYTES):
                end = min(entry.end, at + PIECE_BYTES)
                near = other and other[at - entry.begin : end - entry.begin]
                jobs.append(workers.io(packing.pack, view[at:end], near, width, level))
        return [job.result() for job in jobs]
    finally:
        settle_jobs(jobs)  # they read from the caller's memory


def parse(data: memoryview, *, file: str, file_size: int | None = None) -> ArchiveHeader | None:
    """The header of a file, of all its bytes or the first ones; None where those do not reach."""
    size = len(data) if file_size is None else file_size
    length = header_length(data[:8], file=file, file_size=size)
    if length > len(data):
        return None
    return parse_header(data[:length], file=file, file_size=size)


def check_frames(data: memoryview, header: ArchiveHeader, *, file: str) -> None:
    """Before memory is made for the object: every frame is of a piece of the declared size."""
    from shardstore.codecs import packing

    for entry, begin, piece, at in header.frames():
        size = min(PIECE_BYTES, entry.end - begin)
        try:
            packing.check(data[at : at + piece.bytes], piece.method, size)
        except packing.PackingError as error:
            raise _wrong_frame(entry.spec.name, file, at, size, error) from None


def decode(
    data: memoryview,
    header: ArchiveHeader,
    base: Base | None,
    view: memoryview,
    workers: Workers,
    *,
    file: str,
) -> None:
    """Fill `view`, which has the size of the object in memory; the header region is left alone."""
    layout = header.object.layout
    others = {} if base is None else base.tensors(layout)
    for begin, end in layout.pads:
        view[begin:end] = bytes(end - begin)
    jobs: list[tuple[Job[Exception | None], str, int, int]] = []
    try:
        for entry, begin, piece, at in header.frames():
            end, other, name = min(entry.end, begin + PIECE_BYTES), None, entry.spec.name
            if piece.method == DELTA:
                if name not in others:
                    raise _wrong_frame(name, file, at, "a tensor like it in the base", "none")
                other = others[name][begin - entry.begin : end - entry.begin]
            frame, width = data[at : at + piece.bytes], width_of(entry.spec.dtype)
            job = workers.io(_unpack, frame, piece.method, other, width, view[begin:end])
            jobs.append((job, name, at, end - begin))
        for job, name, at, size in jobs:
            if (error := job.result()) is not None:
                raise _wrong_frame(name, file, at, size, error)
    finally:
        settle_jobs([job for job, *_ in jobs])  # they write into the caller's memory
    for entry, expected in zip(layout.tensors, header.object.digests, strict=True):
        if (found := digest(view[entry.begin : entry.end])) != expected:
            what = f"tensor {entry.spec.name!r} is not the one that was declared"
            raise CorruptionError(what, file=file, offset=0, expected=expected, found=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveContents(Contents):
    """As `Contents`; damage is found in frames."""

    header: ArchiveHeader

    def damage(self, data: memoryview, *, file: str) -> Iterator[tuple[str, CorruptionError]]:
        label = self.label
        where = f"shard {label.shard!r} part {label.part!r} at step {label.step}"
        for entry, begin, piece, at in self.header.frames():
            if (found := short_digest(data[at : at + piece.bytes])) != piece.check:
                number = (begin - entry.begin) // PIECE_BYTES
                what = f"piece {number} of tensor {entry.spec.name!r} of {where} is damaged"
                yield (
                    entry.spec.name,
                    CorruptionError(what, file=file, offset=at, expected=piece.check, found=found),
                )


def contents_of(header: ArchiveHeader) -> ArchiveContents:
    """For checks of the file."""
    inner = header.object
    return ArchiveContents(label=inner.label, digests=inner.digests, places={}, header=header)


def _unpack(
    frame: memoryview, method: int, other: memoryview | None, width: int, target: memoryview
) -> Exception | None:
    """What is wrong with the frame comes back, so that every job is submitted all the same."""
    from shardstore.codecs import packing

    try:
        packing.unpack(frame, method, other, width, target)
    except packing.PackingError as error:
        return error
    return None


def _wrong_frame(
    tensor: str, file: str, at: int, expected: object, found: object
) -> CorruptionError:
    if isinstance(expected, int):
        expected = f"one zstd frame of {expected} bytes"
    what = f"a piece of tensor {tensor!r} cannot be unpacked"
    return CorruptionError(what, file=file, offset=at, expected=expected, found=found)
