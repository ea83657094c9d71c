"""Power cuts on an image; see tests/crash/power_cuts."""

from __future__ import annotations

from tests.crash.power_cuts import cut_often
from tests.support.permitted import mount_refusal
from tools.lab.part import Lab, Outcome

LONG_CUTS, MOST_CUTS = 200, 10_000


def why_not() -> str:
    return mount_refusal("ext4")


def run(lab: Lab) -> Outcome:
    cuts = LONG_CUTS if lab.long else MOST_CUTS
    result = cut_often(lab.directory, cuts=cuts, seed=lab.seed, until=lab.until, progress=lab.tell)
    return Outcome(unit="power cuts", tried=result.cuts, wrong=result.wrong, detail=[result.line()])
