"""Publishing: what changed in an active store becomes one transaction of the durable one.

Contract: the durable store's state becomes the active one's, with its names and what retention
there keeps besides, by one segment of its log, whose opening restates it and tells the history
since the last time; until that is visible nothing has happened. Objects move byte for byte under
the write ids that they have, into slots of the durable store; those that are there already stay.
It is refused where the durable store went on by itself (rule 11 of docs/design.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from shardstore import cloning, lineage
from shardstore.catalog import small
from shardstore.errors import NotAStoreError, TierConflictError
from shardstore.format.manifest import CommitInfo, ObjectRef, Publication, SnapshotInfo
from shardstore.fs.calls import storage_error
from shardstore.fs.protocol import FileSystem
from shardstore.held import WINDOW_BYTES, HeldState, Item, own, position_of
from shardstore.opening import open_writing
from shardstore.progress import Advance, Progress
from shardstore.records import Record, all_records
from shardstore.retention import held_of
from shardstore.session import Session
from shardstore.snapshot import open_commit, write_manifest
from shardstore.staged import StagedObject
from shardstore.store_file import read_store_file
from shardstore.wal.reader import LogView, read_log
from shardstore.wal.state import State

_NOT_TOLD = frozenset({"open", "sync", "base"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a publication did."""

    path: str
    created: bool
    """The durable store was made by it."""
    step: int | None
    records: int
    """Records of history that were told; 0 where nothing had changed."""
    objects: int
    """Objects copied."""
    bytes: int
    position: Publication
    """Where the durable store stands, for the active one to note."""


def publish(held: HeldState, dest: str, progress: Progress) -> Published:
    """Bring the durable store at `dest` to what is held, or make it."""
    try:
        return _publish(held, dest, progress)
    except OSError as error:  # of looking at it; what writes has its own words
        fs = held.session.fs
        raise storage_error(fs, dest, "reading the durable store", error) from error


def _publish(held: HeldState, dest: str, progress: Progress) -> Published:
    fs = held.session.fs
    cloning.check_apart(fs, held.session.root, dest)
    try:
        uuid = read_store_file(fs, dest)
    except NotAStoreError:
        return _create(held, dest, progress)
    check_lineage(held.session.root, held.session.uuid, dest, uuid)
    rows, position = _news(held, dest)  # a refusal, or no news, leaves the store as it is
    if not rows:
        return _published(held, dest, held.state.base or position, [], 0)
    # Nothing is appended to this session's segments: zeros ahead would only cost their writing.
    settings = replace(own(held.session.settings), durability="commit", prewrite_bytes=0)
    session, lock, _ = open_writing(dest, fs, settings, may_create=False)
    try:
        rows, _ = _news(held, dest)
        return _Publication(held, session, progress).run(rows)
    finally:
        try:
            session.close()
        finally:
            lock.release()


def _news(held: HeldState, dest: str) -> tuple[list[Record], Publication]:
    """Records that the durable store has not been told, newest first, and where it stands."""
    fs, root = held.session.fs, held.session.root
    view = read_log(fs, dest)
    check_follows(fs, root, held.view, dest, view)
    return list(_told(held, view.state.origin)), position_of(view)


def _create(held: HeldState, dest: str, progress: Progress) -> Published:
    """The first time: a clone, whose opening says where it is from."""
    fs, state = held.session.fs, held.state.copy()
    state.base, state.origin = None, held.position()
    fields = {"reason": lineage.PUBLISH, "origin": state.origin.to_json()}
    done = cloning.clone(held, dest, state, fields=fields, progress=progress)
    every = all_records(fs, held.session.root, held.view)
    records = sum(record.body["type"] not in _NOT_TOLD for record in every)
    return Published(
        path=dest, created=True, step=state.origin.step, records=records, objects=done.objects,
        bytes=done.bytes, position=noted(done.position),
    )  # fmt: skip


def _published(
    held: HeldState, dest: str, position: Publication, items: list[Item], records: int
) -> Published:
    return Published(
        path=dest, created=False, step=held.position().step, records=records, objects=len(items),
        bytes=sum(item.reference.size for item in items), position=noted(position),
    )  # fmt: skip


def noted(position: Publication) -> Publication:
    """A position as an active store's `base` has it."""
    return replace(position, retention=None)


def check_lineage(active: str, active_uuid: str, durable: str, durable_uuid: str) -> None:
    """TierConflictError unless both are of one lineage."""
    if active_uuid != durable_uuid:
        raise TierConflictError(
            f"{durable} is not a tier of {active}: its store uuid is {durable_uuid}, expected "
            f"{active_uuid}; choose another directory, or the store that belongs to it"
        )


def check_follows(fs: FileSystem, active: str, view: LogView, durable: str, other: LogView) -> None:
    """TierConflictError where the durable store holds work that the active one does not know."""
    choice = lineage.choose(lineage.side(fs, active, view), lineage.side(fs, durable, other))
    if choice.winner != lineage.ACTIVE:
        raise TierConflictError(conflict(choice, active, view.state, durable, other.state))


def conflict(choice: lineage.Choice, active: str, state: State, durable: str, other: State) -> str:
    """Both tiers, and what each has that the other one lacks."""

    def told(path: str, state: State, work: tuple[int, ...]) -> str:
        head = "no commit" if state.head is None else f"step {state.head.step}"
        newest = sorted(work)[-3:]
        some = f", the newest are {', '.join(map(str, newest))}" if newest else ""
        return f"{path} is at {head} (seq {state.seq}) with {len(work)} records of its own{some}"

    both = (
        f"active {told(active, state, choice.active_work)}; durable "
        f"{told(durable, other, choice.durable_work)}"
    )
    if choice.winner == lineage.DURABLE:
        return (
            f"the durable store went on since it was published to: {both}; open the two with "
            "shardstore.open_active, which makes the active one anew of it"
        )
    return (
        f"the active and the durable store went on by themselves: {both}; look at both with "
        "'shardstore log', then open the one to keep with shardstore.open_active(..., "
        "take='active' or take='durable'): the other is set aside"
    )


def _told(held: HeldState, origin: Publication | None) -> Iterator[Record]:
    ends = {p.chain for p in (origin, held.state.base) if p is not None}
    records = all_records(held.session.fs, held.session.root, held.view)
    new = takewhile(lambda record: record.chain not in ends, records)
    return (record for record in new if record.body["type"] not in _NOT_TOLD)


class _Publication:
    """One publication into an open durable store."""

    def __init__(self, held: HeldState, session: Session, progress: Progress) -> None:
        self._held = held
        self._session = session
        self._progress = progress
        self._staged: list[StagedObject] = []
        self._slots: dict[ObjectRef, int] = {}
        """Identity of an object -> its slot in the durable store."""
        self._names: dict[tuple[str, int, str, float], tuple[SnapshotInfo, CommitInfo]] = {}
        """What the durable store's snapshots stand for."""

    def run(self, rows: list[Record]) -> Published:
        """Copy, then make it count."""
        session = self._session
        self._learn()
        merged = self._merged()
        named = [(info, self._held.commit_of(info)) for info in merged.all_snapshots()]
        items = self._missing([*merged.commits.values(), *(commit for _, commit in named)])
        try:
            with self._progress(sum(item.reference.size for item in items)) as advance:
                self._copy(items, advance)
            state = self._translated(merged, named)
            with session.lock:
                protocol = session.pipeline.protocol
                protocol.restate(state, self._staged, self._fields(state, rows), self._first_seq())
        except BaseException:
            if not session.context.is_poisoned:
                session.abandon(self._staged)
            raise
        writer = protocol.writer
        position = Publication(
            seq=writer.seq,
            chain=writer.chain,
            step=self._held.position().step,
            time=session.fs.now(),
        )
        return _published(self._held, session.root, position, items, len(rows))

    def _first_seq(self) -> int:
        """Above every number of both logs: commits keep theirs, and what follows comes after."""
        return max(self._session.state.seq, self._held.state.seq) + 1

    def _fields(self, state: State, rows: list[Record]) -> dict[str, Any]:
        assert state.origin is not None
        history = [[record.chain, small(record.body)] for record in reversed(rows)]
        return {
            "reason": lineage.PUBLISH,
            "origin": state.origin.to_json(),
            "history": history,
        }

    def _learn(self) -> None:
        """Which objects the durable store has, and which names."""
        state = self._session.state
        commits = list(state.commits.values())
        for info in state.all_snapshots():
            commit = open_commit(self._session, info)
            commits.append(commit)
            self._names[_key(info)] = info, commit
        for commit in commits:
            for _, reference in commit.objects():
                self._slots[_identity(reference)] = reference.slot

    def _merged(self) -> State:
        """The active store's state with what the durable one keeps besides; slots are yet those of
        where a commit is from."""
        active, durable = self._held.state, self._session.state
        merged = active.copy()
        merged.lines = {**durable.lines, **active.lines}
        merged.commits = {**durable.commits, **active.commits}
        merged.retention = durable.retention
        merged.base, merged.origin = None, self._held.position()
        keep = held_of(merged, set(durable.commits))
        merged.commits = {seq: merged.commits[seq] for seq in sorted(keep)}
        return merged

    def _missing(self, commits: Iterable[CommitInfo]) -> list[Item]:
        """Objects to copy, each once."""
        found: dict[ObjectRef, Item] = {}
        for commit in commits:
            for part, reference in commit.objects():
                key = _identity(reference)
                if key not in self._slots:
                    found.setdefault(key, Item(part, reference, commit.step))
        return list(found.values())

    def _copy(self, items: Iterable[Item], advance: Advance) -> None:
        """Read ahead there, write behind here."""
        staging, window, size = self._session.staging, deque[StagedObject](), 0
        for item, buffer in self._held.read(items):
            staged = staging.place(item.part, item.reference, buffer)
            self._staged.append(staged)
            self._slots[_identity(item.reference)] = staged.known().slot
            window.append(staged)
            size += staged.size
            while window and (size > WINDOW_BYTES or self._inline):
                oldest = window.popleft()
                staging.wait(oldest)
                staging.let_go(oldest)
                size -= oldest.size
            advance(item.reference.size)

    @property
    def _inline(self) -> bool:
        return self._session.context.workers.depth == 1

    def _translated(self, merged: State, named: list[tuple[SnapshotInfo, CommitInfo]]) -> State:
        """The merged state, with what its snapshots stand for, in the durable store's slots."""
        merged.commits = {seq: self._placed(commit) for seq, commit in merged.commits.items()}
        slots: dict[tuple[str, int, str, float], tuple[SnapshotInfo, list[int]]] = {}
        for info, commit in named:
            placed = self._placed(commit)
            here = self._named(info, placed)
            slots[_key(info)] = here, sorted(placed.slots() | {here.reference.slot})
        merged.snapshot_slots.clear()
        for _, counted in slots.values():
            merged.snapshot_slots.update(counted)
        merged.snapshots = {n: slots[_key(info)][0] for n, info in merged.snapshots.items()}
        merged.undo = [
            replace(e, snapshot=slots[_key(e.snapshot)][0], slots=tuple(slots[_key(e.snapshot)][1]))
            if e.snapshot
            else e
            for e in merged.undo
        ]
        return merged

    def _named(self, info: SnapshotInfo, commit: CommitInfo) -> SnapshotInfo:
        """The snapshot with a manifest object here: the one that is there unless the snapshot was
        archived since."""
        there = self._names.get(_key(info))
        if there is not None and there[1].manifest == commit.manifest:
            return there[0]
        staged = write_manifest(self._session, info.name, commit)
        self._staged.append(staged)
        return replace(info, reference=staged.known())

    def _placed(self, commit: CommitInfo) -> CommitInfo:
        placed = {part: self._here(ref) for part, ref in commit.manifest.items()}
        return replace(commit, manifest=placed)

    def _here(self, reference: ObjectRef) -> ObjectRef:
        base = None if reference.base is None else self._here(reference.base)
        return reference._replace(slot=self._slots[_identity(reference)], base=base)


def _identity(reference: ObjectRef) -> ObjectRef:
    """What tells an object from all others, wherever it and its base lie."""
    return reference._replace(slot=-1, base=None)


def _key(info: SnapshotInfo) -> tuple[str, int, str, float]:
    return info.name, info.seq, info.chain, info.time
