"""Each rule of the ordering table is left out of the real code once, and the oracle notices.

Goal: no rule is there for nothing, and none can be lost unseen. Method: see `mutations`.
"""

from __future__ import annotations

import pytest

from tests.crash.mutations import DOCUMENT, MUTATIONS, caught, render, sound

CASES = [
    pytest.param(index, id=f"{mutation.scenario}: {mutation.name}")
    for index, mutation in enumerate(MUTATIONS)
]


@pytest.mark.req("S3")
@pytest.mark.parametrize("index", CASES)
def test_the_loss_of_a_rule_is_caught(index: int) -> None:
    mutation = MUTATIONS[index]
    assert caught(index) is not None, f"{mutation.rule}: nothing notices that {mutation.name}"
    assert sound(mutation.scenario, mutation.profile) == []


@pytest.mark.req("S3")
def test_the_document_is_up_to_date() -> None:
    expected = render()
    assert "NOT CAUGHT" not in expected and "Mutation score: 100 %" in expected
    assert DOCUMENT.read_text() == expected, "run 'python -m tests.crash.mutations'"
