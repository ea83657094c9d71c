"""The real code with one rule broken: patches for the mutations that no skipped call expresses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from shardstore import collecting, pinned_view, recovery, snapshot
from shardstore.commit_protocol import Change, CommitProtocol
from shardstore.context import Context
from shardstore.format.manifest import CommitInfo
from shardstore.format.names import (
    PACKED_TEMPORARY,
    STORE_FILE,
    WAL_DIRECTORY,
    packed_file,
    segment_file,
)
from shardstore.fs.protocol import FileSystem
from shardstore.pins import Pins
from shardstore.pipeline import Pipeline
from shardstore.ref_records import publish
from shardstore.session import Session
from shardstore.slots import SlotTable
from shardstore.transaction import Transaction
from shardstore.wal import compress
from shardstore.wal.reader import LogView, read_log
from shardstore.wal.state import State
from shardstore.wal.writer import Predecessor, SegmentWriter, make_segment, predecessor_of

Patch = AbstractContextManager[object]


def abort_clears_flag() -> Patch:
    """The flag belongs to the transaction, as rule 7 forbids."""
    release = SlotTable.release

    def forget(self: SlotTable, slots: Any) -> None:
        numbers = list(slots)
        self._unsynced.difference_update(numbers)
        release(self, numbers)

    return patch.object(SlotTable, "release", forget)


def free_at_begin() -> Patch:
    begin = Transaction.__init__

    def init(self: Transaction, session: Session, *args: Any, **kwargs: Any) -> None:
        begin(self, session, *args, **kwargs)
        state = session.state
        held = set(state.snapshot_slots) | (state.head.slots() if state.head else set())
        session.pipeline.protocol._slots.release(sorted(state.needed() - held))

    return patch.object(Transaction, "__init__", init)


def free_when_prepared() -> Patch:
    """What a commit in flight will free is free before its log sync returned."""
    prepare = CommitProtocol.prepare

    def early(self: CommitProtocol, change: Change) -> None:
        before = self.prepared.needed()
        prepare(self, change)
        self._slots.release(sorted(before - self.prepared.needed()))

    return _both(
        patch.object(CommitProtocol, "prepare", early),
        patch.object(CommitProtocol, "_release", lambda *_: None),
    )


def free_by_the_tail() -> Patch:
    """What the log does not need is free, though a power cut would need it."""

    def move_on(self: CommitProtocol, tail: State, durable: State) -> list[int]:
        before = self.tail.needed()
        self.tail, self.durable = tail, durable
        return sorted(before - tail.needed())

    return patch.object(CommitProtocol, "_move_on", move_on)


def ref_without_older_objects() -> Patch:
    """A durable record vouches for its own objects only."""
    sync_all = CommitProtocol._sync_all

    def own(self: CommitProtocol, objects: Any, *, in_the_log: bool) -> None:
        if not in_the_log:
            sync_all(self, objects, in_the_log=in_the_log)

    return patch.object(CommitProtocol, "_sync_all", own)


@contextmanager
def _both(*patches: Patch) -> Iterator[None]:
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


def _in_the_roll(inside: Any) -> Patch:
    sync_tail = CommitProtocol._sync_tail

    def around(self: CommitProtocol) -> None:
        with inside():
            sync_tail(self)

    return patch.object(CommitProtocol, "_sync_tail", around)


def roll_without_object_sync() -> Patch:
    return _in_the_roll(lambda: patch.object(CommitProtocol, "_sync_objects", lambda *_: None))


def roll_without_log_sync() -> Patch:
    return _in_the_roll(lambda: patch.object(SegmentWriter, "sync", lambda _: None))


def roll_frees_early() -> Patch:
    """The tail counts as durable before the segment that says so is there."""
    sync_tail = CommitProtocol._sync_tail

    def early(self: CommitProtocol) -> None:
        sync_tail(self)
        self._tail_is_durable()

    return patch.object(CommitProtocol, "_sync_tail", early)


def bases_are_free() -> Patch:
    def slots(self: CommitInfo) -> set[int]:
        return {reference.slot for reference in self.manifest.values()}

    return patch.object(CommitInfo, "slots", slots)


def _around_refs(inside: Any, module: ModuleType = snapshot) -> Patch:
    def around(*args: Any, **kwargs: Any) -> None:
        with inside():
            publish(*args, **kwargs)

    return patch.object(module, "publish", around)


def ref_without_object_sync() -> Patch:
    return _around_refs(lambda: patch.object(CommitProtocol, "_sync_objects", lambda *_: None))


def ref_without_log_sync() -> Patch:
    return _around_refs(lambda: patch.object(SegmentWriter, "sync", lambda _: None))


def gc_without_log_sync() -> Patch:
    return _around_refs(lambda: patch.object(SegmentWriter, "sync", lambda _: None), collecting)


def no_copies() -> Patch:
    """Frames that were read but perhaps never reached the disk count as proven."""

    def trusting(view: LogView) -> Predecessor:
        before, last = predecessor_of(view), view.last
        return Predecessor(index=before.index, cut=last.frame.end, seq=last.seq, chain=last.chain)

    return patch.object(recovery, "predecessor_of", trusting)


def no_poison() -> Patch:
    return patch.object(Context, "poison", lambda *_: None)


@contextmanager
def append_to_found_segment() -> Iterator[None]:
    """An opening makes no segment of its own, as rule 1 forbids."""

    def found(fs: FileSystem, root: str, **fields: Any) -> SegmentWriter:
        if fields["predecessor"] is None:
            return make_segment(fs, root, **fields)
        view = read_log(fs, root)
        return SegmentWriter(
            fs.open(f"{root}/{segment_file(view.segment.index)}", "write"),
            index=view.segment.index,
            salt=str(view.segment.header["salt"]),
            offset=view.last.frame.end,
            zeros_end=view.segment.size,
            seq=view.last.seq,
            chain=view.last.chain,
            prewrite=fields["prewrite"],
        )

    with (
        patch.object(recovery, "make_segment", found),
        patch.object(recovery, "cut_zeros_quietly", lambda *_: None),
    ):
        yield


@contextmanager
def store_first() -> Iterator[None]:
    """STORE is renamed before the first segment is made."""

    def early(fs: FileSystem, root: str, **fields: Any) -> SegmentWriter:
        if fields["predecessor"] is None:
            fs.rename(f"{root}/{recovery._STORE_TEMPORARY}", f"{root}/{STORE_FILE}")
        return make_segment(fs, root, **fields)

    create = recovery.create

    def created(fs: FileSystem, root: str, settings: Any, *args: Any) -> None:
        create(_Forgiving(fs), root, settings, *args)

    with patch.object(recovery, "make_segment", early), patch.object(recovery, "create", created):
        yield


def unlink_before_rename() -> Patch:
    return patch.object(compress, "_replace", _replacing(unlink_first=True))


def unlink_unsynced() -> Patch:
    return patch.object(compress, "_replace", _replacing(unlink_first=False))


def _replacing(*, unlink_first: bool) -> Any:
    def replace(fs: FileSystem, root: str, index: int) -> None:
        directory, packed = f"{root}/{WAL_DIRECTORY}", f"{root}/{packed_file(index)}"
        if unlink_first:
            fs.unlink(f"{root}/{segment_file(index)}")
            fs.sync_directory(directory)
        fs.rename(f"{directory}/{PACKED_TEMPORARY}", packed)
        if not unlink_first:
            fs.unlink(f"{root}/{segment_file(index)}")
        fs.sync_directory(directory)

    return replace


class _Forgiving:
    """A file system on which renaming what was renamed already does nothing."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner

    def rename(self, source: str, target: str) -> None:
        if source.rpartition("/")[2] in self._inner.list_directory(source.rpartition("/")[0]):
            self._inner.rename(source, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def pins_tested_before_unkeeping() -> Iterator[None]:
    """The writer asks which slots are pinned, and only then un-keeps what it will write over."""
    publish, early = Pipeline.publish, set[int]()

    def asked_first(self: Pipeline, *args: Any, **kwargs: Any) -> Change:
        early.clear()
        early.update(pinned(self.protocol._slots._pins, range(100)))
        return publish(self, *args, **kwargs)

    pinned = Pins.pinned
    with (
        patch.object(Pipeline, "publish", asked_first),
        patch.object(Pins, "pinned", lambda _self, slots: early & set(slots)),
    ):
        yield


def pins_ignored() -> Patch:
    return patch.object(Pins, "pinned", lambda *_: set())


@contextmanager
def kept_check_before_lock() -> Iterator[None]:
    """The reader looks at the log, then locks, then believes what it saw."""
    lock, newest = pinned_view._lock, Session.newest_state
    looks: list[State] = []

    def look_and_lock(session: Session, slots: set[int]) -> object:
        looks.append(newest(session))
        return lock(session, slots)

    with (
        patch.object(pinned_view, "_lock", look_and_lock),
        patch.object(Session, "newest_state", lambda s: looks.pop() if looks else newest(s)),
    ):
        yield


def kept_check_behind_the_log() -> Patch:
    """What the reader knew when it opened the store stands for anything that lags."""
    return patch.object(Session, "newest_state", lambda session: session.state)


@contextmanager
def no_kept_check() -> Iterator[None]:
    with (
        patch.object(pinned_view, "_is_kept", lambda *_: True),
        patch.object(pinned_view, "_same", lambda *_: True),
    ):
        yield
