"""Refs: how users point at commits, and which kept commit answers.

Only kept commits can be named: heads, the retained ones, snapshots, and what undo entries hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardstore.errors import AmbiguousRefError, RefNotFoundError
from shardstore.format.manifest import CommitInfo, SnapshotInfo
from shardstore.wal.state import State

Target = CommitInfo | SnapshotInfo


@dataclass(frozen=True, slots=True)
class Ref:
    """A ref: `Ref.head`, `Ref.step(12)`, `Ref.seq(40)` or `Ref.name("best")`.

    Where the store takes a ref, a plain string is a name.
    """

    kind: str
    value: int | str = 0

    head: ClassVar[Ref]

    @classmethod
    def step(cls, step: int) -> Ref:
        """The newest commit of that step on the current line, else on the only other line."""
        return cls("step", step)

    @classmethod
    def seq(cls, seq: int) -> Ref:
        """The commit with that sequence number."""
        return cls("seq", seq)

    @classmethod
    def name(cls, name: str) -> Ref:
        """A snapshot or a branch."""
        return cls("name", name)

    @classmethod
    def parse(cls, text: str) -> Ref:
        """The command line's spelling: head, NAME, step:12, seq:40."""
        if text == "head":
            return cls.head
        kind, colon, value = text.partition(":")
        if not colon:
            return cls.name(text)
        if kind not in ("step", "seq") or not value.isdecimal():
            raise RefNotFoundError(f"{text!r} is not a ref; expected head, NAME, step:N or seq:N")
        return cls(kind, int(value))

    @classmethod
    def of(cls, ref: Ref | str) -> Ref:
        return ref if isinstance(ref, Ref) else cls("head") if ref == "head" else cls.name(ref)

    def __str__(self) -> str:
        if self.kind in ("step", "seq"):
            return f"{self.kind}:{self.value}"
        return str(self.value) if self.kind == "name" else "head"


Ref.head = Ref("head")


def resolve(state: State, ref: Ref | str) -> Target:
    """The commit or snapshot that a ref stands for, or RefNotFoundError / AmbiguousRefError."""
    wanted = Ref.of(ref)
    if wanted.kind == "head":
        if state.head is None:
            raise RefNotFoundError("the store has no commit yet")
        return state.head
    if wanted.kind == "name":
        return _by_name(state, str(wanted.value))
    if wanted.kind == "seq":
        for target in _kept(state):
            if target.seq == wanted.value:
                return target
        raise RefNotFoundError(f"no kept commit has sequence number {wanted.value}; {_hint(state)}")
    return _by_step(state, int(wanted.value))


def _by_name(state: State, name: str) -> Target:
    if name in state.snapshots:
        return state.snapshots[name]
    if name in state.branches:
        head = state.branches[name][0]
        if head is None:
            raise RefNotFoundError(f"branch {name!r} has no commit yet")
        return state.commits[head]
    raise RefNotFoundError(f"no snapshot or branch is called {name!r}; {_hint(state)}")


def _by_step(state: State, step: int) -> Target:
    matches = [target for target in _kept(state) if target.step == step]
    own = [t for t in matches if state.on_line(state.line, t.line, t.seq)]
    if own:
        return max(own, key=lambda target: target.seq)
    lines = {target.line for target in matches}
    if len(lines) > 1:
        listed = ", ".join(f"seq:{seq}" for seq in sorted({target.seq for target in matches}))
        raise AmbiguousRefError(
            f"step {step} is on several other lines of history: {listed}; name one by seq"
        )
    if not matches:
        raise RefNotFoundError(f"no kept commit has step {step}; {_hint(state)}")
    return max(matches, key=lambda target: target.seq)


def _kept(state: State) -> list[Target]:
    snapshots = [s for s in state.snapshots.values() if s.seq not in state.commits]
    return [*state.commits.values(), *snapshots]


def _hint(state: State) -> str:
    steps = sorted({target.step for target in _kept(state)})
    return f"kept steps: {', '.join(map(str, steps[-20:])) or 'none'}"
