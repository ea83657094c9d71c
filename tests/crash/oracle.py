"""Judges a store: reads everything it holds and compares it with the ghost.

Contract: `observe` loads every object that the head, retained commits and snapshots name; the
store verifies digests, the oracle compares the bytes with payloads made from the ghost. It never
repairs, and whatever it cannot explain is a Violation.

Reading an object in a new session is a pure function of the reference and its files' bytes. So
with `files`, which gives a digest of a file's bytes, what was read once is not read again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardstore.errors import ShardStoreError
from shardstore.format.manifest import CommitInfo, ObjectRef
from shardstore.format.names import SNAPSHOT_SHARD
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import fsck
from shardstore.refs import Ref
from shardstore.store import Store
from shardstore.views import Commit
from shardstore.wal.reader import list_segments, read_segment
from tests.crash.ghost import PART, Ghost, GhostCommit, GhostState, Token, Undoable, writer_of

ROOT = "/run"
Files = Callable[[str], bytes]
_read: dict[tuple[str, ObjectRef, bytes], Token] = {}
_manifests: set[tuple[str, ObjectRef, bytes]] = set()


class Violation(Exception):
    """The store is not what it should be."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a user can see of a store."""

    head: GhostCommit | None
    kept: frozenset[GhostCommit]
    snapshots: tuple[tuple[str, GhostCommit], ...]
    current: str
    others: tuple[tuple[str, GhostCommit], ...]
    last: int

    def is_state(self, state: GhostState) -> bool:
        return (
            state.exists
            and self.head == state.head
            and self.snapshots == state.snapshots
            and (self.current, self.others) == (state.current, state.others)
            and self.last == state.last
            and (state.previous is None or state.previous in self.kept)
            and all(entry.kept in self.kept for entry in state.undo if _by_commit(entry))
        )

    def __str__(self) -> str:
        names = ", ".join(f"{name}: {commit}" for name, commit in self.snapshots)
        kept = ", ".join(sorted(map(str, self.kept)))
        others = ", ".join(f"{name}: {commit}" for name, commit in self.others)
        place = f"{self.current}: {self.head or 'empty'}"
        return (
            f"[{place}; branches {{{others}}}; snapshots {{{names}}}; last {self.last}; "
            f"kept {{{kept}}}]"
        )


def _by_commit(entry: Undoable) -> bool:
    """Whether what can be undone needs a head that was left."""
    return not entry.done and entry.op != "delete"


def observe(store: Store, files: Files | None = None) -> Observed:
    """Everything in the store, each object read and verified."""
    reading = _Reading(store, files)
    try:
        kept = [reading.commit(commit, Ref.seq(commit.seq)) for commit in store.kept]
        snapshots = []
        for snapshot in store.snapshots:
            ref = Ref.name(snapshot.name)
            reading.manifest(snapshot.name)
            snapshots.append((snapshot.name, reading.commit(store.commit_of(ref), ref)))
        head = None if store.head is None else reading.commit(store.head, Ref.head)
        others = [
            (branch.name, reading.commit(store.commit_of(branch.name), Ref.name(branch.name)))
            for branch in store.branches
            if not branch.current
        ]
    except ShardStoreError as error:
        raise Violation(f"{type(error).__name__}: {error}") from error
    return Observed(
        head=head,
        kept=frozenset(kept),
        snapshots=tuple(snapshots),
        current=store.current_branch,
        others=tuple(others),
        last=store.retention.last,
    )


def match(ghost: Ghost, observed: Observed) -> GhostState:
    """The one state that this is."""
    for state in reversed(ghost):
        if observed.is_state(state):
            return state
    expected = " or ".join(map(str, ghost))
    raise Violation(f"expected {expected}, found {observed}")


def check_history(fs: FileSystem) -> None:
    """Every segment is readable up to where its successor took over, and the chain holds."""
    indices = list_segments(fs, ROOT)
    try:
        segment = read_segment(fs, ROOT, indices[-1])
        while (before := segment.header["predecessor"]) is not None:
            segment = read_segment(fs, ROOT, before["index"], cut=before["cut"])
            last = segment.records[-1]
            if (last.seq, last.chain) != (before["seq"], before["chain"]):
                raise Violation(f"history: segment {before['index']} ends with record {last.seq}, "
                                f"its successor names {before['seq']}")  # fmt: skip
    except (ShardStoreError, OSError) as error:
        raise Violation(f"history is damaged: {error}") from error


def check_files(fs: FileSystem) -> None:
    """What a crash leaves is never damage: fsck may only note it."""
    damage = [str(finding) for finding in fsck(fs, ROOT).findings if finding.is_damage]
    if damage:
        raise Violation(f"fsck calls it damage: {damage[0]}")


class _Reading:
    """Reads each commit of a store once."""

    def __init__(self, store: Store, files: Files | None) -> None:
        self._store = store
        self._files = files
        self._by_id: dict[str, GhostCommit] = {}

    def commit(self, commit: Commit, ref: Ref) -> GhostCommit:
        found = self._by_id.get(commit.id)
        if found is None:
            whole = None if self._files is None else self._store._find(ref)
            parts = tuple(
                (shard, self._part(shard, ref, whole)) for shard, _ in sorted(commit.parts)
            )
            found = GhostCommit(commit.step, str(commit.metadata["flavour"]), parts)
            self._by_id[commit.id] = found
        return found

    def manifest(self, name: str) -> None:
        """A snapshot's own object, which a store that still keeps the commit does not read."""
        session = self._store._session
        info = session.state.snapshots[name]
        path = f"{ROOT}/{info.reference.file}"
        key = (name, info.reference, self._files(path) if self._files else b"")
        if self._files is None or key not in _manifests:
            session.read_object((SNAPSHOT_SHARD, name), info.reference, info)[0].release()
            _manifests.add(key)

    def _part(self, shard: str, ref: Ref, whole: CommitInfo | None) -> Token:
        if self._files is None or whole is None:
            return self._load(shard, ref)
        reference = whole.manifest[shard, PART]
        digests = b"".join(self._files(f"{ROOT}/{one.file}") for one in reference.whole)
        key = (shard, reference, digests)
        if key not in _read:
            _read[key] = self._load(shard, ref)
        return _read[key]

    def _load(self, shard: str, ref: Ref) -> Token:
        with self._store.load(shard, PART, ref) as loaded:
            data = bytes(loaded.raw("w"))
        writer = writer_of(data)
        if writer is None or writer[0] != shard:
            raise Violation(f"shard {shard} at {ref} has bytes that nobody wrote for it")
        return writer[1]
