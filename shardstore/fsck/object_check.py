"""Checks the objects that a state needs: file, size, header, labels; deep: every byte.

An object whose header agrees with the digest in its manifest is the one that was committed; one
that is whole but another is told from one that is damaged. Where the log itself is damaged an
object may have been written again since, so that it is then checked against itself only.
`foreign_check` does the same for the other storage formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from shardstore.buffers import BufferPool
from shardstore.errors import CorruptionError
from shardstore.format.layout import (
    ObjectHeader,
    find_damage,
    header_length,
    object_digest,
    parse_header,
)
from shardstore.format.names import RAW
from shardstore.fs.protocol import File, FileSystem
from shardstore.fsck.findings import Finding, Wanted, damage, from_error, unreadable
from shardstore.fsck.foreign_check import ForeignChecker
from shardstore.fsck.identity import identity

PIECE_BYTES = 16 * 1024 * 1024


class ObjectChecker:
    """Checks one object after the other; memory is that of the largest."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        *,
        uuid: str | None,
        deep: bool,
        advance: Callable[[int], None],
        against_itself: bool = False,
    ) -> None:
        self._fs = fs
        self._root = root
        self._uuid = uuid
        self._deep = deep
        self._advance = advance
        self._against_itself = against_itself
        self._pool = BufferPool()
        self._foreign = ForeignChecker(
            self._pool, uuid=uuid, deep=deep, advance=advance, against_itself=against_itself
        )

    def check(self, wanted: Wanted) -> list[Finding]:
        """All that is wrong with one object."""
        path = f"{self._root}/{wanted.reference.file}"
        try:
            with self._opened(path) as file:
                if wanted.reference.format == RAW:
                    findings = list(self._check_file(wanted, path, file))
                else:
                    findings = list(self._foreign.check(wanted, path, file))
        except OSError as error:
            findings = [unreadable(path, error)]
        return [wanted.about(finding) for finding in findings]

    @contextmanager
    def _opened(self, path: str) -> Iterator[File]:
        file = self._fs.open(path, "read")
        try:
            yield file
        finally:
            file.close()

    def _check_file(self, wanted: Wanted, path: str, file: File) -> Iterator[Finding]:
        reference, size = wanted.reference, file.size()
        if size != reference.size and not self._against_itself:
            yield damage("the file's length is wrong", path, min(size, reference.size),
                         expected=f"{reference.size} bytes", found=f"{size} bytes")  # fmt: skip
            if size < reference.size:
                return
        try:
            region = self._region(file, path, size)
        except CorruptionError as error:
            yield from_error(error)
            return
        header: ObjectHeader | None = None
        try:
            header = parse_header(region, file=path)
        except CorruptionError as error:
            yield from_error(error)
        else:
            yield from self._identity(wanted, path, region, header)
        if header is not None and (self._deep or wanted.whole):
            yield from self._data(path, size, header)

    def _region(self, file: File, path: str, size: int) -> bytearray:
        first = bytearray(8)
        count = file.pread(0, first)
        region = bytearray(header_length(first[:count], file=path, file_size=size))
        file.pread(0, region)
        return region

    def _identity(
        self, wanted: Wanted, path: str, region: bytearray, header: ObjectHeader
    ) -> Iterator[Finding]:
        if self._against_itself:
            yield from identity(None, self._uuid, header.label, path)
            return
        wrong = list(identity(wanted, self._uuid, header.label, path))
        yield from wrong
        expected, found = wanted.reference.digest, object_digest(region)
        if not wrong and found != expected:
            yield damage("another object stands here: digest of the header", path, 0,
                         expected=expected, found=found)  # fmt: skip

    def _data(self, path: str, size: int, header: ObjectHeader) -> Iterator[Finding]:
        buffer = self._pool.acquire(size)
        try:
            file = self._fs.open(path, "read", direct=buffer.aligned and size % 4096 == 0)
            try:
                for at in range(0, size, PIECE_BYTES):
                    piece = buffer.view[at : min(size, at + PIECE_BYTES)]
                    file.pread(at, piece)
                    self._advance(len(piece))
            finally:
                file.close()
            names = {entry.begin: entry.spec.name for entry in header.layout.tensors
                     if entry.end > entry.begin}  # fmt: skip
            for error in find_damage(header, buffer.view, file=path):
                tensor = names.get(error.offset or 0) if "padding" not in error.what else None
                yield replace(from_error(error), tensor=tensor)
        finally:
            buffer.release()
