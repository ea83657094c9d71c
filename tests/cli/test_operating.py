"""status, diff, bench: what they print, which code they end with, and that they leave no trace."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shardstore import Store
from shardstore.cli.bench import parse_size
from shardstore.cli.output import age_text
from shardstore.errors import UsageError
from shardstore.probe import PREFIX
from tests.cli.support import COMMAND, SETTINGS, commit, files, make, run, run_json
from tests.cli.test_changing import slot_of, tear
from tests.cli.test_reading import flip
from tests.support.damaged_store import HealthyStore

QUICK = ("--seconds", "0.1", "--set-bytes", "1Mi")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


# ---------------------------------------------------------------------- status


def shown(path: Path, *words: object, code: int = 0) -> dict[str, str]:
    """The screen of `status` as name and text; lines without a name belong to the one before."""
    text, _, after = run("status", path, *words, code=code).stdout.partition("\nnext: ")
    assert after.endswith("\n") and after.count("\n") == 2
    rows: dict[str, str] = {"next": after.splitlines()[0]}
    name = ""
    for line in text.splitlines():
        name = line.split()[0] if not line.startswith(" ") else name
        rows[name] = rows.get(name, "") + line.removeprefix(name).strip() + "\n"
    return rows


@pytest.mark.req("S31")
def test_status_of_a_healthy_store(store: Path) -> None:
    rows = shown(store)
    assert rows["health"] == "healthy\n" and rows["writer"].startswith("none")
    assert rows["acknowledged"].startswith("step 5 (seq 8), made ")
    assert rows["acknowledged"].endswith(" ago\n") and rows["durable"] == rows["acknowledged"]
    assert rows["unfinished"] == "none\n" and rows["kept"] == "3 commits, 1 snapshots (early)\n"
    assert "room for" in rows["space"] and "in place of older files" in rows["space"]
    assert rows["next"] == f"shardstore log {store} -n 5"
    value = run_json("status", store)
    assert value["healthy"] and value["findings"] == [] and value["writer"] is None
    assert value["acknowledged"]["step"] == value["durable"]["step"] == 5
    assert value["space"]["growth_bytes"] == 0 and value["space"]["commits_left"] > 1000
    assert value["next"]["command"] == rows["next"] and value["snapshots"] == ["early"]
    run(*rows["next"].split()[1:])


@pytest.mark.req("S31")
def test_status_beside_a_writer(store: Path) -> None:
    with Store.open(store, "r+", settings=SETTINGS) as opened:
        assert f"alive: process {os.getpid()} on {os.uname().nodename}" in shown(store)["writer"]
        assert run_json("status", store)["writer"]["pid"] == os.getpid()
        commit(opened, 6)  # it was not disturbed
    assert run_json("status", store)["acknowledged"]["step"] == 6


@pytest.mark.req("S31")
def test_the_next_command_leads_on(store: Path) -> None:
    """What `status` says to type exists and does what it is for, until nothing is left."""
    tear(store)
    rows = shown(store)
    assert rows["health"] == "healthy, but a crash left work\n"
    assert "interrupted append" in rows["unfinished"]
    words = rows["next"].split()
    assert words == ["shardstore", "recover", str(store), "--dry-run"]
    run(*words[1:], code=1)
    run(*words[1:-1], code=1)
    assert shown(store)["unfinished"] == "none\n"
    flip(slot_of(store, "a/b", "params"), 300)
    rows = shown(store, code=4)
    assert rows["health"].startswith("DAMAGED, 1 findings\ndamage: ")
    words = rows["next"].split()
    assert words == ["shardstore", "fsck", str(store), "--deep"]
    run(*words[1:], code=4)


@pytest.mark.req("S31", "S32")
def test_status_tells_how_the_disk_wears(store: Path) -> None:
    assert "a commit\n" in shown(store)["wear"]
    rows = shown(store, "--years", 5, "--rated-tbw", 0.001)  # in either order
    assert (
        "1 GB of rated endurance take" in rows["wear"] and "for 5 years: deferred" in rows["wear"]
    )
    wear = run_json("status", store, "--rated-tbw", 600, "--years", 5)["wear"]
    assert wear["rated_bytes"] == 600e12 and wear["bytes_per_commit"] == 3 * 8192 + 4096
    run("status", store, "--years", 5, code=16)
    run("status", store, "--rated-tbw", 0, code=16)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> HealthyStore:
    return HealthyStore.make(tmp_path_factory.mktemp("status") / "run")


@pytest.fixture
def damaged(healthy: HealthyStore) -> Iterator[HealthyStore]:
    yield healthy
    healthy.restore()


@pytest.mark.req("S31")
@pytest.mark.parametrize("kind", ["one bit", "cut", "zeros", "gone", "directory"])
def test_status_of_every_damaged_file(damaged: HealthyStore, kind: str) -> None:
    """Every file in turn, STORE and sealed segments too: a code of the house, and lines that can be
    read. The store's own refusal is never called healthy, as far as a quick look goes."""
    draw = random.Random(kind)
    for path, content in damaged.files.items():
        if path.name == "PINS":  # only its locks mean anything
            continue
        at = draw.randrange(len(content))
        match kind:
            case "one bit":
                path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            case "cut":
                path.write_bytes(content[:at])
            case "zeros":
                path.write_bytes(bytes(len(content)))
            case _:
                path.unlink()
        if kind == "directory":
            path.mkdir()
        code = run_code(damaged.root)
        # Without STORE, or with a directory there, it is no store: 8.
        assert code in ((0, 4, 8) if path.name == "STORE" else (0, 4)), path
        newest_segment = path == max(p for p in damaged.files if p.suffix == ".wal")
        whole = kind in ("zeros", "gone", "directory")
        if whole and path.suffix == ".wal" and newest_segment and kind != "gone":
            assert code == 4, path
        if path.is_dir():
            path.rmdir()
        damaged.restore()
    assert run_code(damaged.root) == 0


def run_code(path: Path) -> int:
    """The exit code of `status`; its output is checked on the way."""
    for code in (0, 4, 8):
        try:
            result = run("status", path, code=code)
        except AssertionError:
            continue
        if code == 8:
            return code
        assert ("DAMAGED" in result.stdout) == (code == 4)
        assert "next: shardstore " in result.stdout and "Traceback" not in result.output
        assert run_json("status", path, code=code)["healthy"] == (code == 0)
        return code
    raise AssertionError(f"status of {path} ended in no code of the house")


def test_ages_are_readable() -> None:
    ages = {0.4: "0 s", 59: "59 s", 61: "1 min 1 s", 7260: "2 h 1 min", 90_000: "1 d 1 h"}
    assert {seconds: age_text(seconds) for seconds in ages} == ages


# ---------------------------------------------------------------------- diff


@pytest.mark.req("S31")
def test_diff_lists_what_changed(store: Path) -> None:
    text = run("diff", store, "step:4", "step:5").stdout.splitlines()
    assert len(text) == 7 and all(line.startswith("~ ") for line in text[:6])
    assert "~ block_000 params w: F32 [3, 4]" in text
    assert text[-1].startswith("step 4 (seq 7) to step 5 (seq 8): 6 tensors differ, 0 are the same")
    with_values = run("diff", store, "early", "head", "--values").stdout
    assert "~ block_000 params w: F32 [3, 4], differs by up to 3" in with_values
    value = run_json("diff", store, "early", "head", "--values")
    assert {change["max_abs"] for change in value["changes"]} == {3.0}
    assert (value["before"]["step"], value["after"]["step"]) == (2, 5)
    assert value["bytes_different"] == 3 * (48 + 8) and value["bytes_same"] == 0


@pytest.mark.req("S31")
def test_diff_tells_by_its_code_on_request(store: Path) -> None:
    run("diff", store, "early", "head")
    run("diff", store, "early", "head", "--exit-code", code=1)
    assert run_json("diff", store, "early", "head", "--exit-code", code=1)["same"] is False
    same = run("diff", store, "main", "head", "--exit-code").stdout
    assert "0 tensors differ, 6 are the same" in same
    run("diff", store, "early", code=16)
    run("diff", store, "early", "nobody", code=16)
    flip(slot_of(store, "a/b", "params"), 4096 + 64)
    run("diff", store, "early", "head")  # headers only
    run("diff", store, "early", "head", "--values", code=4)


def test_diff_shows_parts_and_kinds(store: Path) -> None:
    with Store.open(store, "r+", settings=SETTINGS) as opened, opened.begin(6) as txn:
        txn.stage("block_000", "params", {"w": np.zeros(2, "f8"), "n": np.zeros((), "i8"),
                                          "x": np.zeros(3, "f4")})  # fmt: skip
        txn.stage("new\n", "p", {"w": np.full(2, np.nan, "f4")})
        txn.remove("a/b", "params")
        txn.keep_rest()
        txn.commit()
    text = run("diff", store, "step:5", "head", "--values").stdout.splitlines()
    assert "+ new\\n p: added" in text and "- a/b params: removed" in text
    assert "~ block_000 params w: F32 [3, 4] became F64 [2]" in text
    assert "+ block_000 params x: F32 [3], 12 bytes" in text
    assert "~ block_000 params n: I64 [], differs by up to 5" in text


# ---------------------------------------------------------------------- bench


@pytest.mark.req("S31", "S32")
def test_bench_measures_and_advises(tmp_path: Path) -> None:
    text = run("bench", tmp_path, *QUICK).stdout
    assert "piece_bytes=" in text and "io_threads=" in text and "direct I/O" in text
    words = ("--state-bytes", "1.2G", "--step-seconds", 4, "--rated-tbw", 600, "--years", 5)
    text = run("bench", tmp_path, *QUICK, *words).stdout
    assert "durable in about" in text and "500000 commits" in text and "for 5 years:" in text
    value = run_json("bench", tmp_path, *QUICK, *words)
    assert value["commit"]["state_bytes"] == 1_200_000_000 and value["commit"]["seconds"] > 0
    assert value["commit"]["wear"]["bytes_per_day"] == 1.2e9 * 21_600
    assert value["suggested"] in value["writes"] and value["set_bytes"] == 1 << 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [["--rated-tbw", "600"], ["--step-seconds", "4"], ["--state-bytes", "0"],
     ["--state-bytes", "many"], ["--years", "5"], ["--objects", "0"], ["--seconds", "0"]],
)  # fmt: skip
def test_bench_refuses_what_it_cannot_honour(tmp_path: Path, words: list[str]) -> None:
    run("bench", tmp_path, *words, code=16)
    assert list(tmp_path.iterdir()) == []


def test_bench_beside_a_store_leaves_it_alone(store: Path) -> None:
    before = list(files(store))
    run("bench", store, *QUICK)
    assert list(files(store)) == before
    assert run_json("fsck", store, "--deep")["clean"]


@pytest.mark.req("S31")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_bench_removes_its_files_when_it_is_ended(tmp_path: Path, number: int) -> None:
    """Ended once its files are there; a bar at a terminal tells when it has begun to measure."""
    ours, theirs = pty.openpty()
    words = ["bench", str(tmp_path), "--seconds", "60", "--set-bytes", "16Mi"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    before = signal.signal(number, signal.default_int_handler)
    try:  # a child inherits what is ignored, and gets the default for what is caught
        child = subprocess.Popen([*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=theirs,
                                 env=environment)  # fmt: skip
    finally:
        signal.signal(number, before)
    os.close(theirs)
    seen = b""
    while b"1/15" not in seen:
        seen += os.read(ours, 4096)
    assert [path.name[: len(PREFIX)] for path in tmp_path.iterdir()] == [PREFIX, PREFIX]
    child.send_signal(number)
    while True:  # what it still draws has to be read, or it waits for that
        try:
            if not os.read(ours, 4096):
                break
        except OSError:  # the terminal's other side is closed
            break
    assert child.wait(timeout=60) == 130
    os.close(ours)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("1.5k", 1500), ("1.2G", 1_200_000_000), ("2Ki", 2048), ("1 MiB", 1 << 20),
     ("3TB", 3 * 10**12)],
)  # fmt: skip
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1X", "1e3", "0", "0.1"])
def test_senseless_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_size(text)
