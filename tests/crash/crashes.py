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
    """From how many power cuts of the generation before it goes on."""
    points: int
    """Crash points tried of one run; all of them if there are fewer."""
    cuts: int | None
    """Power cuts tried at one crash point, spread over all there are; None is every one."""
    subsets_max: int = 6
    """Up to so many unsynced effects, what a power cut leaves is enumerated, every subset."""
    samples: int = 16
    """Seeded samples beside those, and beside prefixes, one or two effects out or in, torn ones."""
    kills: int = 1000
    """From how many kills of the generation before it goes on."""
    mixed: bool = False
    """Where there are more parents than states for each, points come in a drawn order, and every
    other one begins with a power cut: else there would be little but kills of its beginning."""


Profile = Sequence[Depth]

SHORT: Profile = (
    Depth(states=400, parents=1, points=1000, cuts=20),
    Depth(states=300, parents=60, points=6, cuts=3),
    Depth(states=120, parents=30, points=2, cuts=2),
)
DISTINCT_LONG = 1_000_000
STATES_LONG = 1_400_000
"""Of all scenarios together, in the long profile. Scenarios begin alike, one image may have several
ghosts, and a share of few crash points ends early: by samples, 85 of 100 are distinct images."""


def deep(states: int) -> Profile:
    """The long profile, for so many states of one scenario: half of them after one crash, where
    every subset of up to ten effects is tried; what one generation has less the next has more."""
    half, quarter = states // 2, states // 4
    rest = states - half - quarter
    return (
        Depth(states=half, parents=1, points=1000, cuts=None, subsets_max=10, samples=64),
        Depth(states=quarter, parents=200, points=1000, cuts=40, samples=32, kills=300, mixed=True),
        Depth(states=rest, parents=600, points=12, cuts=20, kills=300, mixed=True),
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
    after: CrashFileSystem | None = None
    """What a kill before the next operation leaves."""

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
    """Crash points of the runs from which it went on."""
    images: int = 0
    """Images made, the same ones included."""
    states: Counter[int] = field(default_factory=Counter)
    """Distinct ones judged, by the number of crashes before them."""
    distinct: set[bytes] = field(default_factory=set)
    """Digests of their images, to be counted with those of other scenarios."""
    findings: list[list[str]] = field(default_factory=list)
    """Traces of what went wrong, the last line is the violation."""
    seconds: float = 0.0
