"""The crash laboratory (tools/crashlab): its command line, its verdict, a part that dies.

What its parts find is tested where they live (tests/crash); here one of them runs for seconds, and
is shown to be able to fail.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash import syscalls
from tests.support.damaged_store import HealthyStore
from tools.lab import calls, damage, machine
from tools.lab.batches import Batch, in_batches
from tools.lab.job import Laboratory, main
from tools.lab.options import EXIT_INTERRUPTED, EXIT_USAGE, UsageError, make_directory, parse
from tools.lab.page import page, verdict
from tools.lab.part import BY_NAME, PARTS, Lab, Outcome, Part
from tools.lab.progress import Progress
from tools.lab.result import PartResult, Report, recorded
from tools.lab.suites import run_suite


def report(*parts: PartResult, profile: str = "5 minutes") -> Report:
    place = {"date": "2026-01-01T00:00:00Z", "commit": "abc", "file_system": "ext4"}
    return Report(place=place, directory="lab", profile=profile, seed=1, parts=list(parts))


def part(name: str, **values: Any) -> PartResult:
    return PartResult(name=name, outcome=Outcome(**values), seconds=1.0)


HELD = part("damage", tried=1200, unit="damages", detail=["all were refused"])
WRONG = part("calls", tried=3, unit="interruptions", wrong=["commit: kill at fsync number 2: lost"])
FORBIDDEN = part("cuts", cannot="mounting needs root on Linux")


def test_the_verdict_says_what_was_wrong_and_what_could_not_be_run() -> None:
    good = report(HELD, FORBIDDEN)
    assert good.ok and "Nothing was wrong in 1,200 trials; cuts could not be run" in verdict(good)
    text = page(good, ["page.txt  this page"])
    assert "could not be run: mounting needs root on Linux" in text
    assert "all were refused" in text and "abc" in text
    assert all(known.name in text for known in PARTS)
    bad = report(HELD, WRONG)
    assert not bad.ok and "1 FINDINGS" in verdict(bad)
    assert "commit: kill at fsync number 2: lost" in page(bad, [])
    assert not report(FORBIDDEN).ok, "a laboratory that tried nothing has shown nothing"


def test_the_record_keeps_the_last_result_of_each_profile_and_part() -> None:
    first = recorded({}, report(HELD, WRONG, profile="long"))
    second = recorded(first, report(part("damage", tried=7), FORBIDDEN))
    third = recorded(second, report(part("calls", tried=9), part("damage", cannot="x"),
                                    profile="long"))  # fmt: skip
    assert third["short"]["damage"]["tried"] == 7
    assert third["long"]["damage"]["tried"] == 1200, "what could not be run replaces nothing"
    assert third["long"]["calls"]["tried"] == 9
    assert third["long"]["calls"]["commit"] == "abc" and third["long"]["calls"]["date"]
    json.dumps(third)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "0"], "at least"),
        (["--minutes", "nan"], "at least"),
        (["--part", "cats"], "no such part: cats"),
        (["--long", "--minutes", "3"], "leave out --minutes"),
        (["--resume", "--minutes", "3"], "--resume goes with --long"),
        (["--speed", "3"], "--help explains"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_touched(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "lab"
    assert main([*words, "--dir", str(place)]) == EXIT_USAGE
    assert said in capsys.readouterr().err and not place.exists()


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    words = ["--dir", str(tmp_path)]
    with pytest.raises(UsageError, match="not empty"):
        make_directory(parse(words))
    (tmp_path / "page.txt").write_text("old")
    make_directory(parse([*words, "--overwrite"]))
    assert (tmp_path / "mine").exists() and not (tmp_path / "page.txt").exists()


def test_a_long_call_goes_on_with_the_batches_and_the_seed_of_the_last(tmp_path: Path) -> None:
    words = ["--long", "--dir", str(tmp_path / "lab")]
    make_directory(parse([*words, "--seed", "7"]))
    batch = tmp_path / "lab" / "batches" / "kills"
    batch.mkdir()
    again = parse([*words, "--resume"])
    make_directory(again)
    assert again.seed == 7 and batch.exists()
    make_directory(parse([*words, "--overwrite"]))
    assert not batch.exists()


def test_seconds_in_the_laboratory_end_with_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, record = tmp_path / "lab", tmp_path / "record.json"
    words = ["--minutes", "0.05", "--part", "damage", "--dir", str(place), "--record", str(record)]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "Nothing was wrong" in said.out and "[1/1] damage" in said.err
    assert (place / "page.txt").read_text() == said.out.removesuffix("\n")
    result = json.loads((place / "result.json").read_text())
    assert result["ok"] and result["parts"]["damage"]["tried"] > 10
    assert json.loads(record.read_text())["short"]["damage"]["tried"] > 10
    assert not (place / "work").exists()


def test_a_part_that_dies_is_a_finding(tmp_path: Path) -> None:
    options = parse(["--minutes", "1", "--dir", str(tmp_path / "lab")])
    make_directory(options)
    ghost = Part(name="ghost", what="", weight=1, module="tools.lab.nowhere")
    with Progress("ghost", 1, 1, 1.0) as progress:
        result = Laboratory(options)._run(ghost, 1.0, progress)
    assert "no result" in result.outcome.wrong[0] and "ghost" in result.outcome.wrong[0]


def test_what_has_ended_is_recorded_when_the_rest_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_lab: Laboratory, part: Part, _seconds: float, _progress: Progress) -> PartResult:
        if part.name == "fullness":
            raise KeyboardInterrupt
        return HELD

    monkeypatch.setattr(Laboratory, "_run", run)
    record = tmp_path / "record.json"
    words = ["--dir", str(tmp_path / "lab"), "--record", str(record)]
    assert main(words) == EXIT_INTERRUPTED
    assert json.loads(record.read_text())["short"]["damage"]["verdict"] == "nothing wrong"
    assert "INTERRUPTED: damage had ended, with nothing wrong in 1,200" in capsys.readouterr().out


def numbered(lab: Lab, seen: list[int], stop_at: int = 99, count: int = 4) -> Outcome:
    """Batches of ten trials; the process dies in one of them."""

    def batch(number: int, place: Lab) -> Batch:
        if number == stop_at:
            raise KeyboardInterrupt
        seen.append(number)
        place.tell(5)
        return Batch(tried=10, data={"number": number})

    names = [f"batch {number}" for number in range(count)]
    outcome, data = in_batches(lab, "trials", 10 * count, names, batch)
    assert [values["number"] for values in data] == list(range(count))
    return outcome


def test_batches_that_were_done_are_not_done_again(tmp_path: Path) -> None:
    output = io.StringIO()
    kept, first = tmp_path / "kept", tmp_path / "first"
    first.mkdir()
    lab = Lab(directory=first, seed=1, kept=kept, commit="abc", output=output, long=True)
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        numbered(lab, seen, stop_at=2)
    second = replace(lab, directory=tmp_path)
    outcome = numbered(second, seen)
    assert seen == [0, 1, 2, 3] and outcome.tried == 40 and not outcome.wrong
    assert "2 of 4 batches are an earlier call's" in outcome.detail[0]
    told = [json.loads(line) for line in output.getvalue().splitlines()]
    assert told[-1] == {"done": 35, "goal": 40}
    for other in (replace(second, commit="def"), replace(second, seed=2)):
        assert numbered(other, seen).tried == 40
    assert len(seen) == 12, "what another commit or seed did is no result of this one"


def test_a_batch_with_a_finding_is_the_last(tmp_path: Path) -> None:
    lab = Lab(directory=tmp_path, seed=1, kept=tmp_path / "kept", output=io.StringIO(), long=True)
    outcome, data = in_batches(
        lab, "trials", 0, ["one", "two"], lambda _number, _lab: Batch(tried=1, wrong=["lost"])
    )
    assert outcome.wrong == ["one: lost"] and outcome.tried == 1 and len(data) == 1


def test_the_long_calls_add_up_the_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_directory: Path, *, actions: list[str], **_: object) -> syscalls.Result:
        kinds = Counter({f"{actions[0]} kill": 2, f"{actions[0]} EIO": 3})
        return syscalls.Result(tried=kinds, missed=1, calls={actions[0]: 7})

    monkeypatch.setattr(calls, "interrupt_all", interrupt)
    lab = Lab(directory=tmp_path, seed=1, kept=tmp_path / "kept", output=io.StringIO(), long=True)
    outcome = calls.run(lab)
    assert outcome.tried == 25 and not outcome.wrong
    assert "25 interruptions (EIO 15, kill 10; 5 not reached), 0 wrong" in outcome.detail
    assert "commit 7" in outcome.detail[-1] and "recover 7" in outcome.detail[-1]


def test_the_long_damage_flips_every_byte_that_is_no_tensors(tmp_path: Path) -> None:
    store = HealthyStore.make(tmp_path / "run")
    for path, content in store.files.items():
        places = [at for batch in damage._metadata(store, path) for at in batch]
        is_object = path.parent.name == "objects"
        assert places == list(range(len(places))), "each once"
        assert len(places) == len(content) if not is_object else 0 < len(places) < len(content)


def test_the_machine_has_examples_and_can_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(directory=tmp_path, seed=1, seconds=0.1, output=io.StringIO())
    outcome = machine.run(lab)
    assert outcome.tried >= 1 and not outcome.wrong

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("another head")

    monkeypatch.setattr(machine, "run_state_machine_as_test", fail)
    assert "another head" in machine.run(replace(lab, seconds=60)).wrong[0]


@pytest.mark.parametrize(
    ("body", "seconds", "said"),
    [
        ("pass", None, "1 passed"),
        ("assert False, 'torn'", None, "1 failed"),
        ("import signal; signal.pause()", 1.0, "then the time was over"),
    ],
)
def test_a_suite_is_told_in_words(
    body: str, seconds: float | None, said: str, tmp_path: Path
) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(f"def test_it():\n    {body}\n")
    suite = run_suite([str(test), "--rootdir", str(tmp_path)], tmp_path / "place", seconds)
    assert said in suite.line and bool(suite.wrong) == ("failed" in said)


def test_wrong_bytes_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HealthyStore, "read", lambda _store, _mode: 1)
    outcome = damage.run(Lab(directory=tmp_path, seed=1, seconds=0.5))
    assert outcome.wrong and "another head" in outcome.wrong[0]


def test_every_part_has_its_module() -> None:
    for known in PARTS:
        module = __import__(known.module, fromlist=["run"])
        assert callable(module.run) and BY_NAME[known.name] is known
