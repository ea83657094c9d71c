"""The commit protocol: the one place where its order stands.

A change is a record and the objects that it names. It is *prepared* (digests known, its place in
the log and the state after it fixed), then *completed*: objects written, synced, their directory
synced where a name is new; appended; the log synced, THE COMMIT POINT; the state swapped; slots
freed (docs/design.md, rules 5 to 8).

Three states: `prepared` is what this process has decided, `tail` what stands in the log, `durable`
what survives a power cut. A slot is free once neither `tail` nor `durable` needs it. A change that
fails before its append leaves all as it was; from the append on a failure poisons the store. With
deferred durability changes leave out the syncs until a durable one, which makes up for them.

`pipeline` says which thread prepares and completes what, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from shardstore.context import Context
from shardstore.errors import PoisonedError
from shardstore.format.manifest import CommitInfo, ObjectRef, Part
from shardstore.format.names import (
    OBJECTS_DIRECTORY,
    SNAPSHOT_SHARD,
)
from shardstore.fs.calls import FULL, close_quietly
from shardstore.fs.protocol import FileSystem
from shardstore.host_cache import HostCache
from shardstore.jobs import Flag
from shardstore.slots import SlotTable
from shardstore.staged import StagedObject
from shardstore.staging import Staging
from shardstore.upkeep import Upkeep
from shardstore.wal.reader import list_segments
from shardstore.wal.state import State
from shardstore.wal.writer import (
    PREWRITE_BYTES,
    EncodedRecord,
    Predecessor,
    SegmentWriter,
    cut_zeros,
    encode,
    make_segment,
)

Entry = ObjectRef | StagedObject
"""What a manifest in the making names: an object that is known, or one in flight."""
Make = Callable[[int], Mapping[str, Any]]
"""The record with that sequence number, but for `durable`."""


def _made(seq: int) -> NoReturn:
    raise AssertionError(f"record {seq} is made once")


@dataclass(slots=True, eq=False, kw_only=True)
class Change:
    """A record on its way into the log."""

    make: Make
    objects: list[StagedObject]
    durable: bool
    entries: Mapping[Part, Entry] = field(default_factory=dict)
    step: int = 0
    """What a commit in flight will hold, for the transaction that builds on it."""
    number: int = 0
    """Changes in flight are numbered in their order."""
    is_begun: bool = False
    """Preparing it was begun, which happens once."""
    record: EncodedRecord | None = None
    after: State | None = None
    commit: CommitInfo | None = None
    """What the record made, if it is a commit; once prepared."""
    error: Exception | None = None
    is_landed: bool = False
    """It counts, whatever comes."""
    is_prepared: Flag = field(default_factory=Flag)
    is_over: Flag = field(default_factory=Flag)


class CommitProtocol:
    """See the module's docstring. One thread at a time prepares, one at a time completes, and a
    segment is succeeded only while nothing is between the two."""

    def __init__(
        self,
        context: Context,
        *,
        staging: Staging,
        slots: SlotTable,
        cache: HostCache,
        writer: SegmentWriter,
        state: State,
        opening: Mapping[str, Any],
        upkeep: Upkeep,
    ) -> None:
        self.prepared = self.tail = self.durable = state
        self.writer = writer
        self.unsynced_commits = 0
        """Commits since the last durable change."""
        self._context = context
        self._staging = staging
        self._slots = slots
        self._cache = cache
        self._opening = opening
        self._upkeep = upkeep
        self._seq, self._chain = writer.seq, writer.chain
        self._dirty: dict[int, StagedObject] = {}
        """Objects in the log whose slots are not synced, by slot."""
        self._leaving: set[int] = set()
        """Slots that no state needs any more and that are not free yet. Guarded by the mutex."""

    def needed(self) -> set[int]:
        """Slots that may not be written: what log and disk need, what is decided, and what a change
        that lands is about to free."""
        with self._context.mutex:
            states = {id(state): state for state in (self.tail, self.durable, self.prepared)}
            leaving = set(self._leaving)
        return leaving.union(*(state.needed() for state in states.values()))

    def forget_leaving(self) -> None:
        """Nothing is in flight: who was about to free slots was interrupted."""
        with self._context.mutex:
            self._leaving.clear()

    def return_to_tail(self) -> None:
        """Forget what was prepared and will not be completed."""
        self.prepared = self.tail
        self._seq, self._chain = self.writer.seq, self.writer.chain

    def close(self) -> None:
        """Close the files and end the upkeep; nothing is in flight."""
        self._dirty.clear()
        self._staging.files.close_all()
        close_quietly(self.writer)
        self._upkeep.finish(*self.writer.proven)

    def prepare(self, change: Change) -> None:
        """Fix the record and the state after it."""
        for staged in change.objects:
            staged.known()
        seq = self._seq + 1
        record = {**change.make(seq), "durable": change.durable}
        change.make = _made  # it knows its transaction, which knows the change before, and so on
        change.record = encode(record, self._chain)
        after = self.prepared.copy()
        after.apply(record, change.record.chain)
        change.after, change.commit = after, after.commits.get(seq)
        self._seq, self._chain, self.prepared = seq, change.record.chain, after

    def complete(self, change: Change) -> None:
        """Everything up to the commit point, and what follows from it."""
        record = change.record
        assert record is not None
        for staged in change.objects:
            self._staging.wait(staged)
        if change.durable:
            assert change.after is not None
            self._sync_objects(change.objects, change.after)
        try:
            self.writer.make_room(record)
        except OSError as error:
            raise self._context.storage_error(
                "growing the log", error, needed=PREWRITE_BYTES
            ) from error
        try:
            self._context.trace("append", seq=record.seq)
            self.writer.append(record)
            if change.durable:
                self._context.trace("sync", seq=record.seq)
                self.writer.sync()
            self._swap(change)
            change.is_landed = True
        except BaseException as error:
            self._context.poison(error)
            if not isinstance(error, OSError):
                raise
            raise PoisonedError(
                f"appending to {self.writer.path} failed ({error.strerror}); whether record "
                f"{record.seq} is durable is decided by the next opening: close the store and "
                "open it again"
            ) from error

    def _sync_objects(self, objects: Iterable[StagedObject], after: State) -> None:
        """Sync the slots that the state needs and that are not synced, and their directory."""
        context, needed = self._context, after.needed()
        own = [staged for staged in objects if not staged.reused]
        older = [self._dirty[slot] for slot in sorted(self._dirty) if slot in needed]
        context.trace("sync_objects", count=len(own) + len(older))
        self._sync_all(older, in_the_log=True)
        self._sync_all(own, in_the_log=False)
        with context.mutex:
            flagged = self._slots.flagged()
        if flagged.isdisjoint(needed):
            return
        try:
            context.fs.sync_directory(context.path(OBJECTS_DIRECTORY))
        except OSError as error:
            raise context.storage_error("syncing a directory", error) from error
        with context.mutex:
            self._slots.directory_synced(flagged)

    def _sync_all(self, objects: list[StagedObject], *, in_the_log: bool) -> None:
        failure: OSError | None = None
        jobs = []
        for staged in objects:
            try:
                jobs.append(self._context.workers.io(self._staging.files.sync, staged))
            except OSError as error:
                failure = failure or error
        for job in jobs:
            try:
                job.result()
            except OSError as error:
                failure = failure or error
        if failure is None:
            return
        if in_the_log:  # rule 8: a live manifest names a slot whose bytes are unknown
            self._context.poison(failure)
            self._context.check_sound()
        raise self._context.storage_error("syncing an object", failure) from failure

    def _swap(self, change: Change) -> None:
        """The change counts: move the states on, free what neither needs, keep its objects."""
        assert change.after is not None
        head = self.tail.head
        freed = self._move_on(change.after, change.after if change.durable else self.durable)
        self.unsynced_commits = 0 if change.durable else self.unsynced_commits + 1
        for staged in change.objects:
            self._staging.landed(staged)
        self._settle_files(change, freed)
        self._release(freed)
        self._fill_cache(change.objects, freed, head)

    def _move_on(self, tail: State, durable: State) -> list[int]:
        """The slots that the new states do not need and the old ones did."""
        before = self.tail.needed() | self.durable.needed()
        freed = before - tail.needed() - durable.needed()
        with self._context.mutex:
            self.tail, self.durable = tail, durable
            self._leaving |= freed
        return sorted(freed)

    def _release(self, freed: list[int]) -> None:
        if freed:
            self._context.trace("slot_freed", slots=freed)
        with self._context.mutex:
            self._slots.release(freed)
            self._leaving.difference_update(freed)

    def _settle_files(self, change: Change, freed: list[int]) -> None:
        if change.durable:
            closing = [*self._dirty.values(), *change.objects]
            self._dirty.clear()
        else:
            self._dirty |= {s.slot: s for s in change.objects if not s.reused}
            closing = [self._dirty.pop(slot) for slot in freed if slot in self._dirty]
            closing += [staged for staged in change.objects if staged.reused]
        for staged in closing:
            self._staging.files.close(staged)

    def _fill_cache(
        self, objects: list[StagedObject], freed: list[int], head: CommitInfo | None
    ) -> None:
        """What was just committed is kept instead of what it replaces."""
        replaced = [
            head.manifest[staged.part].slot
            for staged in objects
            if head and staged.part in head.manifest and not staged.reused
        ]
        self._cache.forget([*freed, *replaced])
        for staged in objects:
            buffer = self._staging.take_buffer(staged)
            if buffer is None:
                continue
            if staged.part[0] == SNAPSHOT_SHARD or staged.reference is None or not staged.keep:
                buffer.release()
                continue
            assert staged.header is not None
            self._cache.put(staged.reference, buffer, staged.header)

    # ------------------------------------------------------------------ segments

    def is_roll_due(self, commits_in_flight: int) -> bool:
        """Whether the next record belongs into a new segment."""
        settings, writer = self._context.settings, self.writer
        if writer.commits + commits_in_flight >= settings.commits_per_segment:
            return True
        return writer.offset >= settings.segment_bytes

    def roll(self) -> None:
        """Rule 6: a new segment begins, behind a durable tail. Nothing is in flight."""
        self._sync_tail()
        self._succeed({"reason": "roll", "state": self.tail.to_json()})

    def restate(
        self, state: State, objects: list[StagedObject], fields: Mapping[str, Any], first_seq: int
    ) -> None:
        """Another state takes the place of this one, in a segment of its own, whose becoming
        visible is the commit point; `first_seq` is its opening's number. Nothing is in flight.

        Raises StorageError where nothing happened and the caller has to abandon `objects`.
        """
        self._sync_tail()
        for staged in objects:
            self._staging.wait(staged)
        self._sync_objects(objects, state)
        self._succeed({**fields, "state": state.to_json()}, first_seq)
        after = state.copy()
        after.seq = after.durable_seq = self.writer.seq
        freed = self._move_on(after, after)
        self.prepared = after
        for staged in objects:
            self._staging.let_go(staged)
            self._staging.files.close(staged)
            self._staging.landed(staged)
        self._cache.forget(freed)
        self._release(freed)

    def _succeed(self, fields: Mapping[str, Any], first_seq: int | None = None) -> None:
        """The next segment, whose opening says `fields`."""
        settings = self._context.settings
        old = self.writer
        self._context.trace("roll", segment=old.index + 1)
        opening = {
            **self._opening,
            "abandoned": None,
            "time": self._context.fs.now(),
            **fields,
        }
        try:
            self.writer = make_segment(
                self._context.fs,
                self._context.root,
                uuid=self._context.uuid,
                predecessor=Predecessor(
                    index=old.index, cut=old.offset, seq=old.seq, chain=old.chain
                ),
                opening=opening,
                prewrite=settings.prewrite_bytes,
                first_seq=first_seq,
            )
        except BaseException as error:
            if self._may_be_visible(old.index + 1):  # what is appended to the old one may not count
                self._context.poison(error)
            if not isinstance(error, OSError):
                raise
            full = error.errno in FULL
            if full and first_seq is None and not self._context.is_poisoned:
                return  # the old segment may go on while it has room; a later commit tries again
            raise self._context.storage_error(
                "starting a segment of the log", error, needed=settings.prewrite_bytes
            ) from error
        self._seq, self._chain = self.writer.seq, self.writer.chain
        self._tail_is_durable()
        close_quietly(old)
        cut_zeros_quietly(self._context.fs, self._context.root, old.index, old.offset)
        self._upkeep.note(*self.writer.proven)

    def _sync_tail(self) -> None:
        """Sync objects, then the segment that is about to be sealed."""
        if self.durable is self.tail:
            return
        self._sync_objects([], self.tail)
        try:
            self.writer.sync()
        except OSError as error:
            self._context.poison(error)
            raise self._context.storage_error("syncing the log", error) from error

    def _tail_is_durable(self) -> None:
        """Said by the new segment's opening record, and not before: until then a power cut takes
        the store back to the last durable record, whose slots it needs."""
        if self.durable is self.tail:
            return
        for staged in self._dirty.values():
            self._staging.files.close(staged)
        self._dirty.clear()
        self._release(self._move_on(self.tail, self.tail))
        self.unsynced_commits = 0

    def _may_be_visible(self, index: int) -> bool:
        try:
            return index in list_segments(self._context.fs, self._context.root)
        except OSError:
            return True


def cut_zeros_quietly(fs: FileSystem, root: str, index: int, end: int | None = None) -> None:
    """Give back the zeros of a sealed segment; where that fails they only take space."""
    try:
        cut_zeros(fs, root, index, end)
    except OSError:
        return
