"""The insides of one open store, shared by the operations on it.

A session owns the state, the open end of the log, the slots and the poison. `transaction` and
`snapshot` build records and objects and hand them to `publish`, which is the one place where the
order of the commit protocol stands. Everything that changes the store holds `lock`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shardstore.buffers import Buffer, BufferPool
from shardstore.errors import (
    ClosedError,
    CorruptionError,
    PoisonedError,
    ReadOnlyError,
    StepMovedOnError,
    StorageError,
)
from shardstore.format.layout import ObjectHeader, ObjectLayout, head_digest, object_digest
from shardstore.format.manifest import ObjectRef, Part, SnapshotInfo
from shardstore.format.names import OBJECTS_DIRECTORY, slot_file
from shardstore.fs.calls import close_quietly, storage_error
from shardstore.fs.protocol import File, FileSystem
from shardstore.objects import PIECE_BYTES, ObjectReader
from shardstore.pins import Pins
from shardstore.slots import SlotTable
from shardstore.wal.reader import list_segments
from shardstore.wal.state import State
from shardstore.wal.writer import (
    COMMITS_PER_SEGMENT,
    PREWRITE_BYTES,
    SEGMENT_BYTES,
    Predecessor,
    SegmentWriter,
    cut_zeros,
    make_segment,
)

Trace = Callable[[str, Mapping[str, Any]], None]
"""Called with an event's name and fields, on the thread that acts, before it acts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What may differ between openings of the same store."""

    prewrite_bytes: int = PREWRITE_BYTES
    """Zeros written ahead of the log's end."""
    commits_per_segment: int = COMMITS_PER_SEGMENT
    segment_bytes: int = SEGMENT_BYTES
    """A segment that is longer than this, or holds that many commits, is succeeded."""
    trace: Trace | None = None


@dataclass(slots=True, kw_only=True)
class WrittenObject:
    """An object in its slot, not yet synced and in no manifest."""

    reference: ObjectRef
    file: File


class Source(Protocol):
    """The commit (or snapshot) that an object is read for."""

    @property
    def seq(self) -> int: ...
    @property
    def step(self) -> int: ...


class Session:
    """See the module's docstring. `writer` and `slots` are None in a session that reads."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        *,
        uuid: str,
        state: State,
        settings: Settings,
        opening: Mapping[str, Any],
    ) -> None:
        self.fs = fs
        self.root = root
        self.uuid = uuid
        self.state = state
        self.settings = settings
        self.opening = opening
        self.epoch = int(opening["epoch"])
        self.pool = BufferPool()
        self.objects = ObjectReader(fs, root)
        self.pins = Pins(fs, root)
        self.lock = threading.RLock()
        self.writer: SegmentWriter | None = None
        self.slots: SlotTable | None = None
        self.refresh: Callable[[], State] | None = None
        """Re-reads the log; only in sessions that read."""
        self._counter = 0
        self._poison: BaseException | None = None
        self._closed = False
        self._process = fs.process()[0]

    # ------------------------------------------------------------------ checks

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"store {self.root} is closed")
        if self.fs.process()[0] != self._process:
            raise ClosedError(f"store {self.root} was opened by the parent process; open it again")

    def check_writable(self) -> tuple[SegmentWriter, SlotTable]:
        """The writer and the slots, or the reason why nothing may be written."""
        self.check_open()
        if self._poison is not None:
            raise PoisonedError(
                f"store {self.root} refuses work since an append or sync failed "
                f"({self._poison}); close it and open it again"
            ) from self._poison
        if self.writer is None or self.slots is None:
            raise ReadOnlyError(f"store {self.root} is open for reading; open it with mode='r+'")
        return self.writer, self.slots

    def trace(self, event: str, **fields: Any) -> None:
        if self.settings.trace is not None:
            self.settings.trace(event, fields)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def storage_error(self, doing: str, error: OSError, *, needed: int = 0) -> StorageError:
        """The store's error for one of the operating system's, with the space that there is."""
        return storage_error(self.fs, self.root, doing, error, needed=needed)

    # ------------------------------------------------------------------ objects

    def next_write_id(self) -> tuple[int, int]:
        self._counter += 1
        return self.epoch, self._counter

    def write_object(
        self, buffer: Buffer, layout: ObjectLayout, header: bytes, write: tuple[int, int]
    ) -> WrittenObject:
        """Put the header before the data and write the object into a free slot.

        The buffer stays the caller's.
        """
        size, digest = layout.total_bytes, object_digest(header)
        head = head_digest(buffer.view, layout.header_bytes)
        buffer.view[: layout.header_bytes] = header
        _, slots = self.check_writable()
        slot, create = slots.reserve(size)
        path = self.path(slot_file(slot))
        self.trace("stage", slot=slot, create=create, size=size)
        try:
            file = self.fs.open(path, "create" if create else "write", direct=True)
        except OSError as error:
            if not create:
                slots.release([slot])
            raise self.storage_error("opening a slot", error, needed=size) from error
        try:
            for at in range(0, size, PIECE_BYTES):
                file.pwrite(at, buffer.view[at : min(size, at + PIECE_BYTES)])
        except OSError as error:
            close_quietly(file)
            self._forget_failed(slot, create, path)
            raise self.storage_error("writing an object", error, needed=size) from error
        if create:
            slots.created(slot, size)
        reference = ObjectRef(slot, *write, size, digest, head, "raw")
        return WrittenObject(reference=reference, file=file)

    def _forget_failed(self, slot: int, create: bool, path: str) -> None:
        assert self.slots is not None
        if not create:
            self.slots.release([slot])
            return
        try:
            self.fs.unlink(path)
        except OSError:
            self.slots.retire(slot)

    def abandon(self, objects: Sequence[WrittenObject]) -> None:
        """Objects that will be in no manifest: their slots may be written again.

        Those of a commit that went through all the same (an interrupt came just after) stay.
        """
        needed = self.state.needed()
        for written in objects:
            close_quietly(written.file)
            if self.slots is not None and written.reference.slot not in needed:
                self.slots.release([written.reference.slot])

    def read_object(
        self, part: Part, reference: ObjectRef, source: Source, into: Buffer | None = None
    ) -> tuple[Buffer, ObjectHeader]:
        """Read and verify an object; a reader whose commit is gone gets StepMovedOnError."""
        self.check_open()
        self.trace("load", shard=part[0], part=part[1], slot=reference.slot)
        buffer = into or self.pool.acquire(reference.size)
        try:
            return buffer, self.objects.read(part, reference, source.step, buffer)
        except BaseException as error:
            if into is None:
                buffer.release()
            if isinstance(error, CorruptionError) and self._moved_on(source):
                raise self._moved_on_error(part, source) from error
            raise

    def _moved_on_error(self, part: Part, source: Source) -> StepMovedOnError:
        return StepMovedOnError(
            f"store {self.root}: step moved on while reading {part[0]!r}/{part[1]!r} of "
            f"step {source.step}; refresh the store and load again"
        )

    def read_header(self, part: Part, reference: ObjectRef, source: Source) -> ObjectHeader:
        """Read and verify an object's header region only."""
        self.check_open()
        try:
            return self.objects.read_header(part, reference, source.step)
        except CorruptionError as error:
            if self._moved_on(source):
                raise self._moved_on_error(part, source) from error
            raise

    def newest_state(self) -> State:
        """The state as the log has it now; the writer's own is always that."""
        if self.refresh is None:
            return self.state
        try:
            return self.refresh()
        except OSError as error:
            raise self.storage_error("reading the log", error) from error

    def _moved_on(self, source: Source) -> bool:
        """Whether the commit is kept no longer. In a writer another thread may have moved on."""
        state = self.newest_state()
        if isinstance(source, SnapshotInfo):  # its manifest object goes with its name
            return state.snapshots.get(source.name) != source
        kept = {*state.commits, *(snapshot.seq for snapshot in state.snapshots.values())}
        return source.seq >= 0 and source.seq not in kept

    # ------------------------------------------------------------------ the protocol

    def publish(
        self, make: Callable[[int], Mapping[str, Any]], objects: Sequence[WrittenObject]
    ) -> int:
        """Make one change durable; returns its record's sequence number.

        `make(seq)` gives the record. The order of the steps is the protocol (docs/design.md): sync
        the slots written, their directory where a name is new, append, sync the log (the commit
        point), swap the state, free. Raises StorageError where nothing happened and the caller
        has to abandon `objects`; PoisonedError where only the next opening can tell.
        """
        self.check_writable()
        self._roll_if_due()
        writer, slots = self.check_writable()
        self._sync_objects(objects, slots)
        seq = writer.seq + 1
        record = make(seq)
        try:
            prepared = writer.prepare(record)
        except OSError as error:
            raise self.storage_error("growing the log", error, needed=PREWRITE_BYTES) from error
        after = self.state.copy()
        after.apply(record, prepared.chain)
        try:
            self.trace("append", seq=seq)
            writer.append(prepared)
            self.trace("sync", seq=seq)
            writer.sync()
            self._swap(after, objects)
        except BaseException as error:
            self.poison(error)
            if not isinstance(error, OSError):
                raise
            raise PoisonedError(
                f"appending to {writer.path} failed ({error.strerror}); whether record {seq} "
                "is durable is decided by the next opening: close the store and open it again"
            ) from error
        return seq

    def poison(self, error: BaseException) -> None:
        self._poison = error

    def _sync_objects(self, objects: Sequence[WrittenObject], slots: SlotTable) -> None:
        self.trace("sync_objects", count=len(objects))
        for written in objects:
            try:
                written.file.datasync()
            except OSError as error:
                slots.retire(written.reference.slot)
                raise self.storage_error("syncing an object", error) from error
        if slots.unsynced(written.reference.slot for written in objects):
            try:
                self.fs.sync_directory(self.path(OBJECTS_DIRECTORY))
            except OSError as error:
                raise self.storage_error("syncing a directory", error) from error
            slots.directory_synced()

    def _swap(self, after: State, objects: Sequence[WrittenObject]) -> None:
        assert self.slots is not None
        freed = sorted(self.state.needed() - after.needed())
        self.state = after
        for written in objects:
            close_quietly(written.file)
        if freed:
            self.trace("slot_freed", slots=freed)
        self.slots.release(freed)

    def _roll_if_due(self) -> None:
        assert self.writer is not None
        old = self.writer
        settings = self.settings
        if old.commits < settings.commits_per_segment and old.offset < settings.segment_bytes:
            return
        self.trace("roll", segment=old.index + 1)
        opening = {
            **self.opening,
            "reason": "roll",
            "abandoned": None,
            "time": self.fs.now(),
            "state": self.state.to_json(),
        }
        try:
            self.writer = make_segment(
                self.fs,
                self.root,
                uuid=self.uuid,
                predecessor=Predecessor(
                    index=old.index, cut=old.offset, seq=old.seq, chain=old.chain
                ),
                opening=opening,
                prewrite=self.settings.prewrite_bytes,
            )
        except OSError as error:
            if self._may_be_visible(old.index + 1):
                self.poison(error)
            raise self.storage_error("starting a segment of the log", error) from error
        close_quietly(old)
        cut_zeros_quietly(self.fs, self.root, old.index)

    def _may_be_visible(self, index: int) -> bool:
        try:
            return index in list_segments(self.fs, self.root)
        except OSError:
            return True

    def close(self) -> None:
        """Close files; the lock is the caller's to release."""
        if self.writer is not None and not self._closed:
            close_quietly(self.writer)
        self.pins.close()
        self._closed = True


def cut_zeros_quietly(fs: FileSystem, root: str, index: int) -> None:
    """Give back the zeros of a sealed segment; where that fails they only take space."""
    try:
        cut_zeros(fs, root, index)
    except OSError:
        return
