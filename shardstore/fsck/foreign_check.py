"""Checks objects of the formats safetensors and pt: by the digests in their reference.

Quick: size and beginning, which holds the label; deep: the whole file. What a file says of itself
tells which tensor is damaged, or whose object stands there. No check needs torch: pt files are
looked into, not loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from shardstore.buffers import BufferPool
from shardstore.codecs import foreign
from shardstore.errors import CorruptionError
from shardstore.format.digests import digest, short_digest
from shardstore.format.layout import HEAD_BYTES
from shardstore.fs.protocol import File
from shardstore.fsck.findings import Finding, Wanted, damage, from_error
from shardstore.fsck.identity import identity

PIECE_BYTES = 16 * 1024 * 1024


class ForeignChecker:
    """Checks one object after the other; memory is that of the largest, where it is deep."""

    def __init__(
        self,
        pool: BufferPool,
        *,
        uuid: str | None,
        deep: bool,
        advance: Callable[[int], None],
        against_itself: bool,
    ) -> None:
        self._pool = pool
        self._uuid = uuid
        self._deep = deep
        self._advance = advance
        self._against_itself = against_itself

    def check(self, wanted: Wanted, path: str, file: File) -> Iterator[Finding]:
        """All that is wrong with one open file."""
        reference, size = wanted.reference, file.size()
        if size != reference.size and not self._against_itself:
            yield damage("the file's length is wrong", path, min(size, reference.size),
                         expected=f"{reference.size} bytes", found=f"{size} bytes")  # fmt: skip
            return
        buffer = self._pool.acquire(size if self._deep else min(size, HEAD_BYTES))
        try:
            data = buffer.view
            for at in range(0, len(data), PIECE_BYTES):
                piece = data[at : at + PIECE_BYTES]
                file.pread(at, piece)
                if self._deep:
                    self._advance(len(piece))
            yield from self._check_data(wanted, path, data, size)
        finally:
            buffer.release()

    def _check_data(
        self, wanted: Wanted, path: str, data: memoryview, size: int
    ) -> Iterator[Finding]:
        """`data` is the whole file in a deep check, else its beginning."""
        reference = wanted.reference
        named: list[Finding] = []
        try:
            contents = foreign.look(reference.format, data, file=path, file_size=size)
        except CorruptionError as error:
            named.append(from_error(error))
        else:
            if contents is not None:
                meant = None if self._against_itself else wanted
                named += identity(meant, self._uuid, contents.label, path)
            if contents is not None and self._deep:
                for name, wrong in contents.damage(data, file=path):
                    named.append(replace(from_error(wrong), tensor=name))
        yield from named
        if named or self._against_itself:
            return
        what, expected, found = "beginning", reference.head, short_digest(data[:HEAD_BYTES])
        if self._deep and found == expected:
            what, expected, found = "file", reference.digest, digest(data)
        if found != expected:
            yield damage(f"damaged, or another object: digest of the {what}", path, 0,
                         expected=expected, found=found)  # fmt: skip
