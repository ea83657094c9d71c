"""What the explorer walks through: crash points of a run, images that follow, how much of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardstore.fs.memory import Operation
from tests.crash.ghost import Ghost
from tests.crash.images import describe
from tests.crash.oracle import ROOT
from tests.crash.world import CrashFileSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How much of one generation of crashes is tried, per scenario."""

    states: int
    parents: int
    """From how many power cuts of the generation before it goes on, and from every kill."""
    points: int
    """Crash points tried of one run; all of them if there are fewer."""
    cuts: int
    """Power cuts tried at one crash point; all of them if there are fewer."""


Profile = Sequence[Depth]

SHORT: Profile = (
    Depth(states=330, parents=1, points=1000, cuts=20),
    Depth(states=265, parents=60, points=6, cuts=3),
    Depth(states=100, parents=30, points=2, cuts=2),
)
LONG: Profile = (
    Depth(states=3500, parents=1, points=1000, cuts=400),
    Depth(states=3500, parents=300, points=1000, cuts=6),
    Depth(states=1800, parents=300, points=6, cuts=4),
)


@dataclass(slots=True)
class Point:
    """What a crash before an operation leaves, and what was promised by then."""

    operation: Operation | None
    """None at the end of a run."""
    killed: CrashFileSystem
    ghost: Ghost
    """What a kill may leave."""
    cut: Ghost
    """What a power cut may leave."""

    def __str__(self) -> str:
        return "at the end" if self.operation is None else f"before {self.name}"

    @property
    def name(self) -> str:
        """The operation, without the root."""
        assert self.operation is not None
        values = (self.operation.path, *self.operation.detail)
        return " ".join([self.operation.op, *(str(v).removeprefix(f"{ROOT}/") for v in values)])


@dataclass(slots=True)
class Node:
    """An image to judge and to go on from."""

    fs: CrashFileSystem
    ghost: Ghost
    parent: Node | None
    step: str
    killed: CrashFileSystem | None = None
    cut: Ghost | None = None
    """What a power cut may still leave, where that is not the same."""

    def trace(self) -> list[str]:
        """How to get here, one line a crash."""
        lines = self.parent.trace() if self.parent else []
        choice = describe(self.killed, self.fs) if self.killed is not None else ""
        return [*lines, self.step + (f" ({choice})" if choice else "")]


@dataclass(slots=True)
class Report:
    """What one scenario's exploration did."""

    scenario: str
    points: int = 0
    images: int = 0
    """Images made, the same ones included."""
    states: Counter[int] = field(default_factory=Counter)
    """Distinct ones judged, by the number of crashes before them."""
    findings: list[list[str]] = field(default_factory=list)
    """Traces of what went wrong, the last line is the violation."""
    seconds: float = 0.0
