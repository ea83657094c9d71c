"""A reader and a writer in turn: no order of their operations lets a view see two steps.

Goal: rule 10 holds wherever the two are stopped, and each half of it is needed. Method: `turns`.
"""

from __future__ import annotations

import pytest

from tests.crash.turns import PIN_MUTATIONS, PROGRAMS, Program, Run, caught, lengths, prepared, runs

pytestmark = pytest.mark.req("S8")
CASES = [pytest.param(program, id=name) for name, program in PROGRAMS.items()]
STRIDE = 7
"""Coprime to what a commit repeats, so that with every reader other places of the writer come."""


def _judge(program: Program, stride: int) -> None:
    found = [(str(run), run.found, run.gone) for run in runs(program, stride)]
    wrong = [f"{places}: {what}" for places, what, _ in found if what]
    assert not wrong, "\n".join(wrong[:5])
    gone = sum(gone for _, _, gone in found)
    assert gone < len(found), "the reader never came in time"
    assert gone or program.ref.kind == "head", "the reader was never too late"


@pytest.mark.parametrize("program", CASES)
def test_a_view_is_one_step_wherever_both_are_stopped(program: Program) -> None:
    readers, writers = lengths(program)
    assert readers > 10 and writers > 50
    _judge(program, STRIDE)


@pytest.mark.long
@pytest.mark.parametrize("program", CASES)
def test_a_view_is_one_step_wherever_both_are_stopped_at_all(program: Program) -> None:
    _judge(program, 1)


@pytest.mark.parametrize(
    "index", [pytest.param(at, id=each.name) for at, each in enumerate(PIN_MUTATIONS)]
)
def test_the_loss_of_either_half_of_the_rule_is_caught(index: int) -> None:
    run = caught(index)
    assert run is not None, f"nothing notices that {PIN_MUTATIONS[index].name}"
    assert not Run(run.program, prepared(), *run.stops).found
