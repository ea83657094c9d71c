"""What a store should hold, kept beside it: pure values, nothing of the store's own code.

A ghost state is everything that a user can ask for: the head, the commit before it, snapshots,
other branches, how many commits stay kept, what can be undone. While an operation runs two states
are possible, the acknowledged one and the attempted one; a crash must leave exactly one of them.
Payloads are a pure function of who wrote them, so that an attempt made again writes the same bytes
over what the first one left.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, replace

Token = tuple[int, str]
"""Who wrote a part: the step and the flavour of the line of history."""

SHARD_BYTES = 4096
PART = "p"
UNDO_ENTRIES = 3
_known: dict[bytes, tuple[str, Token]] = {}


@functools.cache
def payload(shard: str, token: Token) -> bytes:
    """The bytes of one part; every sector of every payload differs from all others."""
    data = random.Random(f"{shard}:{token[0]}:{token[1]}").randbytes(SHARD_BYTES)
    _known[data] = (shard, token)
    return data


def writer_of(data: bytes) -> tuple[str, Token] | None:
    """Which payload these bytes are, whole, or None."""
    return _known.get(data)


@dataclass(frozen=True, slots=True)
class GhostCommit:
    """A commit: its label and who wrote each of its parts."""

    step: int
    flavour: str
    parts: tuple[tuple[str, Token], ...]

    def __str__(self) -> str:
        inside = " ".join(f"{shard}={step}{flavour}" for shard, (step, flavour) in self.parts)
        return f"step {self.step}{self.flavour} ({inside})"


@dataclass(frozen=True, slots=True)
class Undoable:
    """A rewind or a switch (`kept` is the head that was left) or a deletion (`kept` is what the
    name stood for, `op` says whether it was a branch)."""

    op: str
    name: str
    kept: GhostCommit
    done: bool = False


@dataclass(frozen=True, slots=True)
class GhostState:
    exists: bool = True
    head: GhostCommit | None = None
    previous: GhostCommit | None = None
    """Retained beside the head; None where nothing is promised."""
    snapshots: tuple[tuple[str, GhostCommit], ...] = ()
    current: str = "main"
    others: tuple[tuple[str, GhostCommit], ...] = ()
    """The heads of the other branches."""
    last: int = 2
    """How many commits of a branch the retention keeps."""
    undo: tuple[Undoable, ...] = ()

    def __str__(self) -> str:
        if not self.exists:
            return "no store"
        names = ", ".join(f"{name}: {commit}" for name, commit in self.snapshots)
        others = ", ".join(f"{name}: {commit}" for name, commit in self.others)
        place = f"{self.current}: {self.head or 'empty'}"
        return f"[{place}; branches {{{others}}}; snapshots {{{names}}}; last {self.last}]"

    @property
    def undoable(self) -> bool:
        return any(not entry.done for entry in self.undo)

    def snapshot(self, name: str) -> GhostCommit:
        return dict(self.snapshots)[name]

    # What each operation makes of it

    def committed(
        self, step: int, flavour: str, stage: tuple[str, ...], remove: tuple[str, ...]
    ) -> GhostState:
        parts = dict(self.head.parts) if self.head else {}
        for shard in remove:
            del parts[shard]
        for shard in stage:
            payload(shard, (step, flavour))
            parts[shard] = (step, flavour)
        commit = GhostCommit(step, flavour, tuple(sorted(parts.items())))
        return replace(self, head=commit, previous=self.head if self.last > 1 else None)

    def named(self, name: str) -> GhostState:
        assert self.head is not None
        return self._with_snapshots({**dict(self.snapshots), name: self.head})

    def deleted(self, name: str) -> GhostState:
        left = dict(self.snapshots)
        entry = Undoable("delete", name, left.pop(name))
        return self._with_snapshots(left)._pushed(entry)

    def rewound(self, name: str) -> GhostState:
        assert self.head is not None
        entry = Undoable("rewind", self.current, self.head)
        return replace(self, head=self.snapshot(name), previous=None)._pushed(entry)

    def branched(self, name: str) -> GhostState:
        assert self.head is not None
        return self._with_others({**dict(self.others), name: self.head})

    def switched(self, name: str) -> GhostState:
        assert self.head is not None
        return self._at(name)._pushed(Undoable("switch", self.current, self.head))

    def branch_deleted(self, name: str) -> GhostState:
        left = dict(self.others)
        entry = Undoable("delete branch", name, left.pop(name))
        return self._with_others(left)._pushed(entry)

    def keeping(self, last: int) -> GhostState:
        """Nothing goes before the next change that un-keeps."""
        return replace(self, last=last)

    def collected(self) -> GhostState:
        return self if self.last > 1 else replace(self, previous=None)

    def undone(self) -> GhostState:
        at = max(i for i, entry in enumerate(self.undo) if not entry.done)
        entry, entries = self.undo[at], list(self.undo)
        entries[at] = replace(entry, done=True)
        after = replace(self, undo=tuple(entries))
        if entry.op == "delete":
            return after._with_snapshots({**dict(self.snapshots), entry.name: entry.kept})
        if entry.op == "switch":
            return after._at(entry.name)
        if entry.op == "delete branch":
            return after._with_others({**dict(self.others), entry.name: entry.kept})
        return replace(after, head=entry.kept, previous=None)

    def _at(self, name: str) -> GhostState:
        assert self.head is not None
        others = {**dict(self.others), self.current: self.head}
        head = others.pop(name)
        return replace(self, current=name, head=head, previous=None)._with_others(others)

    def _with_others(self, others: dict[str, GhostCommit]) -> GhostState:
        return replace(self, others=tuple(sorted(others.items())))

    def _with_snapshots(self, snapshots: dict[str, GhostCommit]) -> GhostState:
        return replace(self, snapshots=tuple(sorted(snapshots.items())))

    def _pushed(self, entry: Undoable) -> GhostState:
        return replace(self, undo=(*self.undo, entry)[-UNDO_ENTRIES:])


NO_STORE = GhostState(exists=False)
EMPTY = GhostState()

Ghost = tuple[GhostState, ...]
"""The acknowledged state, and the attempted one while an operation runs."""
