"""`shardstore import` and `export` as commands: what they say, what they refuse, exit codes."""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from shardstore import Store
from tests.cli.support import COMMAND, files, make, process, run, run_json
from tests.support.legacy_run import make_run, params_of, write_optim


def plain(path: Path, value: float = 1.0) -> Path:
    path.write_bytes(safetensors.numpy.save({"w": np.full(3, value, "f4")}))
    return path


@pytest.mark.req("S23")
def test_a_run_is_imported(tmp_path: Path) -> None:
    root = make_run(tmp_path / "old", step=30, state_step=20)
    before = list(files(root))
    looked = run_json("import", tmp_path / "run", root, "--dry-run")
    assert looked["dry_run"] and looked["steps"][0]["seq"] is None
    assert not (tmp_path / "run").exists()
    said = run_json("import", tmp_path / "run", root)
    assert (said["kind"], said["source"], said["dry_run"]) == ("run", "old", False)
    (step,) = said["steps"]
    assert (step["step"], step["parts"], step["snapshot"]) == (30, 10, None)
    assert len(said["warnings"]) == 1 and "global_step 20" in said["warnings"][0]
    assert list(files(root)) == before
    with Store.open(tmp_path / "run") as store:
        assert store.state_digest() == said["state_digest"]
    run("fsck", tmp_path / "run", "--deep")
    result = run("import", tmp_path / "other", root)
    assert result.stderr.startswith("warning: ") and "global_step 20" in result.stderr
    assert result.stdout.splitlines()[0].startswith("step 30: 10 parts, 62 tensors, ")
    assert f"state digest {said['state_digest']}" in result.stdout
    assert "--replace" in run("import", tmp_path / "run", root, code=16).stderr
    write_optim(root, "lm_head", params_of("lm_head", 0), step=31)
    refused = run("import", tmp_path / "third", root, code=4)
    assert "the optimizer shards beside it disagree" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1 and not (tmp_path / "third").exists()


@pytest.mark.req("S24")
def test_plain_files_become_named_shards(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "epoch": 3}, tmp_path / "head.pt")
    plain(tmp_path / "body.safetensors")
    sources = (tmp_path / "body.safetensors", tmp_path / "head.pt")
    said = run_json("import", tmp_path / "run", *sources)
    assert said["kind"] == "files" and said["steps"][0]["step"] == 0
    with Store.open(tmp_path / "run") as store:
        head = store.commit_of()
        assert head.parts == {("body", "params"), ("head", "params")}
        assert head.metadata["imported"]["values"] == {"head": {"epoch": 3}}
    refused = run("import", tmp_path / "run", *sources, code=16)
    assert "has body/params, head/params already" in refused.stderr
    plain(tmp_path / "body.safetensors", 2.0)
    run("import", tmp_path / "run", sources[0], "--replace", "--step", 5)
    named = ("--shard", "x/y", "--shard", "z", "--part", "ema")
    said = run_json("import", tmp_path / "run", *sources, *named)
    assert said["steps"][0]["step"] == 5
    with Store.open(tmp_path / "run") as store:
        assert store.commit_of().parts == {
            ("body", "params"), ("head", "params"), ("x/y", "ema"), ("z", "ema"),
        }  # fmt: skip
        with store.load("body", "params") as loaded:
            assert loaded.numpy()["w"][0] == 2.0
    run("import", tmp_path / "run", *sources, "--shard", "one", code=16)
    run("import", tmp_path / "run", *sources, "--shard", "one", "--shard", "one", code=16)
    run("import", tmp_path / "run", sources[0], "--shard", "__snapshot__", code=16)
    run("import", tmp_path / "run", sources[0], "--step", 1, "--shard", "new", code=16)


@pytest.mark.req("S24")
def test_flat_checkpoints_both_ways(tmp_path: Path) -> None:
    values = np.arange(18, dtype="<f4")
    path = tmp_path / "step_000012.bin"
    path.write_bytes(struct.pack("<ii", 12, 6) + values.tobytes())
    (tmp_path / "step_000012.loss.json").write_bytes(b"[9.5]")
    layout = tmp_path / "layout.json"
    rows = [{"shard": "b", "name": "w", "shape": [4]}, {"shard": "a", "name": "w", "shape": [2]}]
    layout.write_text(json.dumps(rows))
    said = run_json("import", tmp_path / "run", path, "--layout", layout)
    assert said["kind"] == "flat" and len(said["warnings"]) == 2
    there = run_json(
        "export", tmp_path / "run", tmp_path / "out", "--format", "flat", "--layout", layout
    )
    assert [Path(row["file"]).name for row in there["files"]] == [
        "step_000012.loss.json", "step_000012.bin",
    ]  # fmt: skip
    assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    text = run("export", tmp_path / "run", tmp_path / "own", "--format", "flat").stdout
    assert "step 12 in 3 files" in text
    run("export", tmp_path / "run", tmp_path / "own", "--format", "flat", code=16)
    run("export", tmp_path / "run", tmp_path / "x", "--layout", layout, code=16)
    run("export", tmp_path / "run", tmp_path / "x", "--format", "flat", "--part", "a", code=16)


@pytest.mark.req("S24")
@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_a_commit_is_exported(tmp_path: Path, kind: str) -> None:
    store = make(tmp_path / "run")
    before = list(files(store))
    said = run_json("export", store, tmp_path / "out", "--format", kind, "--ref", "early")
    assert said["step"] == 2 and len(said["files"]) == 3
    names = {str(Path(row["file"]).relative_to(tmp_path / "out")) for row in said["files"]}
    assert names == {f"optim/block_000.{kind}", f"params/block_000.{kind}", f"params/a%2Fb.{kind}"}
    assert list(files(store)) == before
    run("export", store, tmp_path / "out", "--format", kind, code=16)
    run("export", store, tmp_path / "x", "--format", kind, "--shard", "nobody", code=16)
    run("export", store, tmp_path / "x", "--ref", "nothing", code=16)
    assert not (tmp_path / "x").exists()


def test_refusals_are_one_line_and_change_nothing(tmp_path: Path) -> None:
    good, bad = plain(tmp_path / "good.safetensors"), tmp_path / "bad.pt"
    store = make(tmp_path / "run")
    before = list(files(store))
    mark = tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {mark}",)

    torch.save({"w": Evil()}, bad)
    for words, code in (
        ((good, bad), 4),
        ((tmp_path / "nothing.pt",), 8),
        ((tmp_path,), 16),
        ((good, tmp_path), 16),
        ((good, "--layout", bad), 16),
        ((good, "--no-checkpoints"), 16),
        ((make_run(tmp_path / "old"), "--step", 3), 16),
        ((make_run(tmp_path / "old"), "--layout", "x"), 16),
    ):
        for target in (store, tmp_path / "new"):
            result = run("import", target, *words, code=code)
            assert len(result.stderr.splitlines()) == 1 and not result.stdout
    bad.write_bytes(pickle.dumps([1]))
    assert "a bare pickle" in run("import", store, good, bad, code=4).stderr
    assert list(files(store)) == before
    assert not (tmp_path / "new").exists() and not mark.exists()


@pytest.mark.req("S26")
def test_both_work_without_torch(tmp_path: Path) -> None:
    root = make_run(tmp_path / "old")
    without = [
        sys.executable, "-c",
        "import sys; sys.modules['torch'] = None\n"
        "from shardstore.cli.main import main; main()",
    ]  # fmt: skip
    command = COMMAND[:]
    try:
        COMMAND[:] = without
        assert process("import", tmp_path / "run", root).returncode == 0
        assert process("export", tmp_path / "run", tmp_path / "out").returncode == 0
        refused = process("export", tmp_path / "run", tmp_path / "pt", "--format", "pt")
    finally:
        COMMAND[:] = command
    assert refused.returncode == 8 and b"PyTorch, which cannot be imported" in refused.stderr
    assert not (tmp_path / "pt").exists()
