"""Checks objects of the formats safetensors and pt: by the digests in their reference.

Quick: size and beginning, which holds the label; deep: the whole file. What a file says of itself
tells which tensor is damaged, or whose object stands there. No check needs torch: pt files are
looked into, not loaded. Neither format says before its end what it holds, so that one object after
the other is put together in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from shardstore.buffers import Buffer, BufferPool
from shardstore.codecs import foreign
from shardstore.errors import CorruptionError
from shardstore.format.digests import digest, short_digest
from shardstore.format.layout import HEAD_BYTES
from shardstore.fsck.findings import Finding, Wanted, damage, from_error
from shardstore.fsck.identity import identity
from shardstore.fsck.object_base import ObjectCheck, Rules


class ForeignCheck(ObjectCheck):
    """One object; memory is its size where it is looked at as a whole."""

    def __init__(
        self,
        wanted: Wanted,
        path: str,
        rules: Rules,
        advance: Callable[[int], None],
        found: list[tuple[Wanted, Finding]],
        pool: BufferPool,
    ) -> None:
        super().__init__(wanted, path, rules, advance, found)
        self._pool = pool
        self._buffer: Buffer | None = None
        self._is_complete = False

    def _begin(self) -> None:
        if self.size == self.wanted.reference.size or self.rules.against_itself:
            self.wants = self.size if self.rules.deep else min(self.size, HEAD_BYTES)
            self._is_complete = not self.wants

    def _take(self, at: int, piece: memoryview) -> None:
        if self._buffer is None:
            self._buffer = self._pool.acquire(self.wants)
        end = at + len(piece)
        self._buffer.view[at:end] = piece
        self._is_complete = end == self.wants

    def _end(self) -> None:
        buffer, self._buffer = self._buffer, None
        if not self._is_complete:
            return
        if buffer is None:
            self.add(*self._of_data(memoryview(b"")))
            return
        try:
            self.add(*self._of_data(buffer.view))
        finally:
            buffer.release()

    def _of_data(self, data: memoryview) -> Iterator[Finding]:
        """`data` is the whole file in a deep check, else its beginning."""
        reference, path = self.wanted.reference, self.path
        named: list[Finding] = []
        try:
            contents = foreign.look(reference.format, data, file=path, file_size=self.size)
        except CorruptionError as error:
            named.append(from_error(error))
        else:
            if contents is not None:
                meant = None if self.rules.against_itself else self.wanted
                named += identity(meant, self.rules.uuid, contents.label, path)
            if contents is not None and self.rules.deep:
                for name, wrong in contents.damage(data, file=path):
                    named.append(replace(from_error(wrong), tensor=name))
        yield from named
        if named or self.rules.against_itself:
            return
        what, expected, found = "beginning", reference.head, short_digest(data[:HEAD_BYTES])
        if self.rules.deep and found == expected:
            what, expected, found = "file", reference.digest, digest(data)
        if found != expected:
            yield damage(f"damaged, or another object: digest of the {what}", path, 0,
                         expected=expected, found=found)  # fmt: skip
