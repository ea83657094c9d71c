"""The parts of the main job (tools/demo) that can be judged without training for minutes.

What has to hold is judged on made-up outcomes: a good one, and one for each way to go wrong. The
processes are small Python programs that speak the trainer's trace.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.demo_children import ChildFailed, Children, KillPoint, Watch
from tools.demo_options import STEPS, UsageError, make_work_directory, parse
from tools.demo_page import page
from tools.demo_plot import text_plot
from tools.demo_result import (
    STEPS_MIN,
    Kill,
    Moment,
    Outcome,
    checks,
    different_steps,
    kill_points,
    metrics_by_step,
)

STEP_COUNT = 12


def _kill(acknowledged: int, recovered: int) -> Kill:
    plan = [f"the state is step {recovered}"]
    return Kill(
        where="computing",
        step=acknowledged + 1,
        acknowledged=acknowledged,
        recovered=recovered,
        plan=plan,
        fsck_clean=True,
    )


def _moment(what: str, step: int) -> Moment:
    return Moment(
        what=what, step=step, state_digest=f"state{step}", trainer_digest=f"trainer{step}"
    )


def _metrics() -> dict[int, dict[str, Any]]:
    rows: dict[int, dict[str, Any]] = {
        step: {"train_loss": 9.0 - step / 4, "grad_norm": 1.0} for step in range(1, STEP_COUNT + 1)
    }
    rows[STEP_COUNT]["val_loss"] = 6.0
    return rows


@pytest.fixture
def good() -> Outcome:
    side = {"documents": 3, "tokens": 5_000, "rows": 40}
    return Outcome(
        data={"corpus": "texts", "vocab_size": 8000, "seq_len": 128, "train": side, "val": side},
        steps=STEP_COUNT,
        tokens_per_step=1024,
        parameters=5_000_000,
        shards=9,
        steady=_metrics(),
        killed=_metrics(),
        steady_digest="d",
        killed_digest="d",
        kills=[_kill(1, 1), _kill(5, 5), _kill(9, 10)],
        moments=[_moment("a", 5), _moment("b", 12), _moment("c", 5), _moment("d", 12)],
        fsck_clean={"steady": True, "killed": True},
        log_lines=["* seq 1"],
        ln_vocab=8.98,
        unigram=6.8,
        validation_rows=160,
        seconds={"data": 1.0, "steady": 2.0, "killed": 3.0, "rest": 1.0, "total": 7.0},
    )


@pytest.mark.parametrize("steps", [STEPS_MIN, 50, STEPS])
def test_one_kill_falls_into_each_third_and_two_into_a_commit(steps: int) -> None:
    points = kill_points(steps)
    assert [(point.step - 1) * 3 // steps for point in points] == [0, 1, 2]
    assert [point.event for point in points] == ["compute", "append", "sync"]


def test_the_watch_waits_for_its_step_its_event_and_its_occurrence() -> None:
    seen: list[tuple[int, float]] = []
    point = KillPoint(step=3, event="compute", where="", fields={"action": "b"}, occurrence=2)
    watch = Watch(at_step=1, kill=point, on_step=lambda step, loss: seen.append((step, loss)))
    backward, forward = ({"event": "compute", "action": action} for action in "bf")
    assert not any(watch.reached(event) for event in (backward, backward, {"event": "append"}))
    assert not watch.reached({"event": "acknowledged", "step": 0})  # the initial weights
    assert seen == []
    assert not watch.reached({"event": "acknowledged", "step": 2, "train_loss": 8.5})
    assert (watch.acknowledged, seen) == (2, [(2, 8.5)])
    assert not any(watch.reached(event) for event in (forward, backward, forward))
    assert watch.reached(backward)


def test_only_effective_commits_of_training_steps_count() -> None:
    def commit(step: int, loss: float, *, effective: bool = True) -> dict[str, Any]:
        metadata = {"metrics": {"train_loss": loss}}
        return {"type": "commit", "step": step, "effective": effective, "metadata": metadata}

    entries = [commit(2, 7.5), commit(2, 7.9, effective=False), commit(1, 8.0), commit(0, 0.0)]
    found = metrics_by_step([*entries, {"type": "rewind", "step": 1}])
    assert found == {1: {"train_loss": 8.0}, 2: {"train_loss": 7.5}}
    assert list(found) == [1, 2]


def test_a_last_bit_and_a_missing_step_are_differences() -> None:
    one, other = _metrics(), _metrics()
    assert different_steps(one, other) == []
    other[3]["train_loss"] = math.nextafter(other[3]["train_loss"], 0)
    del other[7]
    assert different_steps(one, other) == [3, 7]


def test_a_good_outcome_passes_every_check(good: Outcome) -> None:
    assert good.ok
    assert len(checks(good)) == 7


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("acknowledged", {"kills": [_kill(5, 4)]}),
        ("acknowledged", {"kills": [_kill(5, 7)]}),
        ("fsck", {"kills": [replace(_kill(5, 5), fsck_clean=False)]}),
        ("fsck", {"fsck_clean": {"steady": True, "killed": False}}),
        ("every step", {"killed": {**_metrics(), 4: {"train_loss": 1.0}}}),
        ("every step", {"steps": STEP_COUNT + 1}),
        ("digest", {"killed_digest": "e"}),
        ("rewind brought", {"moments": [_moment("", step) for step in (5, 12, 6, 12)]}),
        ("rewind brought", {"moments": [_moment("", step) for step in (12, 12, 12, 12)]}),
        ("undo", {"moments": [_moment("", step) for step in (5, 12, 5, 11)]}),
        ("held-out", {"unigram": 6.0}),
        ("held-out", {"steady": {step: {} for step in _metrics()}, "killed": {
            step: {} for step in _metrics()}}),
    ],
)  # fmt: skip
def test_what_does_not_hold_fails_its_check(
    good: Outcome, what: str, changes: dict[str, Any]
) -> None:
    outcome = replace(good, **changes)
    failed = [check.what for check in checks(outcome) if not check.ok]
    assert len(failed) == 1
    assert what in failed[0]
    assert not outcome.ok
    assert "1 of 7 checks FAILED" in page(outcome, [])


def test_the_page_tells_of_every_part(good: Outcome) -> None:
    text = page(good, ["demo-run/page.txt  this page"])
    assert "Everything held" in text
    for words in ("After kill 3 it was the next one", "fsck", "ln V", "unigram", "Times"):
        assert words in text
    assert "demo-run/page.txt" in text
    assert max(map(len, text.splitlines())) <= 110


def test_a_loss_that_is_no_number_is_strict_json_and_draws(good: Outcome) -> None:
    rows = {**_metrics(), 3: {"train_loss": "NaN"}, STEP_COUNT: {"val_loss": "Infinity"}}
    outcome = replace(good, steady=rows, killed=rows)
    value = json.loads(json.dumps(outcome.to_json(), allow_nan=False))
    assert value["held_out_loss"] is None
    assert not value["ok"]
    assert page(outcome, [])


def test_the_plot_has_its_marks_where_they_belong() -> None:
    plot = text_plot({1: 9.0, 2: 5.0}, {2: 6.0}, {"ln V": 8.0})
    assert plot[0].strip().startswith("9.00 |.")
    assert [line for line in plot if "o" in line and "|" in line] == [plot[10]]
    assert "ln V 8.00" in plot[3]
    assert "." in plot[13].partition("|")[2]


def test_the_plot_stands_one_value_and_none_to_draw() -> None:
    assert text_plot({1: 2.0}, {}, {})
    assert text_plot({}, {}, {"ln V": 8.0})


@pytest.mark.parametrize("words", [["--steps", "3"], ["--steps", "x"], ["--unknown"], ["word"]])
def test_wrong_usage_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(words)


def test_a_work_directory_is_reused_on_request_and_nothing_else_removed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    make_work_directory(work, overwrite=False)
    (work / "steady").mkdir()
    (work / "page.txt").write_text("old")
    (work / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="--overwrite"):
        make_work_directory(work, overwrite=False)
    make_work_directory(work, overwrite=True)
    assert sorted(path.name for path in work.iterdir()) == ["logs", "mine.txt"]
    with pytest.raises(UsageError, match="not a directory"):
        make_work_directory(work / "mine.txt", overwrite=True)


# Speaks the trace as `trainer train` does: announces, waits for a byte, does it, goes on.
_TRACED = """
import json, os, sys
done, events, answers = sys.argv[1], int(sys.argv[3]), int(sys.argv[5])
open(done + ".pid", "w").write(str(os.getpid()))
for step in range(1, 4):
    for event in ("append", "acknowledged"):
        line = {"event": event, "step": step, "train_loss": 1.0}
        os.write(events, (json.dumps(line) + "\\n").encode())
        os.read(answers, 1)
        open(done, "a").write(f"{event} {step}\\n")
"""


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    with Children(tmp_path) as children:
        yield children


def _ignore(_step: int, _loss: float) -> None:
    """Nobody is watching."""


def test_a_child_is_killed_right_before_the_event(children: Children, tmp_path: Path) -> None:
    done = tmp_path / "done"
    point = KillPoint(step=2, event="append", where="", fields={})
    acknowledged = children.train(
        "python", "-c", _TRACED, str(done), at_step=0, on_step=_ignore, kill=point
    )
    assert acknowledged == 1
    assert done.read_text().split("\n") == ["append 1", "acknowledged 1", ""]


def test_a_child_that_is_not_killed_goes_to_its_end(children: Children, tmp_path: Path) -> None:
    done = tmp_path / "done"
    acknowledged = children.train("python", "-c", _TRACED, str(done), at_step=0, on_step=_ignore)
    assert acknowledged == 3
    assert done.read_text().endswith("acknowledged 3\n")


def test_a_run_that_ends_before_its_kill_is_an_error(children: Children, tmp_path: Path) -> None:
    point = KillPoint(step=9, event="append", where="", fields={})
    with pytest.raises(ChildFailed, match="exit code 0"):
        children.train(
            "python", "-c", _TRACED, str(tmp_path / "d"), at_step=0, on_step=_ignore, kill=point
        )


def test_a_failing_child_is_named_with_what_it_said(children: Children) -> None:
    with pytest.raises(ChildFailed, match=r"exit code 3(.|\n)*    no room"):
        children.run("python", "-c", "import sys; print('no room', file=sys.stderr); sys.exit(3)")
    assert children.run("python", "-c", "print('x'); raise SystemExit(4)", ok=(0, 4)) == "x\n"
    with pytest.raises(ChildFailed, match="tools/demo"):
        children.run("no-such-command", "x")


def test_an_interrupted_job_leaves_no_child(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def interrupt(_step: int, _loss: float) -> None:
        raise KeyboardInterrupt

    code = _TRACED + "\nimport signal; signal.pause()"
    with pytest.raises(KeyboardInterrupt), Children(tmp_path) as children:
        children.train("python", "-c", code, str(done), at_step=0, on_step=interrupt)
    pid = int((tmp_path / "done.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
