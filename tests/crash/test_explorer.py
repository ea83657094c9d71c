"""The crash explorer on the real store: no crash, nor two or three in a row, leaves a wrong state.

Goal: acknowledged states survive kills and power cuts, none is mixed, no hand is needed. Method:
see `explorer`. The oracle itself is tested by breaking what it reads.
"""

from __future__ import annotations

import time

import pytest

from tests.crash.crashes import DISTINCT_LONG, SHORT, STATES_LONG, Depth, Profile, deep
from tests.crash.explorer import explore_all
from tests.crash.ghost import EMPTY, NO_STORE, payload
from tests.crash.oracle import ROOT, Violation, match
from tests.crash.reports import distinct, table
from tests.crash.scenarios import SCENARIOS
from tests.crash.walk import Explorer
from tests.crash.world import CrashFileSystem, World, read_only

STATES_MIN = 20_000
SMALL: Profile = (
    Depth(states=12, parents=1, points=6, cuts=3),
    Depth(states=8, parents=4, points=3, cuts=2),
)


def _explore(capsys: pytest.CaptureFixture[str], states: int | None = None) -> int:
    began = time.perf_counter()
    reports = explore_all(list(SCENARIOS), states=states)
    lines = table(reports, time.perf_counter() - began)
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert not any(report.findings for report in reports), "\n".join(lines)
    assert all(report.states[3] for report in reports), "three crashes in a row, everywhere"
    return distinct(reports)


@pytest.mark.timeout(1800)
@pytest.mark.req("S3")
def test_no_crash_leaves_a_wrong_state(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(SHORT) == 3
    assert _explore(capsys) >= STATES_MIN


@pytest.mark.long
@pytest.mark.timeout(12 * 3600)
@pytest.mark.req("S3")
def test_no_crash_leaves_a_wrong_state_in_depth(capsys: pytest.CaptureFixture[str]) -> None:
    assert _explore(capsys, STATES_LONG) >= DISTINCT_LONG


def test_the_long_profile_tries_every_subset_of_up_to_ten_effects() -> None:
    first = deep(1000)[0]
    assert (first.cuts, first.subsets_max) == (None, 10)
    assert sum(rule.states for rule in deep(1001)) == 1001


def test_exploring_twice_gives_the_same() -> None:
    first, second = (Explorer(SCENARIOS["delete"], SMALL).run() for _ in range(2))
    assert first.states == second.states == {1: 12, 2: 8}
    assert first.points == second.points
    assert first.images == second.images


def _stored() -> tuple[CrashFileSystem, World]:
    fs = CrashFileSystem()
    world = World(fs, (NO_STORE,))
    world.open()
    world.commit("a", "b")
    world.snapshot("s1")
    world.commit("a")
    world.close()
    return fs.kill(), world


def test_the_oracle_knows_what_is_there() -> None:
    fs, world = _stored()
    seen = read_only(fs)
    assert seen is not None
    assert match(world.ghost, seen) == world.state
    assert dict(seen.head.parts) == {"a": (2, ""), "b": (1, "")}  # type: ignore[union-attr]
    assert match((EMPTY, world.state), seen) == world.state


def test_the_oracle_refuses_another_state() -> None:
    fs, world = _stored()
    seen = read_only(fs)
    assert seen is not None
    with pytest.raises(Violation, match=r"expected .*step 3"):
        match((world.state.committed(3, "", ("a",), ()),), seen)
    with pytest.raises(Violation, match="snapshots"):
        match((world.state.deleted("s1"),), seen)


@pytest.mark.parametrize("slot", range(4))
def test_the_oracle_sees_one_changed_byte(slot: int) -> None:
    fs, _ = _stored()
    fs.open(f"{ROOT}/objects/{slot:06x}.raw", "write").pwrite(6000, b"\x00\x01")
    with pytest.raises(Violation, match=f"{slot:06x}.raw"):
        read_only(fs.kill())


def test_payloads_are_a_function_of_their_writer() -> None:
    payloads = [payload(shard, (step, "")) for shard in "ab" for step in (1, 2)]
    sectors = {data[at : at + 512] for data in payloads for at in range(0, len(data), 512)}
    assert len(sectors) == sum(len(data) // 512 for data in payloads)
    assert payload.__wrapped__("a", (1, "")) == payloads[0]
