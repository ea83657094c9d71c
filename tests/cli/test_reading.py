"""init, info, ls, cat, log, snapshots, wal: what they print, and that they change nothing."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from shardstore import Ref, Store
from shardstore.cli.output import shown, size_text, strict
from shardstore.cli.values import decode, statistics
from tests.cli.support import (
    COMMAND,
    SETTINGS,
    commit,
    files,
    make,
    process,
    run,
    run_json,
    tensors,
)
from tests.support.objects import DTYPES, tensor_of

READING = {
    "info": [],
    "ls": ["step:4"],
    "cat": ["a/b", "params", "w", "early"],
    "log": ["--all"],
    "fsck": ["--deep"],
    "snapshots": [],
    "status": [],
    "diff": ["early", "head"],
    "wal": [],
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


@pytest.mark.req("S1", "S26")
def test_commands_that_read_change_no_byte_of_a_read_only_directory(store: Path) -> None:
    before = list(files(store))
    directories = [store, *(path for path in store.rglob("*") if path.is_dir())]
    times = [path.stat().st_mtime_ns for path in directories]
    for path in [*directories, *(path for path in store.rglob("*") if path.is_file())]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        for name, words in READING.items():
            run(name, store, *words)
            run_json(name, store, *words)
        run("recover", store, "--dry-run")
        assert list(files(store)) == before
        assert [path.stat().st_mtime_ns for path in directories] == times
    finally:
        for path in directories:
            path.chmod(0o755)


def test_init_makes_an_empty_store(tmp_path: Path) -> None:
    value = run_json("init", tmp_path / "new")
    with Store.open(tmp_path / "new") as store:
        assert store.uuid == value["uuid"] and store.head is None
    assert "error: " in run("init", tmp_path / "new", code=8).stderr
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    run("init", tmp_path / "foreign", code=8)
    info = run_json("info", tmp_path / "new")
    assert info["head"] is None and info["state_digest"] is None and info["tensors"] == 0
    assert "no commit yet" in run("info", tmp_path / "new").stdout
    assert run_json("log", tmp_path / "new") == [] and run_json("snapshots", tmp_path / "new") == []
    run("ls", tmp_path / "new", code=16)


def test_info_tells_where_the_store_stands(store: Path) -> None:
    value = run_json("info", store)
    with Store.open(store) as opened:
        head = opened.head
        assert head is not None
        assert value["head"] == {
            "step": 5, "seq": head.seq, "time": head.time, "id": head.id,
        }  # fmt: skip
        assert value["state_digest"] == opened.state_digest()
        assert value["uuid"] == opened.uuid
    assert (value["branch"], value["version"]) == ("main", 1)
    assert (value["shards"], value["parts"], value["tensors"]) == (2, 3, 6)
    assert (value["elements"], value["tensor_bytes"]) == (3 * 13, 3 * (48 + 8))
    assert (value["snapshots"], value["kept_commits"]) == (1, 3)
    sizes = {name: sum(p.stat().st_size for p in store.glob(f"{name}/*"))
             for name in ("objects", "wal")}  # fmt: skip
    disk = value["disk_bytes"]
    assert (disk["needed"] + disk["reusable"], disk["log"]) == (sizes["objects"], sizes["wal"])
    assert value["recovery"]["needed"] is False
    text = run("info", store).stdout
    assert value["state_digest"] in text and "step 5" in text and "not needed" in text


def test_equal_states_have_equal_digests(tmp_path: Path) -> None:
    """Another history, other metadata, the same tensors."""
    one, other = make(tmp_path / "one"), make(tmp_path / "other", range(4, 6))
    digests = [run_json("info", path)["state_digest"] for path in (one, other)]
    assert digests[0] == digests[1]
    with Store.open(other, "r+") as store:
        commit(store, 6)
    assert run_json("info", other)["state_digest"] != digests[0]


def test_ls_lists_the_rows_of_a_commit(store: Path) -> None:
    rows = run_json("ls", store, "step:4")
    assert {tuple(row) for row in rows} == {("shard", "part", "tensor", "dtype", "shape", "digest")}
    with Store.open(store) as opened:
        expected = opened.tensors(Ref.step(4))
    assert [(r["shard"], r["part"], r["tensor"], r["digest"]) for r in rows] == [
        (t.shard, t.part, t.tensor, t.digest) for t in expected
    ]
    assert rows[1]["dtype"] == "F32" and rows[1]["shape"] == [3, 4] and rows[0]["shape"] == []
    assert run_json("ls", store) == run_json("ls", store, "head") != rows
    text = run("ls", store, "step:4").stdout.splitlines()
    assert text[0] == f"step 4 (seq {expected_seq(store, 4)}), 6 tensors"
    assert text[1].split() == ["shard", "part", "tensor", "dtype", "shape", "digest"]
    assert text[2].split()[:3] == ["a/b", "params", "n"]


def expected_seq(path: Path, step: int) -> int:
    with Store.open(path) as store:
        return store.commit_of(Ref.step(step)).seq


@pytest.mark.parametrize(
    ("ref", "step"), [("head", 5), ("main", 5), ("early", 2), ("step:4", 4), ("seq:SEQ", 4)]
)
def test_refs_are_spelled_as_documented(store: Path, ref: str, step: int) -> None:
    ref = ref.replace("SEQ", str(expected_seq(store, 4)))
    assert run("ls", store, ref).stdout.startswith(f"step {step} ")


@pytest.mark.parametrize("ref", ["nobody", "step:99", "seq:1", "step:x", "seq:", "a:b", ""])
def test_refs_that_nothing_answers_to_are_wrong_usage(store: Path, ref: str) -> None:
    run("ls", store, ref, code=16)


def test_cat_gives_the_bytes(store: Path) -> None:
    done = process("cat", store, "block_000", "optim", "w", "step:4", "--raw")
    assert done.returncode == 0 and done.stderr == b""
    assert done.stdout == tensors(104)["w"].tobytes()
    assert run("cat", store, "a/b", "params", "n", "--raw").stdout_bytes == struct.pack("<q", 205)


def test_cat_summarises(store: Path) -> None:
    value = run_json("cat", store, "a/b", "params", "w", "early")
    assert value["first"] == [202.0 + i for i in range(8)]
    assert (value["dtype"], value["shape"], value["bytes"], value["step"]) == ("F32", [3, 4], 48, 2)
    assert value["statistics"] == {"min": 202.0, "max": 213.0, "mean": 207.5, "not_finite": 0}
    text = run("cat", store, "a/b", "params", "w", "early").stdout
    assert "202 203 204" in text and "max 213" in text and "F32 [3, 4], 48 bytes" in text


@pytest.mark.parametrize("words", [["x", "params", "w"], ["a/b", "x", "w"], ["a/b", "params", "x"]])
def test_cat_names_what_is_not_there(store: Path, words: list[str]) -> None:
    assert "'x'" in run("cat", store, *words, code=16).stderr


def test_cat_refuses_two_forms_at_once(store: Path) -> None:
    run("cat", store, "a/b", "params", "w", "--raw", "--json", code=16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_decoded_as_torch_does(dtype: str) -> None:
    """All bit patterns of the small types, random ones of the others."""
    tensor = tensor_of(dtype, (512,), seed=3)
    if tensor.element_size() == 1 and dtype != "BOOL":
        tensor = torch.arange(256, dtype=torch.int64).to(torch.uint8).view(DTYPES[dtype])
    found = decode(tensor.reshape(-1, 1).view(torch.uint8).numpy().tobytes(), dtype)
    wide = (
        tensor
        if dtype in ("U64", "U32", "U16") or not tensor.is_floating_point()
        else (tensor.to(torch.float64))
    )
    assert len(found) == len(tensor)
    for ours, theirs in zip(found, wide.tolist(), strict=True):
        assert repr(ours) == repr(theirs), (dtype, ours, theirs)


def test_statistics_leave_out_what_is_not_finite() -> None:
    assert statistics([math.nan, 1.0, math.inf, 3.0]) == {
        "min": 1.0, "max": 3.0, "mean": 2.0, "not_finite": 2,
    }  # fmt: skip
    assert statistics([math.nan]) is None and statistics([]) is None
    assert statistics([1.7e308, 1.7e308]) == {
        "min": 1.7e308, "max": 1.7e308, "mean": 1.7e308, "not_finite": 0,
    }  # fmt: skip


@pytest.mark.req("S22")
def test_log_marks_lines_and_shows_metrics(store: Path) -> None:
    run("rewind", store, "early", "--yes")
    with Store.open(store, "r+", settings=SETTINGS) as opened:
        commit(opened, 3, loss=math.nan, words="x" * 50, table={"a": 1})
    rows = run_json("log", store)
    assert [(row["step"], row["status"]) for row in rows] == [
        (3, "effective"), (5, "rewound"), (4, "rewound"), (3, "rewound"),
        (2, "effective"), (1, "effective"),
    ]  # fmt: skip
    assert rows[0]["metadata"] == {"loss": "NaN", "words": "x" * 50, "table": {"a": 1}}
    lines = run("log", store).stdout.splitlines()
    assert lines[0].startswith("* seq") and lines[0].endswith("loss=nan and 2 more")
    assert lines[1].startswith("- seq") and lines[1].endswith("loss=2")
    assert run("log", store, "-n", "2").stdout.splitlines() == lines[:2]
    assert [row["step"] for row in run_json("log", store, "-n", "2")] == [3, 5]
    everything = run_json("log", store, "--all")
    assert {row["type"] for row in everything} == {"commit", "open", "snapshot", "rewind"}
    text = run("log", store, "--all").stdout
    assert "rewound main to step 2" in text and "snapshot early of step 2" in text


@pytest.mark.req("S22")
def test_log_is_cut_for_people_only(tmp_path: Path) -> None:
    store = make(tmp_path / "run", range(1, 31))
    lines = run("log", store).stdout.splitlines()
    assert len(lines) == 21 and "older" in lines[-1]
    assert len(run_json("log", store)) == 30
    assert "older" not in run("log", store, "-n", "25").stdout


@pytest.mark.req("S22")
def test_log_exports_json_lines(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "history.jsonl"
    assert run_json("log", store, "--jsonl", target)["records"] == 5
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert rows == run_json("log", store)[::-1]
    assert run("log", store, "--jsonl", "-").stdout == target.read_text()
    run("log", store, "--jsonl", tmp_path / "none" / "x", code=8)


@pytest.mark.req("S22")
def test_log_finds_a_step(store: Path) -> None:
    rows = run_json("log", store, "--step", "2")
    assert rows == [row for row in run_json("log", store) if row["step"] == 2] != []
    assert "step 2" in run("log", store, "--step", "2").stdout
    assert run_json("log", store, "--step", "99") == []
    run("log", store, "--step", "2", "--all", code=16)


def test_snapshots_are_listed(store: Path) -> None:
    (row,) = run_json("snapshots", store)
    assert (row["name"], row["step"]) == ("early", 2)
    assert "early" in run("snapshots", store).stdout


def test_wal_lists_frames_and_damage(store: Path) -> None:
    value = run_json("wal", store)
    kinds = [frame["type"] for frame in value["frames"]]
    assert kinds == ["open", "commit", "commit", "snapshot", "commit", "commit", "commit"]
    for frame, following in zip(value["frames"], value["frames"][1:], strict=False):
        assert frame["offset"] + frame["bytes"] == following["offset"]
        assert frame["log_synced"] <= frame["seq"] and frame["durable"] is True
    assert value["frames"][-1]["offset"] + value["frames"][-1]["bytes"] == value["end"]
    assert value["findings"] == [] and value["segment"] == 1
    first = run_json("wal", store, "--segment", "0")
    assert first["cut"] is not None and first["frames"][0]["seq"] == 1
    run("wal", store, "--segment", "7", code=16)
    at = value["frames"][2]["offset"] + 300
    flip(Path(value["file"]), at)
    text = run("wal", store, code=4).stdout
    assert f"damage: {value['file']} at offset {value['frames'][2]['offset']}" in text
    broken = run_json("wal", store, code=4)
    assert len(broken["frames"]) == 6 and broken["findings"][0]["severity"] == "damage"


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0xFF]))


@pytest.mark.req("S25")
def test_names_cannot_move_a_cursor(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run", "a", settings=SETTINGS) as store, store.begin(1) as txn:
        txn.stage("evil\x1b[2J\nname", "p\\q", {"w": np.zeros(1, np.float32)})
        txn.commit(metadata={"note": "\x1b[31mred"})
    for words in (["ls"], ["log"], ["fsck", "--deep"]):
        assert "\x1b" not in run(words[0], tmp_path / "run", *words[1:]).stdout
    assert run_json("ls", tmp_path / "run")[0]["shard"] == "evil\x1b[2J\nname"
    assert shown("a\nb\\") == "a\\nb\\\\" and shown("Größe") == "Größe"


def test_output_is_strict_and_readable() -> None:
    assert strict({1: (math.nan, -math.inf)}) == {"1": ["NaN", "-Infinity"]}
    assert [size_text(n) for n in (0, 1023, 1024, 5 << 30)] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "5.0 GiB",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [["log", "--all", "--json"], ["wal"], ["ls"]])
def test_a_reader_that_leaves_early_is_no_crash(store: Path, words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*COMMAND, words[0], str(store), *words[1:]]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (8, b"")


@pytest.mark.req("S26")
@pytest.mark.parametrize("name", [*READING, "init", "snapshot"])
def test_commands_start_without_heavy_imports(store: Path, tmp_path: Path, name: str) -> None:
    words = [name, str(tmp_path / "new" if name == "init" else store), *READING.get(name, [])]
    code = (
        "import sys\nfrom shardstore.cli.main import root\n"
        f"code = root.main({words!r}, standalone_mode=False)\n"
        "heavy = {'numpy', 'torch', 'rich', 'safetensors'} & sys.modules.keys()\n"
        "others = [m for m in sys.modules if m.startswith('shardstore.cli.')]\n"
        "print(code, sorted(heavy), len(others) < 8, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == "0 [] True\n"
