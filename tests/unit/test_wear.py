"""Wear is arithmetic: bytes a day, years to a rated endurance, and what a limit chooses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore import UsageError, Wear
from shardstore.wear import DAYS_PER_YEAR, SECONDS_PER_DAY, TERABYTE, commits_per_day

pytestmark = pytest.mark.req("S32")


def test_bytes_a_day_and_years_of_a_disk() -> None:
    """1.2 GB a step of ten seconds on a disk of 600 TBW."""
    wear = Wear.of(1_200_000_000, 10)
    assert wear.commits_per_day == 8640
    assert wear.bytes_per_day == 1.2e9 * 8640  # 10.4 TB
    assert wear.commits_until(600 * TERABYTE) == 500_000
    years = wear.years_until(600 * TERABYTE)
    assert years == pytest.approx(500_000 / 8640 / 365.25)
    assert wear.lines(600 * TERABYTE) == [
        "1.2 GB a commit",
        "10.4 TB a day",
        "600 TB of rated endurance take 500000 commits, 0.158 years at this pace",
    ]


@pytest.mark.parametrize(
    ("years", "level", "every"),
    [(1, "durable", 1), (2, "durable", 1), (2.01, "deferred", 2), (5, "deferred", 3),
     (6, "deferred", 3), (200, "deferred", 100)],
)  # fmt: skip
def test_a_limit_chooses_the_durability(years: float, level: str, every: int) -> None:
    wear = Wear(bytes_per_commit=10**9, commits_per_day=1000)  # 1 TB a day
    rated = 2 * DAYS_PER_YEAR * TERABYTE  # two years of it
    choice = wear.within(rated, years)
    assert choice is not None and (choice.level, choice.every) == (level, every)
    assert (f"one commit in {every}" in choice.text()) == (every > 1)
    value = wear.to_json(rated, years)
    assert (value["durability"], value["every"]) == (level, every)
    assert value["years_until_rated"] == pytest.approx(2)
    assert choice.text() in wear.lines(rated, years)[-1]


@given(
    size=st.integers(1, 10**13), pace=st.floats(0.01, 10**6), rated=st.floats(10**9, 10**18),
    years=st.floats(0.01, 100),
)  # fmt: skip
def test_the_choice_keeps_within_the_limit_and_no_smaller_one_does(
    size: int, pace: float, rated: float, years: float
) -> None:
    wear = Wear(bytes_per_commit=size, commits_per_day=pace)
    choice = wear.within(rated, years)
    assert choice is not None and choice.every >= 1
    days = years * DAYS_PER_YEAR

    def written(every: int) -> float:
        return size * pace / every * days

    assert written(choice.every) <= rated * (1 + 1e-9)
    if choice.every > 1:
        assert written(choice.every - 1) > rated * (1 - 1e-9)


def test_an_unknown_pace_is_not_made_up() -> None:
    wear = Wear(bytes_per_commit=2 * 10**6)
    assert wear.bytes_per_day is None and wear.years_until(TERABYTE) is None
    assert wear.within(TERABYTE, 5) is None and wear.commits_until(TERABYTE) == 500_000
    lines = ["2 MB a commit", "1 TB of rated endurance take 500000 commits"]
    assert wear.lines(TERABYTE, 5) == lines
    assert wear.to_json() == {
        "bytes_per_commit": 2 * 10**6, "commits_per_day": None, "bytes_per_day": None,
    }  # fmt: skip


def test_a_run_that_writes_nothing_wears_nothing() -> None:
    wear = Wear(bytes_per_commit=0, commits_per_day=100)
    assert wear.years_until(TERABYTE) == math.inf and wear.commits_until(TERABYTE) is None
    choice = wear.within(TERABYTE, 5)
    assert choice is not None and choice.every == 1
    assert "not touched" in wear.lines(TERABYTE)[-1]


def test_the_pace_leaves_pauses_out() -> None:
    assert commits_per_day([]) is None and commits_per_day([5.0]) is None
    assert commits_per_day([5.0, 5.0]) is None
    assert commits_per_day([30, 0, 10, 20, 90_000]) == SECONDS_PER_DAY / 10
    assert commits_per_day([0, 1, 4]) == SECONDS_PER_DAY / 2  # between the two gaps


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_senseless_numbers_are_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="seconds a commit"):
        Wear.of(1, seconds)
    wear = Wear.of(1, 1)
    for call in (wear.years_until, wear.commits_until):
        with pytest.raises(UsageError, match="rated endurance"):
            call(seconds)
    with pytest.raises(UsageError, match="years"):
        wear.within(1, seconds)
    with pytest.raises(UsageError, match="0 or more"):
        Wear(bytes_per_commit=-1)
    with pytest.raises(UsageError, match="0 or more"):
        Wear(bytes_per_commit=1, commits_per_day=math.nan)
