"""A whole state of a store, held for copying: every commit and snapshot, beside a live writer.

Contract: all slots that the state needs are pinned before the log is read to the end (rule 10 of
docs/design.md), so that a writer, here or elsewhere, goes on and passes over them. Where no lock
can be had every object is verified all the same, and one that the writer has overtaken raises
StepMovedOnError. `cloning` and `publishing` copy what is held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType

from shardstore import foreign
from shardstore.buffers import Buffer
from shardstore.context import Settings, io_threads
from shardstore.errors import CorruptionError, StepMovedOnError
from shardstore.format.manifest import CommitInfo, ObjectRef, Part, Publication, SnapshotInfo
from shardstore.format.names import RAW, SNAPSHOT_SHARD
from shardstore.fs.calls import storage_error
from shardstore.fs.protocol import FileSystem, PinFile
from shardstore.host_cache import HostCache
from shardstore.jobs import Job, settle_jobs
from shardstore.objects import check_object
from shardstore.pins import Pins
from shardstore.recovery import reading_session
from shardstore.session import Session
from shardstore.snapshot import open_commit
from shardstore.store_file import read_store_file
from shardstore.wal.reader import LogView, durable_state, read_log
from shardstore.wal.state import State
from shardstore.workers import CopyingWorkers

WINDOW_BYTES = 128 * 1024 * 1024
"""Objects read ahead of the one that is handed on, and those on their way out: so many bytes each
at most, but one whole object at least."""
ATTEMPTS = 16
_AHEAD = 64
_COPIED_PIECE_BYTES = 4 * 1024 * 1024
"""Still in the processor's cache when it is digested."""


@dataclass(frozen=True, slots=True)
class Item:
    """An object to copy."""

    part: Part
    reference: ObjectRef
    step: int


class HeldState:
    """See the module's docstring. Made by `hold`; close it, or use `with`."""

    def __init__(
        self, session: Session, view: LogView, file: PinFile | None, cache: HostCache | None
    ) -> None:
        self.session = session
        self.view = view
        self.state: State = view.state
        self._file = file
        self._cache = cache or session.cache

    def __enter__(self) -> HeldState:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.session.close()  # and with it the pins

    def position(self) -> Publication:
        """Where the store stands, for the other tier to note."""
        return position_of(self.view)

    def commit_of(self, info: SnapshotInfo) -> CommitInfo:
        """What a snapshot stands for."""
        return open_commit(self.session, info)

    def items(self, state: State) -> list[Item]:
        """Every object that a part of this state needs, each slot once."""
        found: dict[int, Item] = {}
        commits = list(state.commits.values())
        for info in state.all_snapshots():
            part = (SNAPSHOT_SHARD, info.name)
            found[info.reference.slot] = Item(part, info.reference, info.step)
            commits.append(self.commit_of(info))
        for commit in commits:
            for part, reference in commit.objects():
                found.setdefault(reference.slot, Item(part, reference, commit.step))
        return [found[slot] for slot in sorted(found)]

    def read(self, items: Iterable[Item]) -> Iterator[tuple[Item, Buffer]]:
        """The objects' files, verified, in that order; the buffers are the caller's to release, and
        not to be written to."""
        ahead: deque[tuple[Item, Job[Buffer]]] = deque()
        waiting, size = deque(items), 0
        load = self.session.context.workers.load
        try:
            while waiting or ahead:
                while waiting and (not ahead or size + waiting[0].reference.size <= self._window):
                    item = waiting.popleft()
                    ahead.append((item, load(self._load, item)))
                    size += item.reference.size
                item, job = ahead.popleft()
                size -= item.reference.size
                yield item, job.result()
        finally:
            settle_jobs(job for _, job in ahead)  # their buffers go back with them

    @property
    def _window(self) -> int:
        """Nothing is read ahead where calls are made at once."""
        return WINDOW_BYTES if self.session.context.workers.loads_ahead else 0

    def _load(self, item: Item) -> Buffer:
        if item.reference.format == RAW and (cached := self._cache.share(item.reference)):
            if self._agrees(item, cached[0]):
                return cached[0]
            cached[0].release()  # whoever holds the object open wrote to it
        buffer = self._cache.acquire(item.reference.size)
        try:
            self._read(item, buffer)
        except BaseException:
            buffer.release()
            raise
        return buffer

    def _agrees(self, item: Item, buffer: Buffer) -> bool:
        path, what = self.session.objects.describe(item.part, item.reference, item.step)
        try:
            check_object(buffer.view, item.part, item.reference, path, what)
        except CorruptionError:
            return False
        return True

    def _read(self, item: Item, buffer: Buffer) -> None:
        reader = self.session.objects
        try:
            if item.reference.format == RAW:
                reader.read(item.part, item.reference, item.step, buffer)
            else:
                foreign.read_file(reader, item.part, item.reference, item.step, buffer)
        except CorruptionError as error:
            if self._file is None and self._has_moved_on():
                raise StepMovedOnError(
                    f"store {self.session.root}: a writer went on while it was copied, and nothing "
                    "can be pinned here; end the writer, or copy again"
                ) from error
            raise

    def _has_moved_on(self) -> bool:
        return read_log(self.session.fs, self.session.root).last.seq != self.view.last.seq


def position_of(view: LogView) -> Publication:
    """The end of a log, for the other tier to note."""
    head, last = view.state.head, view.last
    return Publication(
        seq=last.seq,
        chain=last.chain,
        step=None if head is None else head.step,
        time=last.body["time"],
        retention=view.state.retention.to_json(),
    )


def hold(
    fs: FileSystem,
    root: str,
    settings: Settings,
    *,
    durable: bool = False,
    cache: HostCache | None = None,
) -> HeldState:
    """Pin a store's state: the newest, or the newest that survives a power cut.

    `cache` is that of an open session on the store: what it holds is not read, and what is read
    goes into its warm buffers. Raises StorageError where the disk refuses.
    """
    try:
        return _hold(fs, root, settings, durable, cache)
    except OSError as error:
        raise storage_error(fs, root, "pinning the state to copy", error) from error


def _hold(
    fs: FileSystem, root: str, settings: Settings, durable: bool, cache: HostCache | None
) -> HeldState:
    uuid = read_store_file(fs, root)
    pins = Pins(fs, root)
    try:
        view, spread = _read_log(fs, root, durable), _AHEAD
        for _ in range(ATTEMPTS):
            slots = range(max([-1, *view.state.needed()]) + 1 + spread)
            wide = pins.hold(slots)
            view = _read_log(fs, root, durable)
            if wide is None or view.state.needed() <= set(slots):
                session = reading_session(fs, root, uuid, view, _for_copying(fs, root, settings))
                return _held(session, view, cache)
            pins.let_go(wide)
            spread *= 4  # the writer took new slots in between
    finally:
        pins.close()
    raise StepMovedOnError(
        f"store {root} grew {ATTEMPTS} times before it could be pinned; copy it again when its "
        "writer makes fewer new objects"
    )


def own(settings: Settings) -> Settings:
    """The settings for a session beside another one: what the other one owns is left out."""
    return replace(settings, workers=None, trace=None)


def _for_copying(fs: FileSystem, root: str, settings: Settings) -> Settings:
    """Reading what lies in memory is copying, which another thread does not make faster."""
    if io_threads(fs, settings) == 0 or not fs.in_memory(root):
        return own(settings)
    piece = min(settings.piece_bytes, _COPIED_PIECE_BYTES)
    return replace(own(settings), workers=CopyingWorkers(), piece_bytes=piece)


def _held(session: Session, view: LogView, cache: HostCache | None) -> HeldState:
    """With pins of its own, taken while the wide ones are still there."""
    try:
        return HeldState(session, view, session.pins.hold(view.state.needed()), cache)
    except BaseException:
        session.close()
        raise


def _read_log(fs: FileSystem, root: str, durable: bool) -> LogView:
    view = read_log(fs, root)
    if not durable or view.last.body["durable"]:
        return view
    count = 1 + max(i for i, record in enumerate(view.records) if record.body["durable"])
    return replace(view, records=view.records[:count], state=durable_state(view, root))
