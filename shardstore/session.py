"""The insides of one open store, shared by the operations on it.

A session owns what its parts share (`context`), the host's buffers and, in a writer, slots, staging
and the pipeline. Reading stands here; writing goes through `staging` and `pipeline`. Everything
that changes the store holds `lock`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from shardstore import foreign
from shardstore.buffers import Buffer, BufferPool
from shardstore.commit_protocol import CommitProtocol
from shardstore.context import Context, Settings
from shardstore.errors import (
    CorruptionError,
    ReadOnlyError,
    ShardStoreError,
    StepMovedOnError,
)
from shardstore.format.layout import ObjectHeader
from shardstore.format.manifest import ObjectRef, Part, SnapshotInfo
from shardstore.format.names import ARCHIVE, RAW, SNAPSHOT_SHARD
from shardstore.fs.protocol import FileSystem
from shardstore.host_cache import HostCache, default_budget_bytes
from shardstore.jobs import Job
from shardstore.objects import ObjectReader
from shardstore.pins import Pins
from shardstore.pipeline import Pipeline
from shardstore.slots import SlotTable
from shardstore.staged import StagedObject
from shardstore.staging import Staging
from shardstore.upkeep import Upkeep
from shardstore.wal.state import State
from shardstore.wal.writer import SegmentWriter


class Source(Protocol):
    """The commit (or snapshot) that an object is read for."""

    @property
    def seq(self) -> int: ...
    @property
    def step(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Steady:
    """Stands for a commit that cannot move on: one that has no record yet, or that is pinned."""

    step: int
    seq: int = -1


class Session:
    """See the module's docstring. Without `start_writing` a session reads."""

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
        self.context = Context(fs, root, uuid=uuid, epoch=int(opening["epoch"]), settings=settings)
        self.fs = fs
        self.root = root
        self.uuid = uuid
        self.settings = settings
        self.opening = opening
        self.trace = self.context.trace
        self.path = self.context.path
        self.storage_error = self.context.storage_error
        self.check_open = self.context.check_open
        self.next_write_id = self.context.next_write_id
        budget = settings.host_budget_bytes
        if budget is None:
            budget = default_budget_bytes()
        self.pool = BufferPool(budget)
        self.cache = HostCache(self.pool, budget)
        self.objects = ObjectReader(fs, root, self.context.workers, settings.piece_bytes)
        self.pins = Pins(fs, root)
        self.refresh: Callable[[], State] | None = None
        """Re-reads the log."""
        self.read_durable: Callable[[], State] | None = None
        """Re-reads what of the log survives a power cut. Both only in sessions that read."""
        self._seen = state
        self._slots: SlotTable | None = None
        self._staging: Staging | None = None
        self._pipeline: Pipeline | None = None
        self._ahead: dict[ObjectRef, Job[None]] = {}
        """Objects that are being prefetched."""

    def start_writing(self, writer: SegmentWriter, slots: SlotTable, upkeep: Upkeep) -> None:
        """Make this a session that writes: called once, when the new segment is visible."""
        self._slots = slots
        self._staging = Staging(self.context, slots, self.pool)
        self.cache.make_room = self._staging.make_room
        protocol = CommitProtocol(
            self.context,
            staging=self._staging,
            slots=slots,
            cache=self.cache,
            writer=writer,
            state=self._seen,
            opening=self.opening,
            upkeep=upkeep,
        )
        self._pipeline = Pipeline(self.context, self._staging, protocol)

    @property
    def lock(self) -> threading.RLock:
        """Held by whoever changes the store. Never by a forked child, which could wait for ever
        for a thread that is not there."""
        self.context.check_process()
        return self.context.calls

    # ------------------------------------------------------------------ where it stands

    @property
    def is_writer(self) -> bool:
        return self._pipeline is not None

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline, or the reason why nothing may be written."""
        self.check_open()
        self.context.check_sound()
        if self._pipeline is None:
            raise ReadOnlyError(f"store {self.root} is open for reading; open it with mode='r+'")
        return self._pipeline

    @property
    def slots(self) -> SlotTable:
        assert self._slots is not None
        return self._slots

    @property
    def staging(self) -> Staging:
        assert self._staging is not None
        return self._staging

    @property
    def state(self) -> State:
        """The newest state of this process: in a writer with what is in flight, once prepared."""
        self.context.check_process()
        if self._pipeline is None:
            return self._seen
        if not self.context.closed:
            self._pipeline.settle()
        return self._pipeline.protocol.prepared

    @property
    def durable_state(self) -> State:
        """What survives a power cut."""
        self.context.check_process()
        if self._pipeline is not None:
            return self._pipeline.protocol.durable
        return self._look(self.read_durable)

    @property
    def durable_seq(self) -> int:
        """The newest record that survives a power cut."""
        if self._pipeline is not None:
            return self._pipeline.protocol.durable.seq
        return self._seen.durable_seq

    def check_writable(self) -> None:
        """Raises what stands in the way of writing: also a failure in the background, once."""
        self.pipeline.surface()

    def look_again(self) -> None:
        """Take over the state that the log has now; in sessions that read."""
        self._seen = self.newest_state()

    def newest_state(self) -> State:
        """The state as the log has it now; the writer's own is always that."""
        return self._look(self.refresh)

    def _look(self, read: Callable[[], State] | None) -> State:
        if read is None:
            return self.state
        try:
            return read()
        except OSError as error:
            raise self.storage_error("reading the log", error) from error

    # ------------------------------------------------------------------ writing

    def reclaim(self) -> None:
        """What an interrupt took from its owner goes back. No transaction is open, and the caller
        holds `lock`."""
        assert self._pipeline is not None and self._staging is not None
        if self._pipeline.newest() is None:
            self._pipeline.protocol.forget_leaving()
        flying = self._pipeline.objects()  # first: what lands meanwhile is still among these
        self.abandon([staged for staged in self._staging.out() if id(staged) not in flying])
        with self.context.mutex:
            used = self._pipeline.protocol.needed()
            self.slots.recount(used | {staged.slot for staged in self._staging.out()})

    def abandon(self, objects: Iterable[StagedObject]) -> None:
        """Objects that will be in no manifest: their slots may be written again.

        Those of a commit that went through all the same, or is about to (an interrupt came just
        after it was begun), stay.
        """
        assert self._pipeline is not None and self._staging is not None
        flying = self._pipeline.objects()
        ahead = [staged for staged in objects if id(staged) not in flying]
        needed = self._pipeline.protocol.needed()
        for staged in ahead:
            if staged.slot in needed:
                self._staging.let_go(staged)
            else:
                self._staging.abandon([staged])

    # ------------------------------------------------------------------ reading

    def read_object(
        self, part: Part, reference: ObjectRef, source: Source, into: Buffer | None = None
    ) -> tuple[Buffer, ObjectHeader]:
        """An object, verified, for reading: from the host's cache or the disk.

        A reader whose commit is gone gets StepMovedOnError. With `into` the bytes are there;
        without, the buffer is shared with the cache and the caller's to release.
        """
        self._begin_load(part, reference)
        found = self._share(reference)
        if found is None:
            buffer, header = self._read(part, reference, source, into)
            if into is None and part[0] != SNAPSHOT_SHARD:
                self.cache.put(reference, self.pool.share(buffer), header)
            return buffer, header
        if into is None:
            return found
        into.view[: found[0].size] = found[0].view
        found[0].release()
        return into, found[1]

    def read_for_change(
        self, part: Part, reference: ObjectRef, source: Source
    ) -> tuple[Buffer, ObjectHeader]:
        """An object, verified, in a buffer of the caller's own."""
        self._begin_load(part, reference)
        taken = self.cache.take(reference)
        if taken is not None:
            return taken
        shared = self._share(reference)
        if shared is not None:
            return self.copy_of(shared[0]), shared[1]
        return self._read(part, reference, source)

    def _share(self, reference: ObjectRef) -> tuple[Buffer, ObjectHeader] | None:
        """What is cached or in flight; None where the object has to be read, and can be."""
        found = self.cache.share(reference)
        staged = None if found or self._pipeline is None else self._pipeline.find(reference)
        return found if staged is None else self.staging.share(staged)

    def copy_of(self, shared: Buffer) -> Buffer:
        """A buffer of the caller's own with the same bytes; the other one is released."""
        buffer = self.cache.acquire(shared.size)
        buffer.view[:] = shared.view
        shared.release()
        return buffer

    def size_in_memory(self, part: Part, reference: ObjectRef, source: Source) -> int:
        """A raw object is in memory what it is on disk; others say it in their header."""
        if reference.format == RAW:
            return reference.size
        return self.read_header(part, reference, source).layout.total_bytes

    def prefetch(self, wanted: Iterable[tuple[Part, ObjectRef, Source]]) -> int:
        """Begin to load objects into the cache, as many as the budget has room for; how many of
        them are on their way or there. Of other formats than raw nothing is loaded ahead."""
        self.check_open()
        for done in [key for key, job in list(self._ahead.items()) if job.done()]:
            self._ahead.pop(done, None)
        count = 0
        for part, reference, source in wanted:
            if reference.format != RAW:
                continue
            if not self._is_near(reference):
                buffer = self.cache.acquire_ahead(reference.size)
                if buffer is None:
                    break
                self._ahead[reference] = self.context.workers.load(
                    self._load_ahead, part, reference, source, buffer
                )
            count += 1
        return count

    def _is_near(self, reference: ObjectRef) -> bool:
        """Whether the object is in memory, or on its way there."""
        flying = self._pipeline is not None and self._pipeline.find(reference) is not None
        return flying or reference in self._ahead or self.cache.holds(reference)

    def read_header(self, part: Part, reference: ObjectRef, source: Source) -> ObjectHeader:
        """Read and verify an object's header region only."""
        self.check_open()
        step, acquire = source.step, self.cache.acquire
        staged = None if self._pipeline is None else self._pipeline.find(reference)
        if staged is not None and staged.header is not None:
            return staged.header
        try:
            if reference.format != RAW:
                return foreign.read_header(self.objects, part, reference, step, acquire)
            return self.objects.read_header(part, reference, step)
        except CorruptionError as error:
            if self._moved_on(source, reference):
                raise self._moved_on_error(part, source) from error
            raise

    def _read(
        self, part: Part, reference: ObjectRef, source: Source, into: Buffer | None = None
    ) -> tuple[Buffer, ObjectHeader]:
        """An object from the disk, in `into` or a new buffer."""
        step, acquire = source.step, self.cache.acquire
        try:
            if reference.format != RAW:
                return foreign.read(self.objects, part, reference, step, into, acquire)
            return foreign.read_raw(self.objects, part, reference, step, into, acquire)
        except CorruptionError as error:
            if self._moved_on(source, reference):
                raise self._moved_on_error(part, source) from error
            raise

    def _load_ahead(self, part: Part, reference: ObjectRef, source: Source, buffer: Buffer) -> None:
        try:
            header = self.objects.read(part, reference, source.step, buffer)
        except ShardStoreError:  # whoever asks for the object meets the fault again
            buffer.release()
        else:
            self.cache.put(reference, buffer, header, ahead=True)

    def _begin_load(self, part: Part, reference: ObjectRef) -> None:
        """Wait for the object where it is being prefetched."""
        self.check_open()
        self.trace("load", shard=part[0], part=part[1], slot=reference.slot)
        job = self._ahead.pop(reference, None)
        if job is not None:
            job.result()

    def _moved_on_error(self, part: Part, source: Source) -> StepMovedOnError:
        return StepMovedOnError(
            f"store {self.root}: step moved on while reading {part[0]!r}/{part[1]!r} of "
            f"step {source.step}; refresh the store and load again"
        )

    def _moved_on(self, source: Source, reference: ObjectRef) -> bool:
        """Whether the commit is kept no longer, or with other objects (a snapshot was archived).
        In a writer another thread may have moved on."""
        state = self.newest_state()
        if isinstance(source, SnapshotInfo):  # its manifest object goes with its name
            return state.snapshots.get(source.name) != source
        kept = state.commits.get(source.seq)
        return source.seq >= 0 and not (
            (kept is not None and reference in kept.manifest.values())
            or any(
                info.seq == source.seq and (not info.archived or reference.format == ARCHIVE)
                for info in state.snapshots.values()
            )
        )

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Finish what is in flight, make it durable, end threads and close files; the lock is the
        caller's to release. Raises what went wrong, after closing all the same."""
        if self.context.closed:
            return
        if self.context.is_forked:  # its threads and locks are the parent's
            self.context.closed = True
            return
        try:
            if self._pipeline is not None:
                self._pipeline.finish()
        finally:
            self.context.end()
            self.context.workers.close()
            if self._pipeline is not None:
                self._pipeline.protocol.close()
            self.pins.close()
            self.cache.clear()
