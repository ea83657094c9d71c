"""`shardstore archive`, and the other commands over an archived snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardstore import Store
from tests.cli.support import SETTINGS, files, run, run_json


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Steps 1 to 6 of something that is trained; 2 and 4 are snapshots."""
    path, rng = tmp_path / "run", np.random.default_rng(1)
    w = rng.normal(0, 0.02, 50_000)
    with Store.open(path, "a", settings=SETTINGS) as opened:
        for step in range(1, 7):
            w = w + rng.normal(0, 1e-6, w.size)
            with opened.begin(step) as txn:
                txn.stage("block", "params", {"w": w.astype("f4")})
                txn.commit({"loss": 1.0 / step})
            if step in (2, 4):
                opened.snapshot(f"s{step}")
    return path


def looks(store: Path) -> list[Any]:
    with Store.open(store) as opened:
        digests = [opened.state_digest(name) for name in ("s2", "s4")]
    listed = [run_json("ls", store, name) for name in ("s2", "s4")]
    tensor = run("cat", store, "block", "params", "w", "s2").stdout
    return [digests, listed, tensor, run_json("diff", store, "s2", "s4", "--values")]


@pytest.mark.req("S20")
def test_archive_says_ratio_and_speed_and_everything_goes_on(store: Path) -> None:
    before = looks(store)
    one = run_json("archive", store, "s2")
    assert (one["name"], one["step"], one["objects"], one["against"]) == ("s2", 2, 1, None)
    assert one["ratio"] > 1.05 and one["gigabytes_per_second"] > 0
    text = run("archive", store, "s4").stdout
    assert "1 of them as differences to s2" in text and "ratio" in text and "GB/s" in text
    assert looks(store) == before
    for words in (("fsck", store), ("fsck", store, "--deep"), ("status", store)):
        run(*words)
    rows = run_json("snapshots", store)
    assert [(row["name"], row["archived"]) for row in rows] == [("s2", True), ("s4", True)]
    assert run("snapshots", store).stdout.count("archived") == 2
    kinds = [row["type"] for row in run_json("log", store, "--all")]
    assert kinds.count("archive") == 2
    assert "archived snapshot s4" in run("log", store, "--all").stdout
    info = run_json("info", store)
    assert info["disk_bytes"]["reusable"] > 0
    run("gc", store, "--all", "--yes")
    run("rewind", store, "s4", "--yes")
    assert looks(store) == before
    assert run_json("info", store)["head"]["step"] == 4
    run("convert", store, "--format", "raw", "--yes")
    with Store.open(store) as opened:
        assert {row.format for row in opened.objects()} == {"raw"}
        assert opened.state_digest() == before[0][1]
    run("fsck", store, "--deep")


@pytest.mark.req("S20")
def test_options(store: Path) -> None:
    done = run_json("archive", store, "s2", "--delta-against", "s4", "--level", "5")
    assert (done["against"], done["deltas"]) == ("s4", 1)
    assert run_json("archive", store, "s4", "--alone")["deltas"] == 0


@pytest.mark.req("S20", "S26")
def test_what_cannot_be_archived_is_refused_and_nothing_changes(store: Path) -> None:
    before = list(files(store))
    assert "nosuch" in run("archive", store, "nosuch", code=16).stderr
    run("archive", store, "s2", "--level", "0", code=16)
    assert list(files(store)) == before
    for words in (("--delta-against", "nosuch"), ("--delta-against", "s4", "--alone")):
        run("archive", store, "s2", *words, code=16)
    run("archive", store, "s2")
    assert "archived already" in run("archive", store, "s2", code=16).stderr
