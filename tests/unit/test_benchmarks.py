"""The arithmetic of the benchmarks: what a sample, a ratio and the page are, without measuring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.frame import guard, rounds
from benchmarks.frame.environment import mount_of
from benchmarks.frame.question import Bench, Question, answer, questions
from benchmarks.frame.report import make_page
from benchmarks.frame.result import Claim, Figure, Result, Table
from benchmarks.frame.rounds import SECONDS, Variant, interleave
from benchmarks.frame.samples import Kind, Row, Sample, complete, speed_ratio


def _row(
    name: str,
    times: Sequence[float],
    *,
    dropped: Sequence[int] = (),
    nbytes: int = 0,
    kind: Kind = "ours",
    x: float | None = None,
) -> Row:
    samples = tuple(
        Sample(
            variant=name,
            round=number,
            seconds=seconds,
            dropped="others used the machine" if number in dropped else None,
        )
        for number, seconds in enumerate(times, 1)
    )
    return Row(name=name, kind=kind, bytes=nbytes, samples=samples, x=x)


# ------------------------------------------------------------------ samples


def test_a_dropped_sample_is_in_no_statistic() -> None:
    row = _row("a", [1.0, 9.0, 2.0, 3.0], dropped=[2])
    assert (row.seconds, len(row.clean), row.noisy) == (2.0, 3, False)
    assert row.reasons() == {"others used the machine": 1}


def test_a_row_with_too_little_left_uses_everything_and_says_so() -> None:
    row = _row("a", [1.0, 9.0, 8.0], dropped=[2, 3])
    assert row.noisy
    assert row.seconds == 8.0
    assert not _row("a", [1.0, 9.0], dropped=[2]).noisy


def test_a_ratio_is_of_medians_with_the_range_of_single_rounds() -> None:
    probe = _row("probe", [1.0, 2.0, 4.0])
    ratio = speed_ratio(_row("a", [2.0, 2.0, 5.0]), probe)
    assert (ratio.value, ratio.by_round, ratio.low, ratio.high) == (1.0, 0.8, 0.5, 1.0)


def test_a_ratio_of_rounds_leaves_out_those_where_either_was_dropped() -> None:
    probe = _row("probe", [1.0, 1.0, 7.0, 1.0], dropped=[3])
    ratio = speed_ratio(_row("a", [2.0, 9.0, 2.0, 2.0], dropped=[2]), probe)
    assert (ratio.low, ratio.high) == (0.5, 0.5)


def test_a_ratio_of_rows_with_bytes_is_one_of_speeds() -> None:
    copied, probe = _row("a", [2.0], nbytes=400), _row("probe", [1.0], nbytes=100)
    assert speed_ratio(copied, probe).value == 2.0
    assert speed_ratio(_row("a", [2.0]), probe).value == 0.5


def test_rounds_are_complete_when_every_variant_has_enough_that_count() -> None:
    samples = [*_row("a", [1, 1, 1]).samples, *_row("b", [1, 1, 1], dropped=[1]).samples]
    assert complete(samples, ["a", "b"], 2)
    assert not complete(samples, ["a", "b"], 3)
    assert not complete(samples, ["a", "c"], 1)


# ------------------------------------------------------------------ guard


def test_busy_time_is_what_processes_and_other_guests_took() -> None:
    # user, nice, system, idle, iowait, irq, softirq, steal
    line = "cpu  100 10 50 9000 800 7 6 40 0 0"
    assert guard.busy_seconds(line) == 200 / guard.TICKS_PER_S


def test_process_time_holds_reaped_children_and_survives_odd_names() -> None:
    numbers = ["0"] * 11 + ["5", "6", "7", "8"]
    fields = " ".join(["S", "41", *numbers[2:], "20", "0"])
    parent, seconds = guard.process_seconds(f"77 (a) b) {fields}")
    assert parent == 41
    assert seconds == 26 / guard.TICKS_PER_S


@pytest.mark.parametrize(
    ("foreign", "wall", "noisy"), [(0.02, 0.001, False), (0.09, 1.0, False), (0.11, 1.0, True)]
)
def test_a_few_ticks_are_no_noise(foreign: float, wall: float, noisy: bool) -> None:
    assert guard.is_noisy(foreign, wall) is noisy


def test_the_guard_takes_nothing_of_its_own_for_foreign() -> None:
    descendants = guard._descendants(5, {1: 0, 5: 1, 6: 5, 7: 6, 8: 1})
    assert descendants == {5, 6, 7}


# ------------------------------------------------------------------ rounds


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """No disk, no clock of others: the list is the foreign time of the coming samples."""
    coming: list[float] = []

    @contextmanager
    def guarded() -> Iterator[guard.Foreign]:
        yield guard.Foreign(wall_s=1.0, seconds=coming.pop(0) if coming else 0.0)

    monkeypatch.setattr(rounds, "guarded", guarded)
    monkeypatch.setattr(rounds, "settle", lambda: None)
    monkeypatch.setattr(rounds, "bytes_read_from_disk", lambda: 0)
    return coming


@pytest.mark.usefixtures("quiet")
def test_every_variant_stands_in_every_round_in_an_order_by_the_seed() -> None:
    def run(seed: int) -> list[str]:
        calls: list[str] = []
        variants = [Variant(name=n, act=lambda n=n: calls.append(n)) for n in "abcd"]
        rows = interleave(variants, repeats=3, seed=seed)
        assert [len(row.samples) for row in rows] == [3, 3, 3, 3]
        return calls

    calls = run(1)
    turns = [calls[begin : begin + 4] for begin in range(0, 16, 4)]
    assert all(sorted(turn) == list("abcd") for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
    assert run(1) == calls != run(2)


def test_noisy_samples_are_made_up_for_by_more_rounds(quiet: list[float]) -> None:
    quiet += [0.0, 0.5, 0.0, 0.5]  # the first is of the round that is thrown away
    (row,) = interleave([Variant(name="a", act=lambda: None)], repeats=2, seed=0)
    assert [sample.dropped is None for sample in row.samples] == [False, True, False, True]
    assert [sample.round for sample in row.samples] == [1, 2, 3, 4]


def test_rounds_end_even_if_the_machine_is_never_quiet(quiet: list[float]) -> None:
    quiet += [0.5] * 100
    (row,) = interleave([Variant(name="a", act=lambda: None)], repeats=2, seed=0)
    assert len(row.samples) == 2 * rounds.ROUNDS_MAX_FACTOR
    assert row.noisy


@pytest.mark.usefixtures("quiet")
def test_a_cold_sample_that_read_nothing_does_not_count() -> None:
    variant = Variant(name="a", act=lambda: None, cold_bytes=1)
    (row,) = interleave([variant], repeats=1, seed=0)
    assert row.reasons() == {"not cold": 3}


@pytest.mark.usefixtures("quiet")
def test_a_variant_may_time_itself_and_measure_more() -> None:
    variant = Variant(name="a", act=lambda: {SECONDS: 5.0, "blocked_s": 2.0}, x=3.0)
    (row,) = interleave([variant], repeats=1, seed=0)
    assert (row.seconds, row.extra("blocked_s"), row.x) == (5.0, 2.0, 3.0)


@pytest.mark.usefixtures("quiet")
def test_one_name_may_stand_at_several_places_of_an_axis() -> None:
    variants = [Variant(name="a", x=x, act=lambda x=x: {SECONDS: x}) for x in (1.0, 2.0)]
    assert [row.seconds for row in interleave(variants, repeats=2, seed=0)] == [1.0, 2.0]


# ------------------------------------------------------------------ results and the page


def _result() -> Result:
    rows = [
        _row("probe", [0.5, 0.5], nbytes=10**9, kind="reference"),
        _row("store", [0.4, 0.4], nbytes=10**9),
        _row("peer", [4.0, 4.0], nbytes=10**9, dropped=[1, 2], kind="peer"),
    ]
    table = Table(title="Bars", rows=rows)
    lines = Table(
        title="Lines", axis="commits", rows=[_row("open", [0.001 * x], x=x) for x in (10, 10_000)]
    )
    claims = [Claim(text="snapshot", value=7.0, unit="ms", at_most=5.0)]
    figures = [Figure(name="log", value=8192, unit="B")]
    result = Result(tables=[table, lines], claims=claims, figures=figures, notes=["no orbax"])
    result.claim_ratio("of the probe", table, "store", "probe", 0.88)
    result.claim_ratio("of the peer", table, "store", "peer", 2.0)
    return result


def _answered(tmp_path: Path) -> Path:
    question = Question(title="A title", about="How.", ask=lambda bench: _result())
    return answer("why", question, Bench(scratch=tmp_path / "scratch"), tmp_path / "results")


def test_an_answer_is_written_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = _answered(tmp_path)
    assert path == tmp_path / "results" / "why.json"
    assert not (tmp_path / "scratch").exists()
    assert str(tmp_path) not in path.read_text()


def test_the_page_holds_claims_tables_pictures_and_warnings(tmp_path: Path) -> None:
    results = _answered(tmp_path).parent
    page = make_page(results)
    assert "| of the probe | at least 0.88 | 1.25 | yes |" in page
    assert "| snapshot | at most 5 ms | 7 ms | **no** |" in page
    assert "| of the peer | at least 2.00 | 10.00 | yes (noisy) |" in page
    assert "| store | 400 ms | 2.50 | 1.25 (1.25-1.25) | 2 of 2 |" in page
    assert "| peer\\* | 4,000 ms | 0.25 |" in page and "0 of 2 (2 others used the machine)" in page
    assert "| commits | 10 | 10,000 |" in page and "| open | 10 ms | 10,000 ms |" in page
    assert "| log | 8,192 bytes |" in page and "- no orbax" in page
    assert "![A title](why.png)" in page
    assert (results / "why.png").stat().st_size > 1000
    assert make_page(results) == page


def test_a_page_of_nothing_says_so(tmp_path: Path) -> None:
    assert "Nothing has been measured yet." in make_page(tmp_path)


# ------------------------------------------------------------------ questions and the command


def test_questions_register_by_being_there() -> None:
    found = questions()
    assert {"commit", "load", "stall", "refs", "formats", "fsck", "startup"} <= found.keys()
    assert all(question.title and question.about for question in found.values())


def test_the_file_system_of_a_directory_is_the_innermost_mount() -> None:
    mounts = "a / ext4 rw 0 0\nb /data xfs rw,x 0 0\nc /data/ram tmpfs rw 0 0\n"
    assert mount_of(Path("/data/run"), mounts) == ("xfs", "rw,x")
    assert mount_of(Path("/database"), mounts) == ("ext4", "rw")


def test_the_command_refuses_what_it_does_not_know() -> None:
    outcome = CliRunner().invoke(main, ["comit"])
    assert outcome.exit_code == 2 and "no such question: comit" in outcome.output
    outcome = CliRunner().invoke(main, ["commit", "--set", "threads=x"])
    assert outcome.exit_code == 2 and "NAME=NUMBER" in outcome.output
    listed = CliRunner().invoke(main, ["list"])
    assert listed.exit_code == 0 and "commit" in listed.output
