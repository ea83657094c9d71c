"""Goal: every line of the step log is JSON that any parser reads, also after NaN and after a
crash.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.metrics import StepLog, Timings, to_strict_json


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.req("T23")
def test_numbers_that_json_lacks_become_null_and_are_named() -> None:
    record = {
        "step": 3,
        "train_loss": float("nan"),
        "deep": {"scale": [1.0, float("-inf")]},
        "word": "NaN",
    }
    assert strict(to_strict_json(record)) == {
        "step": 3,
        "train_loss": None,
        "deep": {"scale": [1.0, None]},
        "word": "NaN",
        "nonfinite": {"train_loss": "nan", "deep.scale.1": "-inf"},
    }
    assert "nonfinite" not in strict(to_strict_json({"step": 1, "lr": 0.5}))


@pytest.mark.req("T23")
@pytest.mark.parametrize("torn", [b"", b'{"step": 2, "train', b"x" * 10_000])
def test_a_half_line_left_by_a_crash_is_cut_before_the_next(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "logs" / "steps.jsonl"
    with StepLog(path) as log:
        log.write({"step": 1})
    with path.open("ab") as file:
        file.write(torn)
    with StepLog(path) as log:
        log.write({"step": 2})
        log.write({"step": 3})
    assert [strict(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    path.write_bytes(torn)
    StepLog(path).close()
    assert path.read_bytes() == b""


@pytest.mark.req("T23")
def test_leaves_and_other_add_up_to_the_step() -> None:
    times = iter([0.0, 1.0, 2.0, 4.0, 5.0, 8.0])
    timings = Timings(clock=lambda: next(times))
    with timings.span("forward_trace"), timings.leaf("h2d"):
        pass
    report = timings.report()
    assert report["h2d_seconds"] == 2.0
    assert report["forward_trace_seconds"] == 4.0
    assert report["step_seconds"] == 8.0
    assert report["other_seconds"] == 6.0


@pytest.mark.req("T23")
def test_overlapping_leaves_are_a_fault_and_a_failed_one_closes() -> None:
    timings = Timings(clock=lambda: 0.0)
    with (
        pytest.raises(AssertionError, match="timing bucket commit inside h2d"),
        timings.leaf("h2d"),
        timings.leaf("commit"),
    ):
        pass
    with timings.leaf("commit"):
        pass
    with pytest.raises(AssertionError, match="no timing bucket 'lunch'"), timings.leaf("lunch"):
        pass


@pytest.mark.req("T23")
def test_a_device_is_waited_for_at_both_ends_of_a_bucket() -> None:
    waits: list[int] = []
    timings = Timings(clock=lambda: 0.0, sync=lambda: waits.append(1))
    with timings.leaf("h2d"):
        assert len(waits) == 1
    assert len(waits) == 2
