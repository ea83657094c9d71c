"""The state that the log describes: a pure function of its records.

Invariants: `apply` depends on nothing but the state and the record; the same records give the same
state to the writer, to readers and to fsck. A slot is needed exactly if a commit in `commits`
names it or `snapshot_slots` counts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardstore.format.manifest import (
    CommitInfo,
    Manifest,
    ObjectRef,
    Part,
    Publication,
    SnapshotInfo,
    UndoEntry,
)
from shardstore.format.names import FIRST_BRANCH
from shardstore.format.policy import DEFAULT, Retention
from shardstore.wal.deferred import DeferredManifest, DeferredRows

FIRST_LINE = 1
Record = Mapping[str, Any]


class FoldError(Exception):
    """A record contradicts the state before it; the reader adds file and offset."""


@dataclass(slots=True)
class State:
    """Where a store stands. Owned by one session; shared only after `copy`."""

    current: str = FIRST_BRANCH
    branches: dict[str, tuple[int | None, int]] = field(
        default_factory=lambda: {FIRST_BRANCH: (None, FIRST_LINE)}
    )
    """branch -> (seq of its head, the line that its next commit continues)"""
    commits: dict[int, CommitInfo] = field(default_factory=dict)
    snapshots: dict[str, SnapshotInfo] = field(default_factory=dict)
    undo: list[UndoEntry] = field(default_factory=list)
    """Oldest first."""
    lines: dict[int, tuple[int, int]] = field(default_factory=dict)
    """line -> (parent line, seq of the commit where it left it); the first line has no entry"""
    snapshot_slots: Counter[int] = field(default_factory=Counter)
    seq: int = 0
    """Of the newest record that was applied."""
    durable_seq: int = 0
    """Of the newest one that says that all before it was synced."""
    retention: Retention = DEFAULT
    base: Publication | None = None
    """In an active store: the position of the durable one when both last held the same."""
    origin: Publication | None = None
    """In a durable store: the position of the active one that was published last."""

    @property
    def head(self) -> CommitInfo | None:
        seq, _ = self.branches[self.current]
        return None if seq is None else self.commits[seq]

    @property
    def line(self) -> int:
        """The line that the current branch is on."""
        return self.branches[self.current][1]

    def copy(self) -> State:
        return State(
            current=self.current,
            branches=dict(self.branches),
            commits=dict(self.commits),
            snapshots=dict(self.snapshots),
            undo=list(self.undo),
            lines=dict(self.lines),
            snapshot_slots=Counter(self.snapshot_slots),
            seq=self.seq,
            durable_seq=self.durable_seq,
            retention=self.retention,
            base=self.base,
            origin=self.origin,
        )

    def needed(self) -> set[int]:
        """Slots that must not be written."""
        slots = set(self.snapshot_slots)
        for commit in self.commits.values():
            slots |= commit.slots()
        return slots

    def all_snapshots(self) -> list[SnapshotInfo]:
        """Snapshots, and deleted ones that can be undone."""
        deleted = [entry.snapshot for entry in self.undo if entry.snapshot is not None]
        return [*self.snapshots.values(), *deleted]

    def on_line(self, line: int, commit_line: int, seq: int) -> bool:
        """Whether the commit `seq` of `commit_line` is an ancestor of what stands on `line`."""
        bound: int | None = None
        while True:
            if commit_line == line and (bound is None or seq <= bound):
                return True
            if line not in self.lines:
                return False
            line, fork = self.lines[line]
            bound = fork if bound is None else min(bound, fork)

    # ------------------------------------------------------------------ folding

    def apply(self, record: Record, chain: str) -> None:
        """Change the state by one record; raises FoldError if the record does not fit."""
        kind = record["type"]
        if kind == "open":
            self._restate(record["state"])
        elif kind in _APPLY:
            try:
                _APPLY[kind](self, record, chain)
            except KeyError as error:
                raise FoldError(f"{kind} record {record['seq']} names unknown {error}") from None
        else:
            raise FoldError(f"record {record['seq']} has the unknown type {kind!r}")
        self.seq = int(record["seq"])
        if record.get("durable"):
            self.durable_seq = self.seq

    def _commit(self, record: Record, chain: str) -> None:
        seq, branch = int(record["seq"]), str(record["branch"])
        head, _ = self.branches[branch]
        parent = None if head is None else self.commits[head]
        if record["parent"] != head or (parent and record["parent_chain"] != parent.chain):
            raise FoldError(f"commit {seq} names parent {record['parent']}, the head is {head}")
        self.commits[seq] = CommitInfo(
            seq=seq,
            chain=chain,
            branch=branch,
            line=record["line"],
            step=record["step"],
            time=record["time"],
            parent=head,
            txn=record["txn"],
            manifest=_manifest_after(parent.manifest if parent else {}, record),
            metadata=record["metadata"],
            blobs=record["blobs"],
        )
        self.branches[branch] = (seq, record["line"])
        self._unkeep(record)

    def _snapshot(self, record: Record, _chain: str) -> None:
        self.snapshots[record["name"]] = SnapshotInfo(
            name=record["name"],
            seq=record["target"],
            chain=record["chain"],
            line=record["line"],
            step=record["step"],
            time=record["time"],
            reference=ObjectRef.from_json(record["reference"]),
            archived=record["archived"],
        )
        self.snapshot_slots.update(record["slots"])

    def _archive(self, record: Record, _chain: str) -> None:
        reference = ObjectRef.from_json(record["reference"])
        packed = replace(self.snapshots[record["name"]], reference=reference, archived=True)
        self.snapshots[record["name"]] = packed
        self.snapshot_slots.update(record["slots"])
        self.snapshot_slots.subtract(record["released"])
        self.snapshot_slots = +self.snapshot_slots

    def _branch(self, record: Record, _chain: str) -> None:
        if record["name"] in self.branches:
            raise FoldError(f"record {record['seq']} makes branch {record['name']!r} again")
        self._move(record["name"], CommitInfo.from_json(record["commit"]), record)

    def _switch(self, record: Record, _chain: str) -> None:
        left, (head, _) = self.current, self.branches[self.current]
        self._make_current(record["name"])
        self._push(UndoEntry(seq=record["seq"], op="switch", name=left, commit=head), record)

    def _delete(self, record: Record, _chain: str) -> None:
        name, slots = record["name"], tuple(record["slots"])
        if name == self.current:
            raise FoldError(f"record {record['seq']} deletes the current branch {name!r}")
        entry = UndoEntry(seq=record["seq"], op="delete", name=name, slots=slots)
        if name in self.snapshots:
            entry = replace(entry, snapshot=self.snapshots.pop(name))
        else:
            entry = replace(entry, commit=self.branches.pop(name)[0])
        self._push(entry, record)

    def _rewind(self, record: Record, _chain: str) -> None:
        branch = record["branch"]
        left, _ = self.branches[branch]
        self._move(branch, CommitInfo.from_json(record["commit"]), record)
        self._push(UndoEntry(seq=record["seq"], op="rewind", name=branch, commit=left), record)

    def _undo(self, record: Record, _chain: str) -> None:
        at = next(i for i, entry in enumerate(self.undo) if entry.seq == record["entry"])
        entry = self.undo[at]
        left: int | None = None
        if entry.op == "rewind":
            left, _ = self.branches[entry.name]
        elif entry.op == "switch":
            left, _ = self.branches[self.current]
            self._make_current(entry.name)
        if entry.snapshot is not None:
            self.snapshots[entry.name] = entry.snapshot
        elif entry.op != "switch" and entry.commit is not None:
            self._move(entry.name, self.commits[entry.commit], record)
        self.undo[at] = replace(entry, done=True, commit=left, snapshot=None, slots=())
        self._unkeep(record)

    def _retention(self, record: Record, _chain: str) -> None:
        self.retention = Retention.from_json(record["retention"])

    def _base(self, record: Record, _chain: str) -> None:
        self.base = Publication.from_json(record["base"])

    def _only_unkeep(self, record: Record, _chain: str) -> None:
        self._unkeep(record)

    def _make_current(self, branch: str) -> None:
        if branch not in self.branches:
            raise KeyError(branch)
        self.current = branch

    def _move(self, branch: str, commit: CommitInfo, record: Record) -> None:
        line, parent_line, fork = record["new_line"]
        self.commits[commit.seq] = commit
        self.lines[line] = (parent_line, fork)
        self.branches[branch] = (commit.seq, line)

    def _push(self, entry: UndoEntry, record: Record) -> None:
        self.undo.append(entry)
        for seq in record["forget"]:
            at = next(i for i, old in enumerate(self.undo) if old.seq == seq)
            self.snapshot_slots.subtract(self.undo.pop(at).slots)
        self.snapshot_slots = +self.snapshot_slots
        self._unkeep(record)

    def _unkeep(self, record: Record) -> None:
        for seq in record["unkeep"]:
            del self.commits[seq]

    def resolve(self) -> None:
        """Work out the manifests that replay put off."""
        for seq, commit in self.commits.items():
            if isinstance(commit.manifest, DeferredManifest):
                self.commits[seq] = replace(commit, manifest=commit.manifest.resolve())

    # ------------------------------------------------------------------ the summary

    def to_json(self) -> dict[str, Any]:
        """The summary that an opening record holds (FORMAT.md section 4.1)."""
        lines = self._reachable_lines()
        return {
            "base": self.base and self.base.to_json(),
            "branches": {name: list(value) for name, value in self.branches.items()},
            "commits": [self.commits[seq].to_json() for seq in sorted(self.commits)],
            "current": self.current,
            "lines": [[line, *self.lines[line]] for line in sorted(lines)],
            "origin": self.origin and self.origin.to_json(),
            "retention": self.retention.to_json(),
            "slots": [[slot, self.snapshot_slots[slot]] for slot in sorted(self.snapshot_slots)],
            "snapshots": [self.snapshots[name].to_json() for name in sorted(self.snapshots)],
            "undo": [entry.to_json() for entry in self.undo],
        }

    def _restate(self, summary: Mapping[str, Any]) -> None:
        self.current = summary["current"]
        self.branches = {name: (seq, line) for name, (seq, line) in summary["branches"].items()}
        self.commits = {value["seq"]: CommitInfo.from_json(value) for value in summary["commits"]}
        self.snapshots = {
            value["name"]: SnapshotInfo.from_json(value) for value in summary["snapshots"]
        }
        self.undo = [UndoEntry.from_json(value) for value in summary["undo"]]
        self.lines = {line: (parent, fork) for line, parent, fork in summary["lines"]}
        self.snapshot_slots = Counter({slot: count for slot, count in summary["slots"]})
        self.retention = Retention.from_json(summary["retention"])
        self.base = Publication.from_json(summary["base"])
        self.origin = Publication.from_json(summary["origin"])

    def _reachable_lines(self) -> set[int]:
        """Lines that a ref may still ask about; the others are left out of the summary."""
        ahead = [line for _, line in self.branches.values()]
        ahead += [commit.line for commit in self.commits.values()]
        ahead += [snapshot.line for snapshot in self.snapshots.values()]
        ahead += [entry.snapshot.line for entry in self.undo if entry.snapshot]
        reachable: set[int] = set()
        while ahead:
            line = ahead.pop()
            if line in self.lines and line not in reachable:
                reachable.add(line)
                ahead.append(self.lines[line][0])
        return reachable


_APPLY = {
    "sync": lambda *_: None,
    "commit": State._commit,
    "snapshot": State._snapshot,
    "archive": State._archive,
    "branch": State._branch,
    "switch": State._switch,
    "delete": State._delete,
    "rewind": State._rewind,
    "undo": State._undo,
    "retention": State._retention,
    "unkeep": State._only_unkeep,
    "base": State._base,
}


def _manifest_after(before: Manifest, record: Record) -> Manifest:
    """The parent's manifest with the record's changes; put off where the record's `put` is."""
    put, remove = record["put"], record["remove"]
    if isinstance(put, DeferredRows) and not remove:
        return DeferredManifest(before, put, record["expect"])
    manifest = dict(before)
    for shard, part in remove:
        del manifest[shard, part]
    for shard, part, reference in put:
        manifest[shard, part] = ObjectRef.from_json(reference)
    return manifest


def changed_parts(parent: Manifest, manifest: Manifest) -> tuple[list[Part], list[Part]]:
    """Parts that a commit record has to put and to remove."""
    put = [part for part in sorted(manifest) if parent.get(part) != manifest[part]]
    remove = [part for part in sorted(parent) if part not in manifest]
    return put, remove
