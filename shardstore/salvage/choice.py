"""What a salvage makes of the evidence: the newest whole step, and all that is whole besides.

Contract: a pure function of the disk; changes no byte. The state that comes out names verified
objects only. Each branch whose head is damaged goes back to the newest whole commit of its line,
the current one to any whole commit where its line has none. What the old state needed and the new
one does not goes into quarantine, damaged or not; where the log was damaged, every file that the
new state does not need, since nobody knows what the lost records needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from shardstore.errors import CorruptionError
from shardstore.format.manifest import CommitInfo, ObjectRef, SnapshotInfo, UndoEntry
from shardstore.format.names import OBJECTS_DIRECTORY, RAW, slot_file, slot_of
from shardstore.fs.protocol import FileSystem
from shardstore.quarantine import MOVE, Aside
from shardstore.salvage.evidence import Evidence, newest_first
from shardstore.salvage.objects_alone import state_of_objects
from shardstore.salvage.renewal import Renewed, renew
from shardstore.salvage.verify import Progress, Verdicts, verify
from shardstore.wal.state import State


@dataclass(slots=True, kw_only=True)
class Decision:
    """What a salvage would do; the same for a dry run and the real thing."""

    evidence: Evidence
    state: State
    """The state after it."""
    first_seq: int
    """Of the opening record that says it; its epoch."""
    unproven: bool
    """Made of objects alone."""
    is_moved: bool
    """The head is another commit than it was, or nobody knows what it was."""
    lost: list[str] = field(default_factory=list)
    """In words: what is gone, and what became of names."""
    aside: list[Aside] = field(default_factory=list)
    renewed: list[Renewed] = field(default_factory=list)
    """Snapshots whose manifest objects are written anew."""
    left: list[str] = field(default_factory=list)
    """Files that an earlier salvage, cut off, had still to set aside: done before anything else."""

    @property
    def needed(self) -> bool:
        return bool(self.lost or self.aside or self.evidence.store)

    def to_json(self) -> dict[str, Any]:
        head = self.state.head
        return {
            "needed": self.needed,
            "unproven": self.unproven,
            "head_moved": self.is_moved,
            "head": None if head is None else {"step": head.step, "seq": head.seq},
            "snapshots": sorted(self.state.snapshots),
            "branches": sorted(self.state.branches),
            "store": self.evidence.store or "sound",
            "lost": self.lost,
            "quarantine": [row.to_json() for row in self.aside],
            "left": self.left,
        }

    def lines(self) -> list[str]:
        """The decision in words."""
        left = [f"an earlier salvage was cut off; set aside first: {file}" for file in self.left]
        if not self.needed:
            return [*left, "nothing is damaged that the head, a branch or a snapshot needs"]
        head = self.state.head
        place = "an empty store" if head is None else f"step {head.step} (seq {head.seq})"
        verb = "the head goes to" if self.is_moved else "the head stays at"
        lines = left + [f"STORE is {self.evidence.store} and is written anew"] * bool(
            self.evidence.store
        )
        lines += [*self.lost, f"{verb} {place}; every byte of it was verified"]
        if self.unproven:
            lines.append(
                "this is UNPROVEN: made of object files alone, without the log. Each set has all "
                "its parts from one transaction, which may have been one that was aborted"
            )
        names = ", ".join(sorted(self.state.snapshots)) or "none"
        lines.append(f"snapshots that are whole and stay: {names}")
        lines += [f"into quarantine ({row.how}): {row.file}: {row.why}" for row in self.aside]
        return lines


def decide(fs: FileSystem, root: str, evidence: Evidence, progress: Progress) -> Decision:
    """Raises CorruptionError where nothing whole is left."""
    state, verdicts = evidence.state, None
    if state is not None:
        verdicts = verify(fs, root, evidence.uuid, state, progress)
        if verdicts.commits or not (state.commits or state.snapshots):
            return _Chooser(fs, root, evidence, state, verdicts, proven=True).decision()
    alone = state_of_objects(fs, root, evidence)
    found = verify(fs, root, evidence.uuid, alone, progress)
    if not found.commits:
        raise CorruptionError(
            "no whole step is left: neither the log nor the objects hold one, and nothing was "
            "changed; restore the store from a copy",
            file=f"{root}/{OBJECTS_DIRECTORY}",
        )
    if state is not None and verdicts is not None:
        evidence.lost += _of_commits(state, verdicts)
        alone.retention, alone.base, alone.origin = state.retention, state.base, state.origin
    evidence.is_sound = False
    return _Chooser(fs, root, evidence, alone, found, proven=False).decision()


def _of_commits(state: State, verdicts: Verdicts) -> list[str]:
    """What is wrong with each commit that is not whole."""
    lines = []
    for commit in state.commits.values():
        finding = verdicts.first_damage(commit)
        if finding is not None:
            again = " (a snapshot has it in other files)" * (commit.seq in verdicts.commits)
            lines.append(f"step {commit.step} (seq {commit.seq}) is damaged: {finding.line()}, "
                         f"shard {finding.shard!r} part {finding.part!r}{again}")  # fmt: skip
    return lines


class _Chooser:
    """One decision in the making."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        evidence: Evidence,
        old: State,
        verdicts: Verdicts,
        *,
        proven: bool,
    ) -> None:
        self._fs, self._root = fs, root
        self._evidence = evidence
        self._old = old
        self._verdicts = verdicts
        self._proven = proven
        self._lost = [*evidence.lost]
        epochs = [ref.epoch for ref in verdicts.references]
        self._next = max(evidence.top, old.seq, *old.commits, *epochs, 0) + 1
        """The next number that was never used: of new lines, then of the opening record."""
        self._renewed: list[Renewed] = []
        self._new = State(
            current=old.current,
            lines=dict(old.lines),
            retention=old.retention,
            base=old.base,
            origin=old.origin,
        )

    def decision(self) -> Decision:
        old, new = self._old, self._new
        new.commits = {s: c for s, c in self._verdicts.commits.items() if s in old.commits}
        self._lost += _of_commits(old, self._verdicts)
        self._choose_branches()
        self._choose_snapshots()
        new.undo = [entry for entry in old.undo if self._still_stands(entry)]
        self._count_slots()
        aside = [*self._evidence.aside, *self._objects_aside()]
        return Decision(
            evidence=self._evidence,
            state=new,
            first_seq=self._next,
            unproven=not self._proven,
            is_moved=not self._proven or new.head != _head(old),
            lost=self._lost,
            aside=aside,
            renewed=self._renewed,
        )

    # ------------------------------------------------------------------ refs

    def _choose_branches(self) -> None:
        new = self._new
        new.branches = {}
        for name, (head, line) in sorted(self._old.branches.items()):
            if head is None or (self._proven and head in new.commits):
                new.branches[name] = (head, line)
                continue
            chosen = self._for_branch(name, line)
            if chosen is None:
                self._lost.append(f"branch {name!r} is lost: no commit of its line is whole")
                continue
            if chosen.seq == head:  # the same commit, in a snapshot's files
                new.commits[head], new.branches[name] = chosen, (head, line)
                continue
            self._move(name, chosen)
        if new.current not in new.branches:  # nothing whole at all: an empty store
            new.branches[new.current] = (None, self._line(None))

    def _for_branch(self, name: str, line: int) -> CommitInfo | None:
        """The newest whole commit of the line; for the current branch any, if need be."""
        ordered = newest_first(self._verdicts.commits.values(), proven=self._proven)
        if not self._proven:
            return ordered[0] if ordered else None
        on_line = [c for c in ordered if self._old.on_line(line, c.line, c.seq)]
        if on_line or name != self._old.current:
            return on_line[0] if on_line else None
        return ordered[0] if ordered else None

    def _move(self, name: str, commit: CommitInfo) -> None:
        lost = self._old.branches[name][0]
        old = self._old.commits.get(lost) if lost is not None else None
        before = f"step {old.step}" if old is not None else "what was lost"
        self._new.commits[commit.seq] = commit
        self._new.branches[name] = (commit.seq, self._line(commit))
        if self._proven:
            self._lost.append(
                f"branch {name!r} goes back from {before} to step {commit.step} (seq {commit.seq})"
            )

    def _line(self, commit: CommitInfo | None) -> int:
        """A new line of history, from the commit on."""
        line, self._next = self._next, self._next + 1
        if commit is not None:
            self._new.lines[line] = (commit.line, commit.seq)
        return line

    def _choose_snapshots(self) -> None:
        for name, info in sorted(self._old.snapshots.items()):
            if info in self._verdicts.snapshots:
                self._new.snapshots[name] = info
                continue
            why = self._verdicts.spoilt.get(info, "its manifest object is damaged")
            if info in self._verdicts.renewable:
                self._new.snapshots[name] = self._renew(info)
                self._lost.append(
                    f"snapshot {name!r} (step {info.step}) gets a new manifest object, made from "
                    f"the log, which has the step whole: {why}"
                )
            else:
                self._lost.append(f"snapshot {name!r} (step {info.step}) is not whole: {why}")

    def _renew(self, info: SnapshotInfo) -> SnapshotInfo:
        """In a slot that no file has and nothing needs; after the branches were chosen, when the
        number of the opening record stands."""
        uuid, count = self._evidence.uuid, len(self._renewed)
        assert uuid is not None
        commit = self._verdicts.renewable[info]
        slots = [place[0] for name in self._files() if (place := slot_of(name)) is not None]
        slot = max([-1, *slots, *self._old.needed()]) + 1 + count
        write = ObjectRef(slot, self._next, count, 0, "", "", RAW)
        renewed = renew(uuid, info, commit, write)
        self._renewed.append(renewed)
        self._verdicts.snapshots[renewed.info] = commit
        return renewed.info

    def _still_stands(self, entry: UndoEntry) -> bool:
        """Whether undoing would still lead to something whole."""
        if entry.snapshot is not None:
            stands = entry.snapshot in self._verdicts.snapshots
        else:
            stands = entry.commit is None or entry.commit in self._new.commits
        if entry.op in ("rewind", "switch"):
            stands = stands and entry.name in self._new.branches
        if not stands and not entry.done:
            self._lost.append(f"undoing the {entry.op} of {entry.name!r} is not possible any more")
        return stands

    def _count_slots(self) -> None:
        new, counted = self._new, Counter[int]()
        held = self._verdicts.snapshots
        for info in new.snapshots.values():
            counted.update(held[info].slots() | {info.reference.slot})
        for at, entry in enumerate(new.undo):
            if entry.snapshot is not None:
                slots = held[entry.snapshot].slots() | {entry.snapshot.reference.slot}
                new.undo[at] = replace(entry, slots=tuple(sorted(slots)))
                counted.update(slots)
        new.snapshot_slots = counted

    # ------------------------------------------------------------------ files

    def _objects_aside(self) -> Iterable[Aside]:
        """Files that the new state does not need, but may hold something all the same."""
        needed, verdicts, known = self._new.needed(), self._verdicts, self._old.needed()
        damage = {reference.file: finding for (_, reference), finding in verdicts.damage.items()}
        for name in self._files():
            place = slot_of(name)
            if place is None or place[0] in needed:
                continue
            file = slot_file(*place)
            if file in damage:
                yield Aside(MOVE, file, damage[file].line())
            elif file in verdicts.files:
                yield Aside(MOVE, file, "whole, but only what was lost needs it")
            elif not self._evidence.is_sound:
                yield Aside(MOVE, file, "a lost record may have needed it")
            elif place[0] in known:
                yield Aside(MOVE, file, "only what was lost needs it; not verified")

    def _files(self) -> list[str]:
        try:
            return self._fs.list_directory(f"{self._root}/{OBJECTS_DIRECTORY}")
        except FileNotFoundError:
            return []


def _head(state: State) -> CommitInfo | None:
    """The head as far as it is known: a gap in the log may have left a number alone."""
    seq, _ = state.branches.get(state.current, (None, 0))
    return None if seq is None else state.commits.get(seq)
