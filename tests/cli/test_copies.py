"""`shardstore clone` and `shardstore publish` on real directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardstore import Store, open_active
from tests.cli.support import SETTINGS, commit, files, make, process, run, run_json


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


@pytest.mark.req("S7")
def test_clone_copies_beside_a_writer(store: Path, tmp_path: Path) -> None:
    with Store.open(store, "r+") as writer:
        said = run_json("clone", store, tmp_path / "all")
        commit(writer, 6)
    assert (said["path"], said["step"], said["objects"]) == (str(tmp_path / "all"), 5, 10)
    assert run_json("ls", tmp_path / "all", "early") == run_json("ls", store, "early")
    run("fsck", tmp_path / "all", "--deep")
    text = run("clone", store, tmp_path / "one", "--ref", "early").stdout
    assert "step 2, 3 objects (" in text
    assert run_json("info", tmp_path / "one")["uuid"] == run_json("info", store)["uuid"]
    run("fsck", tmp_path / "one", "--deep")


@pytest.mark.req("S7")
def test_clone_says_what_stands_in_its_way(store: Path, tmp_path: Path) -> None:
    before = list(files(store))
    run("clone", store, store, code=16)
    run("clone", store, tmp_path / "a", "--ref", "nobody", code=16)
    assert not (tmp_path / "a").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    said = run("clone", store, tmp_path / "full", code=8).stderr
    assert "not empty (it holds 'notes')" in said
    run("clone", tmp_path / "nothing", tmp_path / "a", code=8)
    (slot, *_) = sorted(store.glob("objects/*.raw"))
    slot.write_bytes(slot.read_bytes()[:-1] + b"\x01")
    said = run("clone", store, tmp_path / "a", code=4).stderr
    assert slot.name in said and not (tmp_path / "a" / "STORE").exists()
    slot.write_bytes(slot.read_bytes()[:-1] + b"\x00")
    run("clone", store, tmp_path / "a")
    assert [row[:2] for row in files(store)] == [row[:2] for row in before]


@pytest.mark.req("S16")
def test_publish_makes_a_durable_store_and_brings_it_up_to_date(
    store: Path, tmp_path: Path
) -> None:
    durable = tmp_path / "durable"
    said = run_json("publish", store, durable)
    assert said == {
        "path": str(durable), "created": True, "step": 5, "records": 6, "objects": 10,
        "bytes": said["bytes"], "seq": said["seq"],
    }  # fmt: skip
    assert "at step 5 already; nothing was written" in run("publish", store, durable).stdout
    with Store.open(store, "r+", settings=SETTINGS) as writer:
        for step in (6, 7):
            commit(writer, step)
        writer.snapshot("late")
        text = run("publish", store, durable).stdout  # a writer holds the lock
        assert f"{durable}: step 7, 3 records of history, 3 objects (" in text
    assert run_json("ls", durable) == run_json("ls", store)
    assert [row["name"] for row in run_json("snapshots", durable)] == ["early", "late"]
    log = [run_json("log", path) for path in (durable, store)]
    assert [(r["id"], r["step"], r["metadata"]) for r in log[0]] == [
        (r["id"], r["step"], r["metadata"]) for r in log[1]
    ]
    assert run_json("log", durable, "--step", 6)[0]["id"] == log[1][1]["id"]
    for path in (durable, store):
        run("fsck", path, "--deep")
        run("status", path)
        run("wal", path)


@pytest.mark.req("S16")
def test_a_start_takes_the_tier_that_goes_on(store: Path, tmp_path: Path) -> None:
    durable = tmp_path / "durable"
    run("publish", store, durable)
    for file in sorted(store.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    with open_active(store, durable) as active:
        assert active.head is not None and active.head.step == 5
        commit(active, 6)
    run("rewind", durable, "early", "--yes")
    said = run("publish", store, durable, code=8).stderr
    assert "active" in said and "step 6" in said and "durable" in said and "step 2" in said
    with open_active(store, durable, take="durable") as active:
        assert active.head is not None and active.head.step == 2
    aside = tmp_path / "run.set-aside-1"
    assert run_json("log", aside, "-n", 1)[0]["step"] == 6


@pytest.mark.req("S26")
def test_both_start_without_torch(store: Path, tmp_path: Path) -> None:
    for name in ("clone", "publish"):
        done = process(name, "--help")
        assert done.returncode == 0 and b"Example:" in done.stdout
        done = process(name, str(store), str(tmp_path / name))
        assert done.returncode == 0 and not done.stderr
