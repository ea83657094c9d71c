"""Which commits and snapshots of a state are whole: every byte of every object they need.

Contract: reads only. A commit is whole if each of its objects, and their bases, agree with the
digests in its manifest; a snapshot if its manifest object is whole too and is that of its commit.
Where that is not so, but the log has the same commit whole, the snapshot can be renewed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from shardstore.format.manifest import CommitInfo, ObjectRef, Part, SnapshotInfo
from shardstore.format.names import SNAPSHOT_SHARD
from shardstore.fs.protocol import FileSystem
from shardstore.fsck.findings import Finding, Wanted
from shardstore.fsck.object_base import Rules
from shardstore.fsck.object_check import check_objects
from shardstore.fsck.wanted import read_manifest, wanted_objects
from shardstore.wal.state import State

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Label and bytes in all -> a context whose value is called with the bytes done."""
Key = tuple[Part, ObjectRef]


def quiet(_label: str, _total: int) -> AbstractContextManager[Callable[[int], None]]:
    """Tells nobody."""
    return nullcontext(lambda _count: None)


@dataclass(slots=True, kw_only=True)
class Verdicts:
    """What is whole of a state."""

    commits: dict[int, CommitInfo] = field(default_factory=dict)
    """Whole ones by sequence number, with the manifest that is whole."""
    snapshots: dict[SnapshotInfo, CommitInfo] = field(default_factory=dict)
    """Whole ones, deleted ones that can be undone among them, and what they stand for."""
    spoilt: dict[SnapshotInfo, str] = field(default_factory=dict)
    """What is wrong with those that are not, as far as their manifest can be read."""
    renewable: dict[SnapshotInfo, CommitInfo] = field(default_factory=dict)
    """Those that are not, whose commit is whole as the log has it."""
    damage: dict[Key, Finding] = field(default_factory=dict)
    """The first thing that is wrong with each object."""
    files: dict[str, Wanted] = field(default_factory=dict)
    """Everything that the state needs, by file."""
    references: list[ObjectRef] = field(default_factory=list)
    """The same, of every object."""

    def first_damage(self, commit: CommitInfo) -> Finding | None:
        return next((self.damage[key] for key in commit.objects() if key in self.damage), None)

    def is_whole(self, commit: CommitInfo) -> bool:
        return self.first_damage(commit) is None


def verify(
    fs: FileSystem, root: str, uuid: str | None, state: State, progress: Progress = quiet
) -> Verdicts:
    """Read all that the state needs."""
    wanted = wanted_objects(fs, root, state).objects
    verdicts = Verdicts(
        files={w.reference.file: w for w in wanted}, references=[w.reference for w in wanted]
    )
    rules = Rules(uuid=uuid, deep=True)
    with progress("objects", sum(w.reference.size for w in wanted)) as advance:
        for one, finding in check_objects(fs, root, wanted, rules, advance):
            verdicts.damage.setdefault((one.part, one.reference), finding)
    verdicts.commits = {
        seq: commit for seq, commit in state.commits.items() if verdicts.is_whole(commit)
    }
    for info, commit in _held(fs, root, state):
        manifest = verdicts.damage.get(((SNAPSHOT_SHARD, info.name), info.reference))
        first = manifest or verdicts.first_damage(commit)
        if first is not None:
            verdicts.spoilt[info] = first.line()
        elif (commit.seq, commit.chain) != (info.seq, info.chain):
            verdicts.spoilt[info] = "its manifest object is that of another commit"
        else:
            verdicts.snapshots[info] = commit
            verdicts.commits.setdefault(commit.seq, commit)
    for info in state.snapshots.values():
        inline = _inline(state, info)
        if info not in verdicts.snapshots and inline is not None and verdicts.is_whole(inline):
            verdicts.renewable[info] = inline
    return verdicts


def _inline(state: State, info: SnapshotInfo) -> CommitInfo | None:
    """The snapshot's commit as it stands in the log, if it does."""
    commit = state.commits.get(info.seq)
    return None if commit is None or commit.chain != info.chain else commit


def _held(fs: FileSystem, root: str, state: State) -> Iterator[tuple[SnapshotInfo, CommitInfo]]:
    """Snapshots whose manifest can be read."""
    for info in state.all_snapshots():
        part = (SNAPSHOT_SHARD, info.name)
        manifest = Wanted(part=part, reference=info.reference, step=info.step)
        commit = read_manifest(fs, root, manifest)
        if commit is not None:
            yield info, commit
