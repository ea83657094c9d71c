"""`trainer data` from outside: one object of JSON, exit codes, nothing drawn to a pipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tests.trainer.data.support import make_directory
from trainer.data.command import data

pytestmark = pytest.mark.req("T24")


@click.group()
def root() -> None:
    """Stands for `trainer`."""


root.add_command(data)


def run(*args: object) -> Result:
    return CliRunner().invoke(root, ["data", *map(str, args)])


def result(*args: object) -> Any:
    done = run(*args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts"
    path.mkdir()
    for number in range(60):
        (path / f"t{number}.txt").write_text(f"text {number} of the sort that people write\n" * 9)
    return path


def test_prepare_then_info_then_verify(tmp_path: Path, texts: Path) -> None:
    out = tmp_path / "data"
    args = ("prepare", "--corpus", texts, "--out", out, "--vocab-size", 300, "--seq-len", 8)
    made = result(*args, "--val-fraction", 0.2)
    assert made["vocab_size"] <= 300 and made["train"]["rows"] > made["val"]["rows"] > 0
    shown = result("info", out, "--baseline")
    assert shown["train"]["rows"] == made["train"]["rows"] and shown["val"]["kind"] == "full"
    assert 0 < shown["baseline"]["unigram"] < shown["baseline"]["ln_vocab"]
    assert run(*args).exit_code == 8
    again = run(*args, "--val-fraction", 0.2, "--overwrite")
    assert again.exit_code == 0 and "train" in again.stdout
    assert result("info", out)["train"]["content"] == shown["train"]["content"]
    victim = out / "train" / "000000.npy"
    victim.write_bytes(victim.read_bytes()[:-1])
    failed = run("info", out)
    assert failed.exit_code == 4 and str(victim) in failed.stderr and failed.stdout == ""


def test_tokenizer_and_pack_give_what_prepare_gives(tmp_path: Path, texts: Path) -> None:
    common = ("--corpus", texts, "--val-fraction", 0.2)
    model = tmp_path / "tokenizer.json"
    trained = result("tokenizer", *common, "--vocab-size", 300, "--out", model)
    packing = ("--seq-len", 8, "--rows-per-file", 7)
    packed = result("pack", *common, *packing, "--tokenizer", model, "--out", tmp_path / "a")
    both = result("prepare", *common, *packing, "--vocab-size", 300, "--out", tmp_path / "b")
    assert packed["tokenizer_digest"] == trained["digest"]
    assert packed | {"out": ""} == both | {"out": ""}


def test_repack_and_manifests(tmp_path: Path) -> None:
    source = make_directory(tmp_path / "many", [1, 2, 3])
    assert result("repack", source, tmp_path / "few") == {"rows": 6, "files_before": 3, "files": 1}
    assert result("info", source, "--write-manifest")["many"]["rows"] == 6
    assert (source / "manifest.json").exists()
    assert result("info", source, "--verify")["many"]["max_id"] == 9
    assert run("info", source, "--baseline").exit_code == 8


def test_usage_errors_and_help(tmp_path: Path) -> None:
    assert run("pack").exit_code == 16
    assert run("nonsense").exit_code == 16
    assert run("prepare", "--out", tmp_path / "x", "--seq-len", 0).exit_code == 16
    assert run("info", tmp_path / "missing").exit_code == 8
    for name, command in data.commands.items():
        shown = run(name, "--help")
        assert shown.exit_code == 0 and f"Example: trainer data {command.name}" in shown.stdout


def test_what_could_not_be_read_is_warned_about(tmp_path: Path, texts: Path) -> None:
    (texts / "bad.txt").write_bytes(b"\xff")
    args: tuple[object, ...] = ("prepare", "--corpus", texts, "--out", tmp_path / "data")
    args += ("--seq-len", 8, "--val-fraction", 0.2, "--vocab-size", 9000)
    done = run(*args)
    assert done.exit_code == 0
    assert "warning: 1 files or lines were left out, the first: bad.txt" in done.stderr
    assert "tokens, not 9000" in done.stderr
    assert run(*args, "--overwrite", "--on-undecodable", "error").exit_code == 8
