"""`shardstore convert`, and the commands that look, over objects of every storage format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from shardstore import Store
from tests.cli.support import files, make, process, run, run_json

FORMATS = ("raw", "safetensors", "pt")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


@pytest.mark.req("S9")
def test_convert_goes_round_all_formats(store: Path) -> None:
    before = run_json("ls", store)
    log = run_json("log", store, "-n", 1)
    for name in ("safetensors", "pt", "raw"):
        said = run_json("convert", store, "--format", name, "--yes")
        assert (said["format"], said["step"], said["objects"]) == (name, 5, 3)
        assert said["bytes_before"] > 0 and said["bytes_after"] > 0
        assert run_json("ls", store) == before
        assert run_json("cat", store, "a/b", "params", "n")["first"] == [205]
        with Store.open(store) as opened:
            assert {row.format for row in opened.objects()} == {name}
            assert opened.state_digest() == said["state_digest"]
            assert {row.format for row in opened.objects("early")} == {"raw"}
        run("fsck", store)
        run("fsck", store, "--deep")
    assert run_json("log", store, "-n", 1)[0]["metadata"] == log[0]["metadata"]
    text = run("convert", store, "--format", "raw").stdout
    assert "is raw already; nothing was written" in text
    text = run("convert", store, "--format", "safetensors", "--yes").stdout
    assert "3 objects are safetensors now" in text and "KiB" in text


@pytest.mark.req("S9")
def test_other_tools_open_what_convert_wrote(store: Path) -> None:
    run("convert", store, "--format", "safetensors", "--yes")
    run("convert", store, "--format", "pt", "--yes")
    (one, *_) = sorted(store.glob("objects/*.safetensors"))
    with safe_open(one, framework="np") as opened:
        assert set(opened.keys()) == {"w", "n"} and opened.metadata()["step"][-1] == "5"
    (two, *_) = sorted(store.glob("objects/*.pt"))
    assert set(torch.load(two, weights_only=True)) == {"__metadata__", "w", "n"}


@pytest.mark.req("S9")
def test_convert_asks_first_and_refuses_what_it_cannot_do(store: Path, tmp_path: Path) -> None:
    before = list(files(store))
    run("convert", store, "--format", "pt", code=16)
    run("convert", store, "--format", "zip", "--yes", code=16)
    run("convert", store, code=16)
    assert [row for row in files(store) if "LOCK" not in row[0]] == [
        row for row in before if "LOCK" not in row[0]
    ]
    run("init", tmp_path / "empty")
    run("convert", tmp_path / "empty", "--format", "pt", code=16)


@pytest.mark.req("S9", "S26")
def test_without_torch_pt_objects_are_checked_but_not_shown(store: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")
    path = {"env": {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}}
    run("convert", store, "--format", "pt", "--yes")
    for words, code in (
        (["fsck", store], 0),
        (["fsck", store, "--deep"], 0),
        (["log", store], 0),
        (["ls", store], 8),
        (["cat", store, "a/b", "params", "n"], 8),
        (["ls", store, "early"], 0),
    ):
        done = process(*words, **path)
        assert done.returncode == code, (words, done.stderr)
        assert code == 0 or b"pip install" in done.stderr
