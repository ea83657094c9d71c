"""A real process is killed, failed and cut short at its system calls, one after the other.

Goal: a commit, a snapshot, a publication, an opening and a recovery are whole or not there wherever
the kernel stops them, an error leaves a store that goes on, and nobody has to help. Method:
`syscalls`; here a seeded tenth, every call in the long profile.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.crash.syscalls import ACTIONS, KINDS, SHORT, Job, Result, interrupt_all, jobs
from tests.support.permitted import trace_refusal

CI_SHARE = 0.1
CALLS_MIN = 10
"""Of each action; fewer would mean that the trace looks at nothing."""

pytestmark = [pytest.mark.permission("trace"), pytest.mark.req("S3", "S12", "S16", "S18")]


@pytest.fixture(autouse=True)
def _strace() -> None:
    if reason := trace_refusal():
        pytest.skip(reason)


@pytest.mark.timeout(900)
def test_a_tenth_of_all_interruptions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = _interrupt(tmp_path, CI_SHARE, capsys)
    assert result.tried.total() > 20


@pytest.mark.long
def test_every_interruption(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = _interrupt(tmp_path, 1.0, capsys)
    for action in ACTIONS:
        for kind in (*KINDS, SHORT):
            assert result.tried[f"{action} {kind}"], f"{kind} never hit a call of {action}"


def _interrupt(directory: Path, share: float, capsys: pytest.CaptureFixture[str]) -> Result:
    result = interrupt_all(directory, share=share)
    with capsys.disabled():
        print(f"\n{result.line()} in {result.seconds:.0f} s; calls: {result.calls}")
    assert not result.wrong, "\n".join(result.wrong)
    assert all(result.calls[action] >= CALLS_MIN for action in ACTIONS), result.calls
    assert result.missed <= result.tried.total() // 4
    return result


def test_everything_that_can_be_done_to_a_call_is_planned() -> None:
    planned = list(jobs("commit", Counter({"pwrite64": 2, "fdatasync": 1})))
    assert len(planned) == 2 * 5 + 3 == len(set(planned))
    assert Job(action="commit", call="pwrite64", nth=2, kind=SHORT) in planned
