"""What users see of commits, names and tensors: values that share nothing with the store.

`format.manifest` has the descriptors that stand in records; the functions here turn them around.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from shardstore.format.layout import TensorEntry
from shardstore.format.manifest import CommitInfo, Part, SnapshotInfo, UndoEntry
from shardstore.wal.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What users see of a commit."""

    seq: int
    step: int
    branch: str
    durable: bool
    time: float
    """Seconds since 1970 when it was made."""
    id: str
    """Chain hash: its identity."""
    metadata: Mapping[str, Any]
    blobs: Mapping[str, bytes]
    parts: frozenset[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What users see of a snapshot."""

    name: str
    seq: int
    step: int
    time: float
    archived: bool
    """Its objects are packed (`Store.archive`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """What users see of a branch. Its head has `seq` and `step`; None on an empty store."""

    name: str
    seq: int | None
    step: int | None
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoableChange:
    """A rewind, a switch or a deletion that `undo` reverts."""

    op: Literal["rewind", "switch", "delete"]
    kind: Literal["branch", "snapshot"]
    """What `name` was a name of."""
    name: str
    """The branch that was moved or left, or the snapshot or branch that was deleted."""
    record: int
    """Sequence number of the record that made the change."""
    seq: int | None
    step: int | None
    """Of the commit that undoing brings back: as the head, or under the name that was deleted. None
    for a branch without a commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One row of what a commit holds."""

    shard: str
    part: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """The file behind one part of a commit."""

    shard: str
    part: str
    format: str
    bytes: int


def commit_view(commit: CommitInfo, durable_seq: int) -> Commit:
    """A copy: changing its metadata must not change the store's state."""
    return Commit(
        seq=commit.seq,
        step=commit.step,
        branch=commit.branch,
        durable=commit.seq <= durable_seq,
        time=commit.time,
        id=commit.chain,
        metadata=copy.deepcopy(commit.metadata),
        blobs={name: base64.b64decode(text) for name, text in commit.blobs.items()},
        parts=frozenset(commit.manifest),
    )


def snapshot_view(info: SnapshotInfo) -> Snapshot:
    return Snapshot(
        name=info.name, seq=info.seq, step=info.step, time=info.time, archived=info.archived
    )


def branch_views(state: State) -> list[Branch]:
    """All branches, by name."""
    views: list[Branch] = []
    for name, (seq, _) in sorted(state.branches.items()):
        step = None if seq is None else state.commits[seq].step
        views.append(Branch(name=name, seq=seq, step=step, current=name == state.current))
    return views


def undoable_view(entry: UndoEntry, state: State) -> UndoableChange:
    """Of an entry that is not undone yet."""
    assert not entry.done
    target = entry.snapshot if entry.commit is None else state.commits[entry.commit]
    return UndoableChange(
        op=cast(Literal["rewind", "switch", "delete"], entry.op),
        kind="snapshot" if entry.snapshot else "branch",
        name=entry.name,
        record=entry.seq,
        seq=target.seq if target else None,
        step=target.step if target else None,
    )


def tensor_view(shard: str, part: str, entry: TensorEntry, digest: str) -> TensorInfo:
    spec = entry.spec
    return TensorInfo(
        shard=shard, part=part, tensor=spec.name, dtype=spec.dtype, shape=spec.shape, digest=digest
    )
