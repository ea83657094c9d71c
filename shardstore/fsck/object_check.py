"""Checks the objects that a state needs: file, size, header, labels; deep: every byte.

An object whose header agrees with the digest in its manifest is the one that was committed; one
that is whole but another is told from one that is damaged. Where the log itself is damaged an
object may have been written again since, so that it is then checked against itself only.
Here stand raw objects, which are checked while they arrive and never held as a whole;
`foreign_check` does the same for the other storage formats, `pieces` reads. Memory of a deep check
is 40 MiB, the largest header and the largest object of another format than raw; of a quick one
256 KiB and the largest header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from shardstore.buffers import BufferPool
from shardstore.errors import CorruptionError
from shardstore.format.headers import ObjectHeader
from shardstore.format.layout import (
    BLOCK_BYTES,
    HEAD_BYTES,
    DataCheck,
    check_size,
    header_length,
    object_digest,
    parse_header,
)
from shardstore.format.names import RAW
from shardstore.format.placement import LENGTH_BYTES
from shardstore.fs.protocol import FileSystem
from shardstore.fsck.findings import Finding, Wanted, damage, from_error
from shardstore.fsck.foreign_check import ForeignCheck
from shardstore.fsck.identity import identity
from shardstore.fsck.object_base import ObjectCheck, Rules
from shardstore.fsck.pieces import PieceReader
from shardstore.workers import make_workers

PIECE_BYTES = 4 * 1024 * 1024
THREADS = 6
"""Pieces in flight."""
SPARE = 4
"""Pieces beyond those: one is looked at, the others wait until those before them are there."""


def check_objects(
    fs: FileSystem,
    root: str,
    objects: Sequence[Wanted],
    rules: Rules,
    advance: Callable[[int], None],
) -> list[tuple[Wanted, Finding]]:
    """All that is wrong with each object, in their order.

    `advance` is called on this thread, with the bytes that were looked at in whole objects.
    """
    threads = THREADS if rules.deep and fs.parallel else 0
    total = sum(wanted.reference.size for wanted in objects)
    piece_bytes = min(PIECE_BYTES if rules.deep else HEAD_BYTES, total)
    reader = PieceReader(
        fs,
        make_workers(threads),
        count=threads + SPARE if threads else 1,
        piece_bytes=max(1, -(-piece_bytes // BLOCK_BYTES)) * BLOCK_BYTES,
        direct=rules.deep,
    )
    found: list[tuple[Wanted, Finding]] = []
    pool = BufferPool()

    def checks() -> Iterator[ObjectCheck]:
        for wanted in objects:
            path = f"{root}/{wanted.reference.file}"
            if wanted.reference.format == RAW:
                yield RawCheck(wanted, path, rules, advance, found)
            else:
                yield ForeignCheck(wanted, path, rules, advance, found, pool)

    reader.run(checks())
    return found


class RawCheck(ObjectCheck):
    """One raw object; the header region is all of it that is kept."""

    _region_bytes = 0
    _data: DataCheck | None = None

    def _begin(self) -> None:
        self._region = bytearray()
        self._names: dict[int, str] = {}
        if self.size < self.wanted.reference.size and not self.rules.against_itself:
            return
        self.wants = self.size if self.is_whole else min(self.size, LENGTH_BYTES)
        if not self.wants:
            self._measure(memoryview(b""))

    def _take(self, at: int, piece: memoryview) -> None:
        if at == 0 and len(piece) >= min(self.size, LENGTH_BYTES):  # else it was cut off
            self._measure(piece)
        if (missing := self._region_bytes - len(self._region)) > 0:
            self._region += piece[:missing]
            if missing <= len(piece):
                self._judge_header()
        if self._data is not None:
            for error in self._data.feed(at, piece):
                tensor = self._names.get(error.offset or 0) if "padding" not in error.what else None
                self.add(replace(from_error(error), tensor=tensor))

    def _measure(self, first: memoryview) -> None:
        try:
            self._region_bytes = header_length(
                first[:LENGTH_BYTES], file=self.path, file_size=self.size
            )
        except CorruptionError as error:
            self.stop(from_error(error))
        else:
            self.wants = max(self.wants, self._region_bytes)

    def _judge_header(self) -> None:
        try:
            header = parse_header(self._region, file=self.path)
        except CorruptionError as error:
            self.stop(from_error(error))
            return
        self._judge_identity(header)
        if self.is_whole:
            try:
                check_size(header.layout, self.size, self.path)
            except CorruptionError as error:
                self.stop(from_error(error))
                return
            self._names = {
                entry.begin: entry.spec.name
                for entry in header.layout.tensors
                if entry.end > entry.begin
            }
            self._data = DataCheck(header, file=self.path)

    def _judge_identity(self, header: ObjectHeader) -> None:
        uuid = self.rules.uuid
        if self.rules.against_itself:
            self.add(*identity(None, uuid, header.label, self.path))
            return
        wrong = list(identity(self.wanted, uuid, header.label, self.path))
        self.add(*wrong)
        expected, found = self.wanted.reference.digest, object_digest(self._region)
        if not wrong and found != expected:
            self.add(damage("another object stands here: digest of the header", self.path, 0,
                            expected=expected, found=found))  # fmt: skip
