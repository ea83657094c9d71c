"""The crash laboratory (tools/crashlab): its command line, its verdict, a part that dies.

What its parts find is tested where they live (tests/crash); here one of them runs for seconds, and
is shown to be able to fail.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.damaged_store import HealthyStore
from tools.lab import damage
from tools.lab.job import Laboratory, main
from tools.lab.options import EXIT_USAGE, UsageError, make_directory, parse
from tools.lab.page import page, verdict
from tools.lab.part import BY_NAME, PARTS, Lab, Outcome, Part
from tools.lab.progress import Progress
from tools.lab.result import PartResult, Report, recorded


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
    with pytest.raises(UsageError, match="not empty"):
        make_directory(tmp_path, overwrite=False)
    (tmp_path / "page.txt").write_text("old")
    make_directory(tmp_path, overwrite=True)
    assert (tmp_path / "mine").exists() and not (tmp_path / "page.txt").exists()


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
    make_directory(options.dir, overwrite=False)
    ghost = Part(name="ghost", what="", weight=1, module="tools.lab.nowhere")
    with Progress("ghost", 1, 1, 1.0) as progress:
        result = Laboratory(options)._run(ghost, 1.0, progress)
    assert "no result" in result.outcome.wrong[0] and "ghost" in result.outcome.wrong[0]


def test_wrong_bytes_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HealthyStore, "read", lambda _store, _mode: 1)
    outcome = damage.run(Lab(directory=tmp_path, seed=1, seconds=0.5))
    assert outcome.wrong and "another head" in outcome.wrong[0]


def test_every_part_has_its_module() -> None:
    for known in PARTS:
        module = __import__(known.module, fromlist=["run"])
        assert callable(module.run) and BY_NAME[known.name] is known
