"""The plain dictionary model of a store: what every ref should hold, none of the store's code.

It says what every branch, snapshot and kept commit hold, what a step means, which heads the three
undo entries keep and what the retention keeps. Each method is what one operation makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shardstore import Retention
from shardstore.errors import AmbiguousRefError, RefNotFoundError

UNDO_ENTRIES = 3
Part = tuple[str, str]
Content = dict[Part, int]


@dataclass(frozen=True)
class MCommit:
    """A commit as the model knows it; `ancestors` are the seqs of its line, itself included."""

    seq: int
    step: int
    content: tuple[tuple[Part, int], ...]
    ancestors: frozenset[int]
    parent: int | None
    line: int
    metric: float


@dataclass
class MUndo:
    op: str
    name: str
    commit: MCommit | None = None
    """The head that is kept: of a rewind, a switch, a deleted branch."""
    snapshot: MCommit | None = None
    done: bool = False


@dataclass
class Model:
    current: str = "main"
    heads: dict[str, MCommit | None] = field(default_factory=lambda: {"main": None})
    line_of: dict[str, int] = field(default_factory=lambda: {"main": 0})
    lines: int = 0
    kept: dict[int, MCommit] = field(default_factory=dict)
    """In the log itself: what the retention keeps, and what undo entries do."""
    snapshots: dict[str, MCommit] = field(default_factory=dict)
    undo: list[MUndo] = field(default_factory=list)
    rule: Retention = field(default_factory=Retention)

    @property
    def head(self) -> MCommit | None:
        return self.heads[self.current]

    def copy(self) -> Model:
        return replace(
            self,
            heads=dict(self.heads),
            line_of=dict(self.line_of),
            kept=dict(self.kept),
            snapshots=dict(self.snapshots),
            undo=[replace(entry) for entry in self.undo],
        )

    def taken(self, name: str) -> bool:
        return name in self.snapshots or name in self.heads

    # ------------------------------------------------------------------ operations

    def committed(self, seq: int, step: int, content: Content, metric: float) -> None:
        """A commit of the current branch, whose number the store says."""
        before = self.head
        made = MCommit(
            seq=seq,
            step=step,
            content=tuple(sorted(content.items())),
            ancestors=(before.ancestors if before else frozenset()) | {seq},
            parent=before.seq if before else None,
            line=self.line_of[self.current],
            metric=metric,
        )
        self.heads[self.current] = self.kept[seq] = made
        self.prune()

    def named_as(self, name: str, target: MCommit) -> None:
        self.snapshots[name] = target

    def switched(self, name: str) -> None:
        left, head = self.current, self.head
        self.current = name
        self.push(MUndo("switch", left, head))

    def deleted(self, name: str) -> None:
        snapshot = self.snapshots.pop(name, None)
        self.push(MUndo("delete", name, self.heads.pop(name, None), snapshot))

    def rewound(self, target: MCommit) -> None:
        left = self.head
        self.stand(self.current, target)
        self.push(MUndo("rewind", self.current, left))

    def next_undo(self) -> MUndo | None:
        return next((entry for entry in reversed(self.undo) if not entry.done), None)

    def undone(self) -> None:
        entry, left = self.next_undo(), self.head
        assert entry is not None
        if entry.op == "switch":
            self.current = entry.name
        elif entry.snapshot is not None:
            self.snapshots[entry.name] = entry.snapshot
        else:
            assert entry.commit is not None
            left = self.heads.get(entry.name)
            self.stand(entry.name, entry.commit)
        entry.commit = None if entry.op == "delete" else left
        entry.snapshot, entry.done = None, True
        self.prune()

    # ------------------------------------------------------------------ what follows from them

    def stand(self, branch: str, target: MCommit) -> None:
        """The branch's head is `target`, on a line of its own."""
        self.heads[branch] = self.kept[target.seq] = target
        self.lines += 1
        self.line_of[branch] = self.lines

    def prune(self) -> None:
        """By the rule, said in another way: with the ancestors that each commit knows."""
        heads = [c for c in self.heads.values() if c is not None]
        undoable = [e.commit for e in self.undo if e.commit is not None]
        held = {c.seq for c in undoable}
        for tip in heads:
            at: int | None = tip.seq
            for _ in range(self.rule.last):
                if at in self.kept:
                    held.add(at)
                    at = self.kept[at].parent
        for tip in heads + undoable:
            line = [c for c in self.kept.values() if c.seq in tip.ancestors]
            if self.rule.every:
                for step in {c.step for c in line if c.step % self.rule.every == 0}:
                    held.add(max(c.seq for c in line if c.step == step))
            if self.rule.best:
                sign = 1 if self.rule.best.mode == "min" else -1
                line.sort(key=lambda c: (sign * c.metric, c.seq))
                held |= {c.seq for c in line[: self.rule.best.count]}
        self.kept = {seq: c for seq, c in self.kept.items() if seq in held}

    def push(self, entry: MUndo) -> None:
        self.undo = [*self.undo, entry][-UNDO_ENTRIES:]
        self.prune()

    def named(self) -> dict[int, MCommit]:
        """What a number may stand for."""
        return {**self.kept, **{c.seq: c for c in self.snapshots.values()}}

    def by_step(self, step: int) -> MCommit | type[Exception]:
        matches = [c for c in self.named().values() if c.step == step]
        own = [c for c in matches if self.head and c.seq in self.head.ancestors]
        if own or len({c.line for c in matches}) == 1:
            return max(own or matches, key=lambda c: c.seq)
        return AmbiguousRefError if matches else RefNotFoundError

    def distinct_kept(self) -> int:
        """How many commits, and deleted snapshots that may come back, need objects of their own."""
        deleted = [e.snapshot.seq for e in self.undo if e.snapshot is not None]
        return len({*self.named(), *deleted})
