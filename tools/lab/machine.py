"""The state machine of tests/stateful, with new examples each time."""

from __future__ import annotations

import time
import traceback

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.accidents import Machine
from tools.lab.batches import Batch, in_batches
from tools.lab.part import Lab, Outcome

LONG_EXAMPLES, BATCHES, EXAMPLES = 2000, 20, 10
STEPS = 50
UNIT = f"examples of up to {STEPS} steps"


def run(lab: Lab) -> Outcome:
    """Rounds of a few examples, fewer towards the end of the time; in the long profile batches."""
    if lab.long:
        return _long(lab)
    outcome = Outcome(unit=UNIT)
    turn, each = 0, 0.0
    while not outcome.wrong:
        left = lab.until - time.monotonic()
        count = min(EXAMPLES, int(left / each)) if each else 1
        if left <= 0 or count < 1:
            break
        began = time.monotonic()
        outcome.wrong += examples(lab.seed * 1_000_000 + turn, count)
        outcome.tried += count
        each = (time.monotonic() - began) / count
        lab.tell(outcome.tried)
        turn += 1
    return outcome


def _long(lab: Lab) -> Outcome:
    count = LONG_EXAMPLES // BATCHES

    def batch(number: int, _place: Lab) -> Batch:
        return Batch(tried=count, wrong=examples(lab.seed * BATCHES + number, count))

    names = [f"batch {number + 1} of {BATCHES}" for number in range(BATCHES)]
    outcome, _ = in_batches(lab, UNIT, LONG_EXAMPLES, names, batch)
    return outcome


def examples(number: int, count: int) -> list[str]:
    """So many examples of this seed; what went wrong, in words that repeat it."""
    chosen = settings(
        max_examples=count,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(seed(number)(Machine), settings=chosen)
    except Exception as error:
        return ["".join(traceback.format_exception(error))[-4000:]]
    return []
