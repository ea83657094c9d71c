"""Foreign files whose names and notes cannot be stored: exit code 4, file and tensor are named."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from shardstore.plain_names import PART_KEY, SHARD_KEY
from tests.cli.support import run

pytestmark = [pytest.mark.req("S26"), pytest.mark.timeout(180)]

NAMES = {
    "empty": "",
    "nul": "a\0b",
    "long": "x" * 3000,
    "surrogate": "\ud800",
    "padding": "__pad_0__",
    "metadata": "__metadata__",
}


def safetensors_file(path: Path, name: str, metadata: dict[str, str] | None = None) -> Path:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    return path


def refused(tmp_path: Path, file: Path, *words: object, source: Path | None = None) -> str:
    """What an import says, and a dry run in the same words; no store is made."""
    told = run("import", tmp_path / "run", source or file, *words, code=4).stderr
    assert (
        told == run("import", tmp_path / "run", source or file, *words, "--dry-run", code=4).stderr
    )
    assert f"error: {file}: " in told and len(told.splitlines()) == 1, told
    assert not (tmp_path / "run").exists()
    return told


@pytest.mark.parametrize("name", sorted(NAMES.keys() - {"metadata"}))
@pytest.mark.parametrize("kind", ["F32", "U8"])
def test_a_name_in_a_safetensors_file(tmp_path: Path, name: str, kind: str) -> None:
    file = safetensors_file(tmp_path / "x.safetensors", NAMES[name])
    if kind == "U8":
        if name == "padding":
            return  # that is padding
        data = file.read_bytes().replace(b'"F32", "shape": [1]', b'"U8",  "shape": [4]')
        file.write_bytes(data)
    assert "tensor name " in refused(tmp_path, file)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_pt_file(tmp_path: Path, name: str) -> None:
    file = tmp_path / "x.pt"
    torch.save({"outer": 1, NAMES[name] or ".": torch.zeros(3)}, file)
    if name == "empty":
        torch.save({"": torch.zeros(3), "other": torch.zeros(2)}, file)
        run("import", tmp_path / "run", file)  # a tensor without a name gets one
        return
    assert "tensor name " in refused(tmp_path, file)


@pytest.mark.parametrize("key", [SHARD_KEY, PART_KEY])
def test_a_name_in_the_metadata_of_a_file(tmp_path: Path, key: str) -> None:
    file = safetensors_file(tmp_path / "x.safetensors", "w", {key: "a\0b"})
    assert f"{key.rpartition('.')[2]} name " in refused(tmp_path, file)


def test_names_that_the_call_gives_are_wrong_usage(tmp_path: Path) -> None:
    file = safetensors_file(tmp_path / "x.safetensors", "w")
    for option in ("--shard", "--part"):
        run("import", tmp_path / "run", file, option, "__metadata__", code=16)
    odd = safetensors_file(tmp_path / "__metadata__.safetensors", "w")
    told = run("import", tmp_path / "run", odd, code=16).stderr
    assert str(odd) in told and "give --shard" in told
    run("import", tmp_path / "run", odd, "--shard", "good")


def test_dimensions_without_number_and_impossible_sizes(tmp_path: Path) -> None:
    file = safetensors_file(tmp_path / "x.safetensors", "w")
    sound = file.read_bytes()

    def changed(shape: list[int]) -> str:
        header = {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}
        text = json.dumps(header).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + sound[-4:])
        return refused(tmp_path, file)

    assert "'w' has too many dimensions (expected 64 at most, found 5000)" in changed([1] * 5000)
    empty = {"w": {"dtype": "F32", "shape": [0, 2**60, 2**60], "data_offsets": [0, 0]}}
    text = json.dumps(empty).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    assert "tensor 'w'" in refused(tmp_path, file)


@pytest.mark.parametrize("note", ["deep", "long", "state"])
def test_notes_of_a_run_that_cannot_be_stored(tmp_path: Path, note: str) -> None:
    source = tmp_path / "old"
    (source / "shards" / "params").mkdir(parents=True)
    safetensors.numpy.save_file(
        {"w": np.zeros(3, np.float32)}, source / "shards" / "params" / "one.safetensors"
    )
    config: dict[str, Any] = {"note": "x" * (2 << 20)} if note == "long" else {}
    if note == "deep":
        for _ in range(100):
            config = {"inner": config}
    state = '{"global_step": 0, "val_loss": 1' + "0" * 400 + "}"
    (source / "trainer_state.json").write_text(state if note == "state" else '{"global_step": 0}')
    (source / "config.json").write_text(json.dumps(config))
    if note == "state":
        run("import", tmp_path / "run", source)
    else:
        assert "metadata is " in refused(tmp_path, source)


def test_values_that_no_metadata_can_hold(tmp_path: Path) -> None:
    file = tmp_path / "x.pt"
    torch.save({"w": torch.zeros(2), "\ud800": 3, "n": float("nan"), "deep": {"a": [1, 2]}}, file)
    run("import", tmp_path / "run", file)
    assert zipfile.is_zipfile(file)
