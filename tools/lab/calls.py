"""System-call injection; see tests/crash/syscalls."""

from __future__ import annotations

import json
from collections import Counter

from tests.crash.syscalls import ACTIONS, Result, interrupt_all
from tests.support.permitted import trace_refusal
from tools.lab.batches import Batch, in_batches
from tools.lab.part import Lab, Outcome

UNIT = "interruptions"


def why_not() -> str:
    return trace_refusal()


def run(lab: Lab) -> Outcome:
    """All of them: in a drawn order as far as the time goes, or action by action."""
    if lab.long:
        return _long(lab)
    planned = 0

    def tell(done: int, goal: int) -> None:
        nonlocal planned
        planned = goal
        lab.tell(done)

    result = interrupt_all(lab.directory, seed=lab.seed, until=lab.until, progress=tell)
    return Outcome(
        unit=UNIT,
        tried=result.tried.total(),
        wrong=result.wrong,
        detail=[f"drawn from {planned} that there are", *_details(result)],
    )


def _long(lab: Lab) -> Outcome:
    """A batch is an action, each of its calls interrupted in each way."""

    def batch(number: int, place: Lab) -> Batch:
        action = ACTIONS[number]
        result = interrupt_all(
            place.directory, actions=[action], seed=lab.seed, progress=place.tell
        )
        return Batch(
            tried=result.tried.total(), wrong=result.wrong, data=json.loads(result.to_json())
        )

    outcome, data = in_batches(lab, UNIT, 0, list(ACTIONS), batch)
    together = Result(wrong=outcome.wrong)
    for values in data:
        together.tried += Counter(values["tried"])
        together.missed += values["missed"]
        together.calls |= values["calls"]
    outcome.detail += _details(together)
    return outcome


def _details(result: Result) -> list[str]:
    calls = ", ".join(f"{action} {count}" for action, count in result.calls.items())
    return [result.line(), f"system calls of each action: {calls}"]
