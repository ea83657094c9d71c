"""Staging: an object goes from tensors or a donated buffer into a slot, digested on the way.

The data's pieces are written as they are there; the first piece, with the header, comes last, once
the digests are known. Data that agree with the parent's object are not written at all: its object
is named again (the manifest's digest of the first 256 KiB says when comparing is worth it).
Nothing here is in a manifest; `pipeline` waits, syncs and names. What was staged and neither
`landed` nor was abandoned is `out`: after an interrupt its owner may have lost it.

Contract: an object's buffer is not written to while `pieces` are in flight; its slot goes back to
the pool only when all its I/O has ended (rule 8). Errors of transfers are kept in the object and
raised by `wait`, which is called before anything depends on them.
In memory an object has the raw layout; of other formats than raw the whole file is made of it once
the digests are known, and unchanged data are not looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shardstore.buffers import Buffer, BufferPool
from shardstore.codecs import foreign, raw
from shardstore.context import Context
from shardstore.errors import ShardStoreError
from shardstore.format.layout import (
    HEAD_BYTES,
    ObjectHeader,
    ObjectLabel,
    ObjectLayout,
    build_header,
    head_digest,
    object_digest,
    plan_layout,
)
from shardstore.format.manifest import ObjectRef, Part
from shardstore.format.names import RAW, SNAPSHOT_SHARD
from shardstore.jobs import Once
from shardstore.slot_files import SlotFiles
from shardstore.slots import SlotTable
from shardstore.staged import StagedObject, Twin, give_up, heads_agree, settle

Label = Callable[[tuple[int, int]], ObjectLabel]
"""Given the object's write id, who it is; asked for when all commits before it are known."""


class Staging:
    """Writes objects of one store. Callers stage from one thread at a time."""

    def __init__(self, context: Context, slots: SlotTable, pool: BufferPool) -> None:
        self._context = context
        self._pool = pool
        self.piece_bytes = context.settings.piece_bytes
        self.files = SlotFiles(context, slots)
        self._live: dict[int, StagedObject] = {}
        """Objects that have a buffer, oldest first."""
        self._out: dict[int, StagedObject] = {}

    def copy(
        self,
        part: Part,
        layout: ObjectLayout,
        tensors: Mapping[str, Any],
        buffer: Buffer,
        label: Label,
        twin: Twin | None,
    ) -> StagedObject:
        """Stage tensors, which may change on return. The buffer becomes the object's."""
        self.files.limit()
        staged = self._new(part, layout, buffer)
        twin = twin if staged.storage_format == RAW else None
        feed = _Feed(self, staged, twin)
        try:
            digests = raw.fill(buffer.view, layout, tensors, feed.filled)
            staged.finished = Once(
                self._finish, staged, digests, label, twin if feed.suspect else None
            )
            self._context.workers.finish(staged.finished)
            self._check(staged)
        except BaseException:
            self.abandon([staged])
            raise
        self._hand_over(staged)
        return staged

    def donate(
        self,
        part: Part,
        layout: ObjectLayout,
        buffer: Buffer,
        label: Label,
        twin: Twin | None,
        *,
        keep: bool = True,
    ) -> StagedObject:
        """Stage what stands in a buffer, which becomes the object's. Returns at once.

        Without `keep` nobody reads the buffer afterwards: somebody may still write to it.
        """
        self.files.limit()
        staged = self._new(part, layout, buffer, keep=keep)
        twin = twin if staged.storage_format == RAW else None
        try:
            staged.finished = Once(self._digest, staged, label, twin)
            self._context.workers.finish(staged.finished)
            self._check(staged)
        except BaseException:
            self.abandon([staged])
            raise
        self._hand_over(staged)
        return staged

    def file(
        self,
        part: Part,
        storage_format: str,
        header: ObjectHeader,
        write: tuple[int, int],
        pieces: list[memoryview],
    ) -> StagedObject:
        """Stage a whole file of another format than raw, which the caller has made."""
        self.files.limit()
        staged = self._note(StagedObject(
            part=part, layout=header.layout, buffer=None, storage_format=storage_format,
            header=header,
        ))  # fmt: skip
        try:
            self._write_file(staged, write, pieces)
            self._check(staged)
        except BaseException:
            self.abandon([staged])
            raise
        self.files.note(staged)
        return staged

    def place(self, part: Part, reference: ObjectRef, buffer: Buffer) -> StagedObject:
        """Stage an object of another store of this lineage, byte for byte: the buffer, which
        becomes the object's, holds the file; only the slot is ours. Returns at once."""
        self.files.limit()
        staged = self._note(StagedObject(
            part=part, layout=plan_layout([], *part), buffer=buffer, keep=False,
            storage_format=reference.format, size=reference.size,
        ))  # fmt: skip
        try:
            self.files.open(staged)
            for begin in range(0, reference.size, self.piece_bytes):
                data = buffer.view[begin : min(reference.size, begin + self.piece_bytes)]
                self._submit_bytes(staged, begin, data)
            self._check(staged)
        except BaseException:
            self.abandon([staged])
            raise
        staged.reference = reference._replace(slot=staged.slot)
        self.files.note(staged)
        return staged

    def wait(self, staged: StagedObject) -> None:
        """Until the object is in its slot; raises StorageError where it could not be written: its
        owner then abandons it."""
        staged.finished.result()
        for piece in staged.pieces:
            piece.result()
        self._check(staged)

    def abandon(self, objects: Iterable[StagedObject]) -> None:
        """Objects that will be in no manifest: when their I/O has ended their slots are free."""
        for staged in objects:
            give_up(staged)
            self.let_go(staged)
            self.files.give_back(staged)
            self.landed(staged)

    def landed(self, staged: StagedObject) -> None:
        """The object is in the log, or given up: it is nobody's any more."""
        with self._context.mutex:
            self._out.pop(id(staged), None)

    def out(self) -> list[StagedObject]:
        """Objects on their way."""
        with self._context.mutex:
            return list(self._out.values())

    def let_go(self, staged: StagedObject) -> None:
        """Release the object's buffer. The caller has waited for its I/O."""
        buffer = self.take_buffer(staged)
        if buffer is not None:
            buffer.release()

    def share(self, staged: StagedObject) -> tuple[Buffer, ObjectHeader] | None:
        """The object for reading, from memory; the buffer is the caller's to release. Waits for the
        digests. None where its buffer was let go: the object is in its slot then."""
        staged.known()
        with self._context.mutex:
            if staged.buffer is not None and staged.keep:
                assert staged.header is not None
                return self._pool.share(staged.buffer), staged.header
        self.wait(staged)
        return None

    def take_buffer(self, staged: StagedObject) -> Buffer | None:
        """The object's buffer, now the caller's; None where it was let go."""
        with self._context.mutex:
            buffer, staged.buffer = staged.buffer, None
            self._live.pop(id(staged), None)
        return buffer

    def make_room(self) -> bool:
        """Let go of the buffer staged longest ago, once it is written; False where none is."""
        with self._context.mutex:
            staged = next(iter(self._live.values()), None)
        if staged is None:
            return False
        settle(staged)
        self.let_go(staged)
        return True

    # ------------------------------------------------------------------ insides

    def _new(
        self, part: Part, layout: ObjectLayout, buffer: Buffer, *, keep: bool = True
    ) -> StagedObject:
        storage_format = self._context.settings.storage_format
        if part[0] == SNAPSHOT_SHARD:
            storage_format = RAW
        try:
            foreign.check_available(storage_format)
        except ShardStoreError:
            buffer.release()
            raise
        size = layout.total_bytes if storage_format == RAW else 0
        return self._note(StagedObject(
            part=part, layout=layout, buffer=buffer, storage_format=storage_format, size=size,
            keep=keep,
        ))  # fmt: skip

    def _note(self, staged: StagedObject) -> StagedObject:
        with self._context.mutex:
            self._out[id(staged)] = staged
        return staged

    def _hand_over(self, staged: StagedObject) -> None:
        """From here on the buffer may be let go and the file synced and closed, once `finished` and
        the pieces are over. Not earlier: the file would be closed while it is being filled."""
        self.files.note(staged)
        with self._context.mutex:
            if staged.buffer is not None:
                self._live[id(staged)] = staged

    def submit(self, staged: StagedObject, begin: int, end: int) -> None:
        """Write a stretch of a raw file, whole pieces but for the last."""
        assert staged.buffer is not None
        self._submit_bytes(staged, begin, staged.buffer.view[begin:end])

    def _submit_bytes(self, staged: StagedObject, begin: int, data: memoryview) -> None:
        if staged.error is None:
            job = Once(self._write_piece, staged, begin, data)
            staged.pieces.append(job)
            self._context.workers.io(job)

    def _write_piece(self, staged: StagedObject, begin: int, data: memoryview) -> None:
        if staged.error is not None:
            return
        assert staged.file is not None
        try:
            staged.file.pwrite(begin, data)
        except OSError as error:
            staged.error = error

    def _digest(self, staged: StagedObject, label: Label, twin: Twin | None) -> None:
        """A donated object: on the finishing thread, its pieces go out while it is digested."""
        assert staged.buffer is not None
        view, layout = staged.buffer.view, staged.layout
        suspect = twin is not None and heads_agree(view, layout, twin)
        if not suspect:
            self._submit_tail(staged)
        digests = raw.digests_of(view, layout)
        self._finish(staged, digests, label, twin if suspect else None)

    def _submit_tail(self, staged: StagedObject) -> None:
        if staged.storage_format != RAW:
            return  # its bytes are made once the digests are known
        self.files.open(staged)
        piece, total = self.piece_bytes, staged.layout.total_bytes
        for begin in range(self.first_piece_bytes(staged), total, piece):
            self.submit(staged, begin, min(total, begin + piece))

    def _finish(
        self, staged: StagedObject, digests: list[str], label: Label, suspect: Twin | None
    ) -> None:
        """The header, the reference and the first piece; on the finishing thread."""
        layout = staged.layout
        assert staged.buffer is not None
        if staged.storage_format != RAW:
            self._finish_foreign(staged, digests, label)
            return
        if suspect is not None:
            try:
                header = suspect.header()
            except ShardStoreError:  # then it is no reason to keep it
                header = None
            if header and header.layout == layout and list(header.digests) == digests:
                region = build_header(layout, header.label, digests)
                staged.buffer.view[: layout.header_bytes] = region  # as the file has it
                staged.reused, staged.header = True, header
                staged.reference = suspect.reference()
                return
            self._submit_tail(staged)
        self.files.open(staged)
        write = self._context.next_write_id()
        told = label(write)
        region = build_header(layout, told, digests)
        view = staged.buffer.view
        view[: layout.header_bytes] = region
        head = head_digest(view, layout.header_bytes)
        size, digest = layout.total_bytes, object_digest(region)
        staged.reference = ObjectRef(staged.slot, *write, size, digest, head, RAW)
        staged.header = ObjectHeader(layout=layout, label=told, digests=tuple(digests))
        self.submit(staged, 0, self.first_piece_bytes(staged))

    def _finish_foreign(self, staged: StagedObject, digests: list[str], label: Label) -> None:
        """The whole file of another format; on the finishing thread."""
        assert staged.buffer is not None
        layout, storage_format = staged.layout, staged.storage_format
        write = self._context.next_write_id()
        told = label(write)
        pieces = foreign.encode(storage_format, staged.buffer.view, layout, told, digests)
        staged.header = ObjectHeader(layout=layout, label=told, digests=tuple(digests))
        self._write_file(staged, write, pieces)

    def _write_file(
        self, staged: StagedObject, write: tuple[int, int], pieces: list[memoryview]
    ) -> None:
        staged.size = sum(map(len, pieces))
        self.files.open(staged)
        begin = 0
        for piece in pieces:
            for at in range(0, len(piece), self.piece_bytes):
                self._submit_bytes(staged, begin + at, piece[at : at + self.piece_bytes])
            begin += len(piece)
        digest, head = foreign.file_digests(pieces)
        size, storage_format = staged.size, staged.storage_format
        staged.reference = ObjectRef(staged.slot, *write, size, digest, head, storage_format)

    def first_piece_bytes(self, staged: StagedObject) -> int:
        """The piece that waits for the digests: the header and what follows it."""
        piece = self.piece_bytes
        return min(max(piece, staged.layout.header_bytes), staged.layout.total_bytes)

    def _check(self, staged: StagedObject) -> None:
        """Raise the error of a transfer."""
        error = staged.error
        if error is None:
            return
        doing = "writing an object" if staged.slot >= 0 else "opening a slot"
        raise self._context.storage_error(doing, error, needed=staged.size) from error


class _Feed:
    """Writes pieces of an object while it is filled, once it is known to differ from its twin."""

    def __init__(self, staging: Staging, staged: StagedObject, twin: Twin | None) -> None:
        self._staging = staging
        self._staged = staged
        self._twin = twin
        self._sent = staging.first_piece_bytes(staged)
        self._decided = twin is None
        self.suspect = False

    def filled(self, end: int) -> None:
        """The file is complete from its header to `end`."""
        staged = self._staged
        if staged.storage_format != RAW:
            return
        layout, buffer = staged.layout, staged.buffer
        assert buffer is not None
        if not self._decided:
            if end < min(layout.header_bytes + HEAD_BYTES, layout.total_bytes):
                return
            assert self._twin is not None
            self.suspect = heads_agree(buffer.view, layout, self._twin)
            self._decided = True
        if self.suspect:
            return
        piece = self._staging.piece_bytes
        while self._sent < end and (end - self._sent >= piece or end == layout.total_bytes):
            self._staging.files.open(staged)
            stop = min(end, self._sent + piece)
            self._staging.submit(staged, self._sent, stop)
            self._sent = stop
