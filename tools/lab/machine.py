"""The state machines of tests/stateful, with new examples each time."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tools.lab.part import Lab, Outcome

ROOT = Path(__file__).resolve().parents[2]
LONG_EXAMPLES, EXAMPLES = 2000, 10
STEPS = 50


def machines() -> list[type[Any]]:
    """Every machine that a module of tests/stateful defines."""
    found = []
    for path in sorted((ROOT / "tests" / "stateful").glob("test_*.py")):
        module = importlib.import_module(f"tests.stateful.{path.stem}")
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, RuleBasedStateMachine)
                and value.__module__ == module.__name__
            ):
                found.append(value)
    return found


def run(lab: Lab) -> Outcome:
    """Rounds of a few examples, so that the time can end them."""
    outcome = Outcome(unit=f"examples of up to {STEPS} steps")
    known = machines()
    outcome.detail.append(", ".join(machine.__name__ for machine in known))
    turn = 0
    while not lab.over and not outcome.wrong:
        for machine in known:
            chosen = settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                derandomize=False,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            )
            try:
                run_state_machine_as_test(seed(lab.seed + turn)(machine), settings=chosen)
            except Exception as error:
                outcome.wrong.append("".join(traceback.format_exception(error))[-4000:])
            outcome.tried += EXAMPLES
            lab.tell(outcome.tried, LONG_EXAMPLES * len(known) if lab.long else 0)
        turn += 1
        if lab.long and turn * EXAMPLES >= LONG_EXAMPLES:
            break
    return outcome
