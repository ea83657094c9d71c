"""A run of `trainer train` outlives SIGKILL in every phase of a step and of an opening.

Goal: every acknowledged commit is there afterwards, none is mixed, the next call goes on without a
hand, and the end is that of the run that was never stopped, bit for bit. Method: see `kills`; what
is checked after each kill is in `kill_witness`. Here: that enough kills fell where they should.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.kill_child import PHASES
from tests.crash.kill_plan import CI, COMMIT_SHARE, LONG, Profile
from tests.crash.kills import run_profile


@pytest.mark.req("S3", "T21")
@pytest.mark.timeout(1200)
def test_training_outlives_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _survive(CI, tmp_path, capsys)


@pytest.mark.req("S3", "T21")
@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_training_outlives_1000_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _survive(LONG, tmp_path, capsys)


def _survive(profile: Profile, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_profile(profile, directory)
    with capsys.disabled():
        print("", *result.table(), sep="\n")
    assert len(result.kills) >= profile.kills
    for phase in PHASES:
        assert result.count(phase=phase) >= profile.each, phase
    assert result.count(in_commit=True) >= COMMIT_SHARE * len(result.kills)
    held = result.count(how="held")
    assert min(held, len(result.kills) - held) >= profile.kills // 2 - profile.lanes
    assert result.count(recovered="same") and result.count(recovered="+1")
