"""A pinned view: every read of it comes from one commit, whatever the writer does meanwhile.

Contract: `pin` locks the slots first, then looks at the log (never at anything derived from it),
and goes on only if the commit is still kept there; else it lets go and starts again with what the
log says now. From then on the writer may commit, rewind, delete and collect: it passes over pinned
slots. Where no lock can be had the view is not pinned: every read is verified all the same, and one
that the writer has overtaken raises StepMovedOnError.

`pins` has the locks, `slots` the writer's side. Any thread may read; close it, or use `with`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from shardstore.buffers import Buffer
from shardstore.errors import (
    AmbiguousRefError,
    ClosedError,
    PartNotFoundError,
    RefNotFoundError,
    StepMovedOnError,
)
from shardstore.format.digests import StateRow, state_digest
from shardstore.format.layout import ObjectHeader
from shardstore.format.manifest import CommitInfo, ObjectRef, Part, is_archived
from shardstore.fs.protocol import PinFile
from shardstore.loaded import LoadedObject
from shardstore.refs import Ref, Target, resolve
from shardstore.session import Session, Source, Steady
from shardstore.snapshot import open_commit
from shardstore.views import Commit, TensorInfo, commit_view, tensor_view
from shardstore.wal.state import State

ATTEMPTS = 64
"""A head that moves on faster than the log can be read would keep a reader for ever."""

Track = Callable[[Buffer, ObjectHeader], LoadedObject]


class PinnedView:
    """One commit, held for reading. Made by `Store.pin`."""

    def __init__(
        self, session: Session, commit: CommitInfo, file: PinFile | None, track: Track
    ) -> None:
        self._session = session
        self._commit = commit
        self._file = file
        self._track = track
        self._source: Source = commit if file is None else Steady(commit.step)
        self._closed = False
        self.commit: Commit = commit_view(commit, session.durable_seq)
        """Step, metadata, blobs and parts of what is held."""
        self.pinned = file is not None
        """False where no lock can be had: reads may then raise StepMovedOnError."""

    def load(self, shard: str, part: str, *, into: Any = None) -> LoadedObject:
        """Read and verify one part, as `Store.load` does."""
        reference = self._reference(shard, part)
        caller = Buffer.wrap(into, self._size(shard, part)) if into is not None else None
        return self._track(
            *self._session.read_object((shard, part), reference, self._source, caller)
        )

    def size_of(self, shard: str, part: str) -> int:
        """Bytes that a part takes in memory, what `load(into=...)` needs."""
        return self._size(shard, part)

    def tensors(self) -> list[TensorInfo]:
        """Every tensor, from the verified objects, sorted by name."""
        self._check_open()
        return tensor_rows(self._session, self._commit, self._source)

    def state_digest(self) -> str:
        """Equal for two commits exactly when they hold the same tensors (FORMAT.md 5.5)."""
        return digest_of(self.tensors())

    def close(self) -> None:
        """Let the writer have the slots. What was loaded stays valid."""
        self._closed = True
        file, self._file = self._file, None
        if file is not None and not self._session.context.is_forked:
            self._session.pins.let_go(file)

    def __enter__(self) -> PinnedView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"view of step {self.commit.step} (seq {self.commit.seq})"

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self} was closed; pin the commit again")
        self._session.check_open()

    def _size(self, shard: str, part: str) -> int:
        reference = self._reference(shard, part)
        return self._session.size_in_memory((shard, part), reference, self._source)

    def _reference(self, shard: str, part: str) -> ObjectRef:
        self._check_open()
        key: Part = (shard, part)
        if key not in self._commit.manifest:
            raise PartNotFoundError(
                f"step {self.commit.step} has no shard {shard!r} part {part!r}; "
                "'shardstore ls' lists what it has"
            )
        return self._commit.manifest[key]


def pin(session: Session, ref: Ref | str, track: Track) -> PinnedView:
    """Pin the commit that a ref stands for on the log as it is now.

    Raises RefNotFoundError where no kept commit answers, StepMovedOnError where the head moved on
    each time before it could be pinned (pin a snapshot then).
    """
    session.check_open()
    state, looked = session.state, session.refresh is None
    for _ in range(ATTEMPTS):
        found = _find(session, state, ref, final=looked)
        if found is None:
            state, looked = session.newest_state(), True
            continue
        target, commit = found
        session.trace("pin", seq=commit.seq)
        file = _lock(session, _slots(target, commit))
        try:
            now = session.newest_state()
            if _is_kept(now, target, commit) and (looked or _same(now, ref, target)):
                return PinnedView(session, commit, file, track)
        except BaseException:
            _unlock(session, file)
            raise
        _unlock(session, file)
        state, looked = now, True
    raise StepMovedOnError(
        f"store {session.root}: {ref} moved on {ATTEMPTS} times before it could be pinned; "
        "take a snapshot and pin that"
    )


def tensor_rows(session: Session, commit: CommitInfo, source: Source) -> list[TensorInfo]:
    """Every tensor of a commit, from its objects' verified headers, sorted by name."""
    rows: list[TensorInfo] = []
    for (shard, part), reference in sorted(commit.manifest.items()):
        header = session.read_header((shard, part), reference, source)
        for entry, digest in zip(header.layout.tensors, header.digests, strict=True):
            rows.append(tensor_view(shard, part, entry, digest))
    return sorted(rows, key=lambda row: (row.shard, row.part, row.tensor))


def digest_of(tensors: list[TensorInfo]) -> str:
    """The state digest of a commit's tensors."""
    rows: list[StateRow] = [
        (row.shard, row.part, row.tensor, row.dtype, row.shape, row.digest) for row in tensors
    ]
    return state_digest(rows)


def _find(
    session: Session, state: State, ref: Ref | str, *, final: bool
) -> tuple[Target, CommitInfo] | None:
    """What the ref stands for; None where the log has to be looked at again."""
    try:
        target = resolve(state, ref)
    except (RefNotFoundError, AmbiguousRefError):
        if final:
            raise
        return None
    try:
        return target, open_commit(session, target)
    except StepMovedOnError:  # the snapshot was deleted and its manifest written over
        return None


def _lock(session: Session, slots: set[int]) -> PinFile | None:
    try:
        return session.pins.hold(slots)
    except OSError as error:
        raise session.storage_error("pinning", error) from error


def _unlock(session: Session, file: PinFile | None) -> None:
    if file is not None:
        session.pins.let_go(file)


def _slots(target: Target, commit: CommitInfo) -> set[int]:
    own = set() if isinstance(target, CommitInfo) else {target.reference.slot}
    return commit.slots() | own


def _is_kept(state: State, target: Target, commit: CommitInfo) -> bool:
    """Whether the log still holds what was locked, for the reason that it was chosen for."""
    if not isinstance(target, CommitInfo):
        return state.snapshots.get(target.name) == target
    kept = state.commits.get(commit.seq)
    if kept is not None and kept.chain == commit.chain and kept.slots() == commit.slots():
        return True
    return not is_archived(commit.manifest) and any(
        (info.seq, info.chain, info.archived) == (commit.seq, commit.chain, False)
        for info in state.snapshots.values()
    )


def _same(state: State, ref: Ref | str, target: Target) -> bool:
    """Whether the ref stands on the log for what an older look at it gave."""
    try:
        found = resolve(state, ref)
    except (RefNotFoundError, AmbiguousRefError):
        return False
    return (found.seq, found.chain) == (target.seq, target.chain)
