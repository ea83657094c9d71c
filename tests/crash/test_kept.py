"""A long exploration is stopped and gone on with.

Goal: what is reported is what one that nobody disturbed reports, and results of other sources or
another profile are never mixed in. Method: the command, killed while it works; a directory of its
own for each thing that may be wrong with one.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash import kept
from tests.crash.crashes import Depth, Profile
from tests.crash.kept import Kept, KeptError
from tests.crash.kept_run import explore_kept
from tests.crash.reports import as_json
from tests.crash.units import Plan, explore, merged, planned

ROOT = Path(__file__).parents[2]
SMALL: Profile = (
    Depth(states=10, parents=1, points=6, cuts=3),
    Depth(states=6, parents=4, points=3, cuts=2),
)
PLAN = Plan(scenarios=("delete", "commit"), profile=SMALL, parts=2)
COMMAND = (sys.executable, "-m", "tests.crash.explorer", "create by name", "roll", "--json")
AMOUNT = ("--states", "160", "--unit-states", "40", "--processes", "1")


def _told(directory: Path) -> dict[str, Any]:
    words = [*COMMAND, *AMOUNT, "--keep", str(directory)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return _timeless(json.loads(done.stdout))


def _timeless(result: dict[str, Any]) -> dict[str, Any]:
    for part in (result, *result["scenarios"]):
        del part["seconds"]
    return result


def _files(directory: Path) -> dict[str, tuple[int, bytes]]:
    found = (directory / "units").iterdir()
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in found}


@pytest.mark.req("S3")
def test_a_killed_exploration_goes_on_and_reports_the_same(tmp_path: Path) -> None:
    words = [*COMMAND, *AMOUNT, "--keep", str(tmp_path / "killed")]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stderr is not None
        assert run.stderr.readline().startswith(b"1 of 4 units")
        run.send_signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
    before = {n: file for n, file in _files(tmp_path / "killed").items() if ".tmp" not in n}
    assert 1 <= len(before) < 4
    result = _told(tmp_path / "killed")
    after = _files(tmp_path / "killed")
    assert len(after) == 4
    assert after.items() >= before.items(), "what was kept is explored no more"
    assert result == _told(tmp_path / "whole")
    assert result["states"] == 160 and result["violations"] == 0
    assert result == _told(tmp_path / "whole"), "a finished one is only read"


def test_what_is_kept_is_what_was_found(tmp_path: Path) -> None:
    told: list[str] = []
    reports = explore_kept(
        PLAN, tmp_path, processes=2, tell=lambda line, _states: told.append(line)
    )
    expected = merged(explore(unit) for unit in PLAN.units())
    assert _timeless(as_json(reports, 0)) == _timeless(as_json(expected, 0))
    assert [report.distinct for report in reports] == [report.distinct for report in expected]
    assert told[-1].startswith("4 of 4 units, 64 states")


def test_parts_share_the_crash_points() -> None:
    plan = Plan(scenarios=("commit",), profile=(Depth(states=0, parents=1, points=9, cuts=1),))
    whole = explore(plan.units()[0]).points
    shares = [explore(unit).points for unit in _parts(plan, 3).units()]
    assert sum(shares) == whole and max(shares) - min(shares) <= 1


def _parts(plan: Plan, parts: int) -> Plan:
    return Plan(scenarios=plan.scenarios, profile=plan.profile, parts=parts)


def test_a_seed_draws_other_images() -> None:
    plan = Plan(scenarios=("commit",), profile=SMALL, seed=0)
    other = Plan(scenarios=("commit",), profile=SMALL, seed=1)
    first, second = (explore(one.units()[0]) for one in (plan, other))
    assert first.distinct != second.distinct


def test_a_plan_has_as_many_states_as_were_asked_for() -> None:
    plan = planned(["commit", "roll"], 50_000, unit=9_000)
    assert plan.parts == 3
    assert 50_000 <= sum(unit.states for unit in plan.units()) < 50_100
    assert len({unit.name for unit in plan.units()}) == 6


def _begin(directory: Path, plan: Plan = PLAN) -> None:
    with Kept(directory).opened(plan):
        pass


def test_another_exploration_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _begin(tmp_path)
    _begin(tmp_path)
    seeded = Plan(scenarios=PLAN.scenarios, profile=SMALL, parts=2, seed=7)
    with pytest.raises(KeptError, match=r"other seed \(seed: 0, now 7\): name another directory"):
        _begin(tmp_path, seeded)
    with pytest.raises(KeptError, match="other profile"):
        _begin(tmp_path, Plan(scenarios=PLAN.scenarios, profile=SMALL[:1], parts=2))
    with pytest.raises(KeptError, match="other scenarios and parts"):
        _begin(tmp_path, Plan(scenarios=("commit",), profile=SMALL))
    monkeypatch.setattr(kept, "sources_digest", lambda: "0" * 64)
    with pytest.raises(KeptError, match="other sources"):
        _begin(tmp_path)


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    with (
        Kept(tmp_path).opened(PLAN),
        pytest.raises(KeptError, match="another process explores here"),
        Kept(tmp_path).opened(PLAN),
    ):
        pass


def test_a_damaged_unit_is_refused(tmp_path: Path) -> None:
    unit = PLAN.units()[0]
    with Kept(tmp_path).opened(PLAN):
        Kept(tmp_path).keep(unit, explore(unit))
    path = tmp_path / "units" / unit.name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(KeptError, match=f"{unit.name} is damaged"):
        Kept(tmp_path).report(unit)


def test_sources_are_the_store_and_what_judges_it(tmp_path: Path) -> None:
    for name in ("shardstore/a/b.py", "tests/crash/c.py", "tests/support/d.py"):
        before = kept.sources_digest(tmp_path)
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("x = 1\n")
        changed = kept.sources_digest(tmp_path)
        (tmp_path / name).write_text("x = 2\n")
        assert len({before, changed, kept.sources_digest(tmp_path)}) == 3


def test_sources_that_change_meanwhile_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.crash.kept_run.sources_digest", lambda: "0" * 64)
    with pytest.raises(KeptError, match="have changed meanwhile"):
        explore_kept(PLAN, tmp_path, processes=1, tell=print)
