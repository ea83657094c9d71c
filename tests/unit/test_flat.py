"""Flat checkpoints: both ways, bit for bit, with their sidecars; sizes that do not fit."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardstore import Store, UsageError
from shardstore.errors import ForeignFileError, NameTakenError
from shardstore.exporting.flat import export_flat
from shardstore.flat_layout import COUNT_MAX, Layout, layout_of, parse_layout, single
from shardstore.importing.carrying import carry_out
from shardstore.importing.plan import Plan
from shardstore.importing.sources import Wishes, make_plan

LAYOUT = [
    {"shard": "lm_head", "name": "weight", "shape": [4, 3]},
    {"shard": "block_000", "name": "b", "shape": [5]},
    {"shard": "block_000", "name": "a", "shape": [2, 2, 2]},
    {"shard": "lm_head", "name": "bias", "shape": []},
]
COUNT = 12 + 5 + 8 + 1
SIDECARS = {
    "loss": b'[{"step": 1, "loss": 9.25},\n {"step": 2, "loss": 9.0}]\n',
    "samples": b'{"samples": ["\\u00e5"]}',
    "state": b'{"arms": {"docs": 1.546}}\n\n',
}


def flat_bytes(step: int, count: int = COUNT) -> bytes:
    values = np.arange(3 * count, dtype="<f4") + step
    return struct.pack("<ii", step, count) + values.tobytes()


def checkpoint(folder: Path, step: int = 112700, count: int = COUNT) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"step_{step:06d}.bin"
    path.write_bytes(flat_bytes(step, count))
    for name, data in SIDECARS.items():
        (folder / f"step_{step:06d}.{name}.json").write_bytes(data)
    return path


def layout_file(folder: Path, value: Any = LAYOUT) -> str:
    path = folder / "layout.json"
    path.write_text(json.dumps(value))
    return str(path)


def imported(target: Path, *paths: Path, layout: str | None = None, replace: bool = False) -> Plan:
    plan = make_plan([str(path) for path in paths], Wishes(layout=layout))
    with Store.open(target, "a") as store:
        carry_out(store, plan, replace=replace, advance=lambda count: None)
    return plan


def exported(source: Path, target: Path, layout: Layout | None = None) -> list[str]:
    with Store.open(source) as store, store.pin() as view:
        _, warnings = export_flat(view, str(target), layout, lambda count: None)
    return warnings


@pytest.mark.req("S24")
def test_without_a_layout_it_is_one_shard(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "in")
    plan = imported(tmp_path / "run", path)
    assert plan.kind == "flat" and plan.warnings == ()
    with Store.open(tmp_path / "run") as store:
        head = store.commit_of()
        assert head.step == 112700 and head.metadata["imported"]["parameters"] == COUNT
        with store.load("flat", "params") as params, store.load("flat", "optim") as optim:
            moments = optim.numpy()
            expected = np.arange(3 * COUNT, dtype="f4") + 112700
            assert (params.numpy()["weight"] == expected[:COUNT]).all()
            assert (moments["m.weight"] == expected[COUNT : 2 * COUNT]).all()
            assert (moments["v.weight"] == expected[2 * COUNT :]).all()
            assert moments["step"] == 112700
    assert exported(tmp_path / "run", tmp_path / "out") == []
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "in").iterdir()
    }


@pytest.mark.req("S24")
def test_a_layout_makes_shards(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "in")
    layout = layout_file(tmp_path)
    imported(tmp_path / "run", path, layout=layout)
    values = np.arange(3 * COUNT, dtype="f4") + 112700
    with Store.open(tmp_path / "run") as store:
        assert {shard for shard, _ in store.commit_of().parts} == {
            "lm_head", "block_000", "sidecars",
        }  # fmt: skip
        with store.load("block_000", "params") as loaded:
            assert loaded.names == ("b", "a")
            assert (loaded.numpy()["a"].reshape(-1) == values[17:25]).all()
        with store.load("lm_head", "optim") as loaded:
            assert loaded.names == ("m.weight", "v.weight", "m.bias", "v.bias", "step")
            assert loaded.numpy()["v.bias"] == values[2 * COUNT + 25]
    order = parse_layout(Path(layout).read_bytes(), layout)
    exported(tmp_path / "run", tmp_path / "out", order)
    assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    assert not (tmp_path / "out/step_112700.layout.json").exists()
    # In an order of its own, which a file beside it tells: back with that it is the same again.
    exported(tmp_path / "run", tmp_path / "own")
    assert (tmp_path / "own" / path.name).read_bytes() != path.read_bytes()
    own = tmp_path / "own/step_112700.layout.json"
    imported(tmp_path / "again", tmp_path / "own" / path.name, layout=str(own))
    with Store.open(tmp_path / "run") as one, Store.open(tmp_path / "again") as other:
        rows = {(r.shard, r.part, r.tensor, r.digest) for r in one.tensors()}
        assert rows == {(r.shard, r.part, r.tensor, r.digest) for r in other.tensors()}


@pytest.mark.req("S24")
def test_several_checkpoints_become_snapshots(tmp_path: Path) -> None:
    paths = [checkpoint(tmp_path / "in", step) for step in (300, 100, 200)]
    imported(tmp_path / "run", *paths)
    with Store.open(tmp_path / "run") as store:
        assert [s.step for s in store.snapshots] == [100, 200, 300]
        with store.load("flat", "params", "step_00000200") as loaded:
            assert loaded.numpy()["weight"][0] == 200
    later = checkpoint(tmp_path / "in", 400)
    with pytest.raises(NameTakenError, match="--replace"):
        imported(tmp_path / "run", later)
    (tmp_path / "in/step_000400.state.json").unlink()
    imported(tmp_path / "run", later, replace=True)
    with Store.open(tmp_path / "run") as store:
        assert store.commit_of().step == 400
        assert ("sidecars", "state") not in store.commit_of().parts
    copy = tmp_path / "in/copy.bin"
    copy.write_bytes(later.read_bytes())
    with pytest.raises(UsageError, match="two files are of step 400"):
        make_plan([str(later), str(copy)], Wishes())


@pytest.mark.req("S24")
def test_sidecars_of_the_directory(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "in")
    (tmp_path / "in/step_112700.loss.json").rename(tmp_path / "in/.loss.json")
    (tmp_path / "in/step_112700.state.json").unlink()
    plan = imported(tmp_path / "run", path)
    (warning,) = plan.warnings
    assert warning.endswith("has no sidecar .state.json")
    exported(tmp_path / "run", tmp_path / "out")
    assert (tmp_path / "out/step_112700.loss.json").read_bytes() == SIDECARS["loss"]
    assert not (tmp_path / "out/step_112700.state.json").exists()
    for data, words in (
        (b'{"cut": ', "no whole JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"", "empty"),
    ):
        (tmp_path / "in/step_112700.state.json").write_bytes(data)
        with pytest.raises(ForeignFileError, match=words):
            make_plan([str(path)], Wishes())
    (tmp_path / "in/step_112700.state.json").unlink()
    (tmp_path / "in/step_112700.state.json").symlink_to("/etc/hostname")
    with pytest.raises(ForeignFileError, match="a link leads out of"):
        make_plan([str(path)], Wishes())


@pytest.mark.req("S24")
def test_sizes_have_to_agree(tmp_path: Path) -> None:
    path = tmp_path / "step_000007.bin"
    good = flat_bytes(7)
    for data, words in (
        (good[:-1], "it is cut off: 26 parameters at step 7 .expected 320 bytes, found 319"),
        (good + b"x", "bytes stand behind its end"),
        (good[:8], "it is cut off"),
        (good[:5], "too short for a flat checkpoint"),
        (struct.pack("<ii", -1, 0), "this cannot be imported"),
        (struct.pack("<ii", 1, -5), "this cannot be imported"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ):
        path.write_bytes(data)
        with pytest.raises(ForeignFileError, match=words):
            make_plan([str(path)], Wishes())
    path.write_bytes(flat_bytes(8))
    warnings = make_plan([str(path)], Wishes()).warnings
    assert any("says step 8 inside" in text for text in warnings)


@pytest.mark.req("S24")
def test_counts_beyond_int32(tmp_path: Path) -> None:
    path = tmp_path / "step_000007.bin"
    count = COUNT_MAX + 1
    with path.open("wb") as file:
        file.write(struct.pack("<iI", 7, count))
        file.truncate(8 + 12 * count)
    with pytest.raises(ForeignFileError, match="its count is beyond int32"):
        make_plan([str(path)], Wishes())
    with pytest.raises(UsageError, match="int32"):
        parse_layout(json.dumps([{**LAYOUT[0], "shape": [65536, 32768]}]).encode(), "l.json")
    with Store.open(tmp_path / "run", "a") as store:
        for step, layout, words in (
            (5, single(count), f"step 5 has {count} parameters, a flat checkpoint counts to"),
            (COUNT_MAX + 1, None, f"step {COUNT_MAX + 1} is beyond int32"),
        ):
            with store.begin(step) as txn:
                txn.stage("flat", "params", {"weight": np.zeros(2, "f4")})
                txn.commit()
            with store.pin() as view, pytest.raises(UsageError, match=words):
                export_flat(view, str(tmp_path / "out"), layout, lambda _: None)
    assert not (tmp_path / "out").exists()


@pytest.mark.req("S24")
def test_layouts_that_are_wrong(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "in")
    for value, words in (
        ({}, "expected a list"),
        ([{**LAYOUT[0], "more": 1}], "must have exactly"),
        ([{**LAYOUT[0], "shape": [-1]}], "list of counts"),
        ([{**LAYOUT[0], "shard": "sidecars"}], "kept for sidecars"),
        ([{**LAYOUT[0], "name": ""}], "entry 0: tensor name"),
        ([LAYOUT[0], LAYOUT[0]], "two tensors 'weight'"),
    ):
        with pytest.raises(UsageError, match=words):
            make_plan([str(path)], Wishes(layout=layout_file(tmp_path, value)))
    with pytest.raises(ForeignFileError, match=r"of another model .expected 12 parameters, found"):
        make_plan([str(path)], Wishes(layout=layout_file(tmp_path, LAYOUT[:1])))
    with pytest.raises(UsageError, match="--part does not go with a flat checkpoint"):
        make_plan([str(path)], Wishes(part="p"))


@pytest.mark.req("S24")
def test_export_needs_all_of_it_in_fp32(tmp_path: Path) -> None:
    zeros = np.zeros(3, "f4")
    with Store.open(tmp_path / "run", "a") as store:
        for params, optim, words in (
            ({"w": zeros.astype("f8")}, {}, r"needs F32 \[3\], found F64"),
            ({"w": zeros}, {"m.w": zeros}, "tensor 'v.w': .* found nothing"),
            ({"w": zeros}, {"m.w": zeros, "v.w": zeros, "more": zeros}, "'more' has no place"),
        ):
            with store.begin(1) as txn:
                txn.stage("s", "params", params)
                txn.stage("s", "optim", optim)
                txn.commit()
            with store.pin() as view, pytest.raises(UsageError, match=words):
                export_flat(view, str(tmp_path / "out"), None, lambda _: None)
        assert not (tmp_path / "out").exists()
        with store.begin(9) as txn:
            txn.stage("s", "params", {"w": zeros})
            moments = {"m.w": zeros, "v.w": zeros, "step": np.array(8, "i8")}
            txn.stage("s", "optim", moments)
            txn.commit()
    (warning,) = exported(tmp_path / "run", tmp_path / "out")
    assert "the optimizer has seen 8 updates; the file can only say step 9" in warning
    with pytest.raises(NameTakenError, match="exists and is not overwritten"):
        exported(tmp_path / "run", tmp_path / "out")


def test_a_layout_counts_its_stretches() -> None:
    layout = layout_of((row["shard"], row["name"], tuple(row["shape"])) for row in LAYOUT)
    assert [piece.begin for piece in layout.slices] == [0, 12, 17, 25] and layout.count == COUNT
    assert layout.to_json() == LAYOUT


BIG = 120_000_000
BIG_BYTES = 1_440_000_008


def big_checkpoint(folder: Path) -> Path:
    """Sparse: its numbers are zero but for a few."""
    path = folder / "step_112700.bin"
    with path.open("wb") as file:
        file.write(struct.pack("<ii", 112700, BIG))
        file.truncate(BIG_BYTES)
        for region in range(3):
            file.seek(8 + 4 * (region * BIG + 77_777_777))
            file.write(struct.pack("<f", region + 0.5))
    return path


@pytest.mark.req("S24")
def test_120_million_parameters_are_looked_at_at_once(tmp_path: Path) -> None:
    path = big_checkpoint(tmp_path)
    assert path.stat().st_size == BIG_BYTES
    (step,) = make_plan([str(path)], Wishes()).steps
    assert (step.step, step.bytes) == (112700, BIG_BYTES - 8 + 8)  # the header; a count in optim
    rows = [{"shard": f"block_{n:03d}", "name": "w", "shape": [10_000, 1000]} for n in range(12)]
    plan = make_plan([str(path)], Wishes(layout=layout_file(tmp_path, rows)))
    assert len(plan.steps[0].parts) == 24
    os.truncate(path, BIG_BYTES - 1)
    with pytest.raises(ForeignFileError, match=f"expected {BIG_BYTES} bytes, found"):
        make_plan([str(path)], Wishes())


_COMMANDS = """
import resource, sys
from shardstore.cli.main import root
code = root.main(sys.argv[1:], standalone_mode=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.req("S24")
@pytest.mark.long
def test_120_million_parameters_both_ways_in_bounded_memory(tmp_path: Path) -> None:
    """Twelve shards of 120 MB and the buffers' budget, not the 1.4 GB that there are in all."""
    path = big_checkpoint(tmp_path)
    rows = [{"shard": f"block_{n:03d}", "name": "w", "shape": [10_000, 1000]} for n in range(12)]
    layout = layout_file(tmp_path, rows)

    def peak(*words: object) -> int:
        done = subprocess.run(
            [sys.executable, "-c", _COMMANDS, *map(str, words)], capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        return int(done.stderr.split()[-1]) * 1024

    run, out = tmp_path / "run", tmp_path / "out"
    assert peak("import", run, path, "--layout", layout) < 700 << 20
    assert peak("export", run, out, "--format", "flat", "--layout", layout) < 700 << 20
    found = out / path.name
    assert found.stat().st_size == BIG_BYTES
    with found.open("rb") as one, path.open("rb") as other:
        while piece := one.read(16 << 20):
            assert piece == other.read(16 << 20)
