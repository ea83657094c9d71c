"""The store against a plain dictionary: any order of calls, accidents and deaths of the process.

Goal: whatever a caller, the disk and other processes do in whatever order, the store holds what the
model says. Method: see `machine` and `accidents`. What it found stands as tests of its own in
`test_found`.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.stateful.accidents import Machine

pytestmark = pytest.mark.req("S2", "S5", "S6", "S7", "S8", "S9", "S10", "S14", "S15", "S16", "S17")


class TestModel(Machine.TestCase):
    settings = settings(max_examples=100, stateful_step_count=50)


@pytest.mark.long
class TestModelLong(Machine.TestCase):
    settings = settings(max_examples=2000, stateful_step_count=50)
