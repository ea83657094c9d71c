"""The crash explorer, scenario after scenario, as far as the time goes."""

from __future__ import annotations

import random

from tests.crash.explorer import STATES_LONG, explore_all
from tests.crash.scenarios import SCENARIOS
from tools.lab.part import Lab, Outcome


def run(lab: Lab) -> Outcome:
    """Each scenario once; the order is drawn, so that a short time visits others each day."""
    outcome = Outcome(unit="crash states")
    names = list(SCENARIOS)
    random.Random(lab.seed).shuffle(names)
    states = STATES_LONG // len(names) if lab.long else None
    done = 0
    for name in names:
        if lab.over:
            break
        (report,) = explore_all([name], states=states, processes=1)
        outcome.tried += report.states.total()
        outcome.wrong += ["; ".join(finding) for finding in report.findings]
        done += 1
        lab.tell(outcome.tried)
    outcome.detail.append(f"{done} of {len(names)} scenarios")
    return outcome
