"""An exploration cut into units: each is one process's work of a few minutes.

A unit is a scenario, or a share of its crash points. It depends on nothing
but itself, so that units can be done in any order and by anybody; `merged` sums them up. Images
that several units come across are judged by each of them and counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.crash.crashes import Profile, Report, deep
from tests.crash.memo import remembering
from tests.crash.scenarios import SCENARIOS
from tests.crash.walk import Explorer

STATES_UNIT = 8_000
"""About so many states a unit: two minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """See the module's docstring."""

    scenario: str
    profile: Profile
    part: int = 0
    parts: int = 1
    seed: int = 0

    @property
    def name(self) -> str:
        """Fit for a file's name."""
        words = self.scenario.replace(" ", "-")
        return f"{words}.{self.part + 1}of{self.parts}.seed{self.seed}"

    @property
    def states(self) -> int:
        """At most so many."""
        return sum(rule.states for rule in self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All units of one exploration."""

    scenarios: Sequence[str]
    profile: Profile
    """Of each unit."""
    parts: int = 1
    seed: int = 0

    def units(self) -> list[Unit]:
        """Every scenario's first part first, so that one that is stopped has been everywhere."""
        return [
            Unit(scenario=name, profile=self.profile, part=part, parts=self.parts, seed=self.seed)
            for part in range(self.parts)
            for name in self.scenarios
        ]


def planned(names: Sequence[str], states: int, *, seed: int = 0, unit: int = STATES_UNIT) -> Plan:
    """So many states of all scenarios together, in units of about so many."""
    each = -(-states // len(names))
    parts = -(-each // unit)
    profile = deep(-(-each // parts))
    return Plan(scenarios=tuple(names), profile=profile, parts=parts, seed=seed)


def explore(unit: Unit, seconds: float | None = None) -> Report:
    """One unit, whole, unless the time ends it."""
    with remembering():
        return Explorer(
            SCENARIOS[unit.scenario],
            unit.profile,
            seconds=seconds,
            part=unit.part,
            parts=unit.parts,
            seed=unit.seed,
        ).run()


def merged(reports: Iterable[Report]) -> list[Report]:
    """One report a scenario, in the order of the first of each."""
    found: dict[str, Report] = {}
    for report in reports:
        whole = found.setdefault(report.scenario, Report(report.scenario))
        whole.points += report.points
        whole.images += report.images
        whole.states += report.states
        whole.distinct |= report.distinct
        whole.findings += report.findings
        whole.seconds += report.seconds
    return list(found.values())
