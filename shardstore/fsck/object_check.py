"""Checks the objects that a state needs: file, size, header, labels; deep: every byte.

An object whose header agrees with the digest in its manifest is the one that was committed; one
that is whole but another is told from one that is damaged. Where the log itself is damaged an
object may have been written again since, so that it is then checked against itself only.
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
from shardstore.format.manifest import write_id
from shardstore.format.names import slot_file
from shardstore.fs.protocol import File, FileSystem
from shardstore.fsck.findings import Finding, Wanted, damage, from_error, unreadable

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

    def check(self, wanted: Wanted) -> list[Finding]:
        """All that is wrong with one object."""
        path = f"{self._root}/{slot_file(wanted.reference.slot)}"
        try:
            with self._opened(path) as file:
                findings = list(self._check_file(wanted, path, file))
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
        """Whether the object, whole as it is, is the one that the manifest means."""
        reference, label = wanted.reference, header.label
        write = write_id(reference.epoch, reference.counter)
        checks = [("store", self._uuid or label.store, label.store)]
        if not self._against_itself:
            checks += [
                ("names", f"{wanted.part[0]!r} {wanted.part[1]!r}",
                 f"{label.shard!r} {label.part!r}"),
                ("write id", write, label.write),
            ]  # fmt: skip
        wrong = False
        for what, expected, found in checks:
            if expected != found:
                wrong = True
                yield damage(f"another object stands here: {what} (its step is {label.step})",
                             path, 8, expected=expected, found=found)  # fmt: skip
        digest = object_digest(region)
        if not wrong and not self._against_itself and digest != reference.digest:
            yield damage("another object stands here: digest of the header", path, 0,
                         expected=reference.digest, found=digest)  # fmt: skip

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
