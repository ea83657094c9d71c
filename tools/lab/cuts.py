"""Power cuts on an image; see tests/crash/power_cuts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from tests.crash.power_cuts import Result, cut_often
from tests.support.permitted import mount_refusal
from tools.lab.batches import Batch, in_batches
from tools.lab.part import Lab, Outcome

UNIT = "power cuts"
LONG_CUTS, BATCHES, MOST_CUTS = 200, 10, 10_000


def why_not() -> str:
    return mount_refusal("ext4")


def run(lab: Lab) -> Outcome:
    if lab.long:
        return _long(lab)
    result = cut_often(
        lab.directory, cuts=MOST_CUTS, seed=lab.seed, until=lab.until, progress=_told(lab)
    )
    return Outcome(unit=UNIT, tried=result.cuts, wrong=result.wrong, detail=[result.line()])


def _told(lab: Lab) -> Callable[[int, int], None]:
    """A number that time will not let it reach is no goal."""
    return lambda done, _goal: lab.tell(done)


def _long(lab: Lab) -> Outcome:
    """Batches, each on disks of its own."""
    each = LONG_CUTS // BATCHES

    def batch(number: int, place: Lab) -> Batch:
        seed = lab.seed * BATCHES + number
        result = cut_often(place.directory, cuts=each, seed=seed, progress=_told(place))
        return Batch(tried=result.cuts, wrong=result.wrong, data=asdict(result))

    names = [f"batch {number + 1} of {BATCHES}" for number in range(BATCHES)]
    outcome, data = in_batches(lab, UNIT, LONG_CUTS, names, batch)
    results = [Result(**values) for values in data]
    together = Result(
        how=results[0].how,
        cuts=sum(result.cuts for result in results),
        behind=sum(result.behind for result in results),
        wrong=outcome.wrong,
    )
    outcome.detail.append(together.line())
    return outcome
