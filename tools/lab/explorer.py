"""The crash explorer, every scenario, each for its share of the time."""

from __future__ import annotations

import multiprocessing
import os
import random
from functools import partial

from tests.crash.crashes import STATES_LONG, Report
from tests.crash.explorer import explore_all
from tests.crash.kept import KeptError
from tests.crash.kept_run import explore_kept
from tests.crash.reports import distinct
from tests.crash.scenarios import SCENARIOS
from tests.crash.units import planned
from tools.lab.part import Lab, Outcome

UNIT = "crash states"
_START_SECONDS = 2.0
"""Until the processes have imported everything."""


def run(lab: Lab) -> Outcome:
    return _long(lab) if lab.long else _timed(lab)


def _timed(lab: Lab) -> Outcome:
    """The order is drawn; every scenario gets the same time, one, two and three crashes deep."""
    names = list(SCENARIOS)
    random.Random(lab.seed).shuffle(names)
    processes = min(os.cpu_count() or 1, 8)
    each = max(0.1, lab.seconds - _START_SECONDS) * processes / len(names)
    reports: list[Report] = []
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for report in pool.imap_unordered(partial(_explored, seconds=each), names):
            reports.append(report)
            lab.tell(sum(report.states.total() for report in reports))
    return _outcome(reports, len(names))


def _explored(name: str, seconds: float) -> Report:
    (report,) = explore_all([name], seconds=seconds, processes=1)
    return report


def _long(lab: Lab) -> Outcome:
    """In units that a stopped call leaves to the next one."""
    plan = planned(list(SCENARIOS), STATES_LONG, seed=lab.seed)

    def tell(line: str, states: int) -> None:
        lab.say(line)
        lab.tell(states, STATES_LONG)

    kept = lab.kept or lab.directory / "units"
    processes = min(os.cpu_count() or 1, 8)
    try:
        reports = explore_kept(plan, kept, processes=processes, tell=tell)
    except KeptError as error:  # of other sources, perhaps
        return Outcome(unit=UNIT, detail=[str(error)])
    outcome = _outcome(reports, len(SCENARIOS))
    took = sum(report.seconds for report in reports)
    outcome.detail.append(f"{took:,.0f} s of {processes} processes, earlier calls' units included")
    return outcome


def _outcome(reports: list[Report], scenarios: int) -> Outcome:
    states = [report.states.total() for report in reports]
    wrong = [finding for report in reports for finding in report.findings]
    return Outcome(
        unit=UNIT,
        tried=sum(states),
        wrong=["; ".join(finding) for finding in wrong],
        detail=[
            f"{len(reports)} of {scenarios} scenarios, {min(states, default=0):,} to "
            f"{max(states, default=0):,} states each; {distinct(reports):,} distinct images"
        ],
    )
