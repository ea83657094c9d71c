"""Where kills are meant to fall, where they fell, and the table of it.

A plan is drawn from a seed: so many kills for each phase, half of them held, half racing. A race
may end in a later phase than was meant, so a plan goes on, with held kills, until none is owed.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from tests.crash.kill_child import BETWEEN, PHASES, Event

COMMIT_SHARE = 0.4
# How many kills of 24 are meant for each phase, and how many of its events a step has.
_WEIGHTS = {
    "opening": 2, "load": 3, "compute": 3, "stage": 3, "append": 4, "sync": 6, "slot freed": 3
}  # fmt: skip
_PER_STEP = {
    "opening": 2, "load": 26, "compute": 26, "stage": 18, "append": 1, "sync": 2, "slot freed": 1
}  # fmt: skip
_SNAPSHOT_CHANCE = 0.15
_STEPS_AHEAD = 3
_RACE_SECONDS = (1e-5, 1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How much is killed."""

    kills: int
    each: int
    """At least so many in each phase."""
    max_steps: int
    lanes: int = 2
    seed: int = 2


CI = Profile(kills=24, each=2, max_steps=12)
LONG = Profile(kills=1000, each=60, max_steps=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a kill is meant to fall."""

    phase: str
    racing: bool
    """After the operation was let go, instead of right before it."""
    steps: int
    """Commits that the child acknowledges before."""
    occurrence: int
    """Which of the phase's events after those, from 1."""
    of_snapshot: bool
    """Of those that publish: a snapshot's, not a commit's."""
    race_seconds: float

    def matches(self, event: Event) -> bool:
        return event.phase == self.phase and event.of_snapshot == self.of_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Where a kill fell, and what became of it."""

    lane: int
    run: int
    phase: str
    """Of the last line that the child wrote."""
    event: str
    how: str
    """held: right before the event; racing: after it was let go; overtaken: after an earlier one
    was let go, but the child had come to this one."""
    in_commit: bool
    step: int
    """The step that the head was at afterwards; -1 without a commit."""
    recovered: str
    """same: as the last acknowledged commit, +1: one more."""


def targets(profile: Profile, lane: int, kills: Sequence[Kill]) -> Iterator[Target]:
    """The targets of one lane; `kills` are those that it has made so far."""
    draw = random.Random(f"{profile.seed}/{lane}")
    total, each = profile.kills // profile.lanes, math.ceil(profile.each / profile.lanes)
    phases = [phase for phase in PHASES for _ in range(_share(phase, total))]
    planned = [_draw_target(draw, phase, index + lane) for index, phase in enumerate(phases)]
    draw.shuffle(planned)
    yield from planned
    while owed := _owed(kills, each):
        yield _draw_target(draw, owed)


def _draw_target(draw: random.Random, phase: str, index: int | None = None) -> Target:
    """The `index`-th of a plan; without it one that surely falls on a commit, in its phase."""
    per_step, planned = _PER_STEP[phase], index is not None
    low, high = (math.log(seconds) for seconds in _RACE_SECONDS)
    occurrence = draw.randint(1, per_step)
    if index is not None and per_step == 2:
        occurrence = 1 + index // 2 % 2  # each has its turn, held and racing
    return Target(
        phase=phase,
        racing=index is not None and index % 2 == 1,
        steps=0 if phase == "opening" else draw.randrange(_STEPS_AHEAD),
        occurrence=occurrence,
        of_snapshot=planned and phase in ("append", "sync") and draw.random() < _SNAPSHOT_CHANCE,
        race_seconds=math.exp(draw.uniform(low, high)),
    )


def _share(phase: str, total: int) -> int:
    """Kills of a plan of `total` that are meant for the phase; the shares add up."""
    before = sum(_WEIGHTS[other] for other in PHASES[: PHASES.index(phase)])
    whole = sum(_WEIGHTS.values())
    return total * (before + _WEIGHTS[phase]) // whole - total * before // whole


def _owed(kills: Sequence[Kill], each: int) -> str | None:
    """A phase that has not had its kills yet."""
    counts = Counter(kill.phase for kill in kills)
    for phase in PHASES:
        if counts[phase] < each:
            return phase
    in_commit = sum(kill.in_commit for kill in kills)
    return "sync" if in_commit < COMMIT_SHARE * len(kills) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a profile came to; every check has held."""

    kills: tuple[Kill, ...]
    runs: int
    starts: int
    seconds: float

    def count(self, **values: object) -> int:
        """Kills with these fields."""
        return sum(
            all(getattr(kill, name) == value for name, value in values.items())
            for kill in self.kills
        )

    def table(self) -> list[str]:
        columns = ("held", "racing", "overtaken", "of commit", "same", "+1")
        lines = [f"{'phase':12}{'kills':>7}" + "".join(f"{name:>11}" for name in columns)]
        for phase in (*PHASES, BETWEEN, "all"):
            of = {} if phase == "all" else {"phase": phase}
            counts = [
                *(self.count(how=how, **of) for how in columns[:3]),
                self.count(in_commit=True, **of),
                *(self.count(recovered=how, **of) for how in columns[4:]),
            ]
            lines.append(f"{phase:12}{self.count(**of):7}" + "".join(f"{n:11}" for n in counts))
        share = 100 * self.count(in_commit=True) / len(self.kills)
        return [
            *lines,
            f"{share:.0f} % inside a commit; {self.runs} runs equal the uninterrupted one; "
            f"{self.starts} starts of the trainer in {self.seconds:.0f} s",
        ]

    def to_json(self) -> dict[str, object]:
        return asdict(self)
