"""branch, switch, undo of both, retention, gc: what they print, change and refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardstore import Ref, Retention, Store
from tests.cli.support import SETTINGS, commit, files, make, run, run_json


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


def head(path: Path) -> tuple[str, int | None]:
    with Store.open(path) as store:
        return store.current_branch, store.head.step if store.head else None


@pytest.mark.req("S7")
def test_branches_are_made_listed_and_switched(store: Path) -> None:
    assert run_json("branch", store) == [{"name": "main", "seq": 8, "step": 5, "current": True}]
    assert run_json("branch", store, "trial", "--at", "early")["step"] == 2
    assert "branch more begins at step 5" in run("branch", store, "more").stdout
    run("branch", store, "early", code=16)
    run("branch", store, "head", code=16)
    assert "give its NAME" in run("branch", store, "--at", "early", code=16).stderr
    lines = [line.split() for line in run("branch", store).stdout.splitlines()]
    assert lines[1:] == [["*", "main", "5", "8"], ["more", "5", "8"], ["trial", "2", "4"]]
    value = run_json("switch", store, "trial")
    assert (value["branch"], value["left"], value["head"]["step"]) == ("trial", "main", 2)
    assert head(store) == ("trial", 2)
    assert "already" in run("switch", store, "trial", code=16).stderr
    assert "no branch" in run("switch", store, "nothing", code=16).stderr
    assert "more at step 5" in run("switch", store, "more").stdout
    assert run_json("fsck", store, "--deep")["clean"]


@pytest.mark.req("S6", "S7")
def test_deleted_branches_and_switches_are_undone(store: Path) -> None:
    run("branch", store, "trial")
    run("switch", store, "trial")
    assert "current branch" in run("branch", store, "--delete", "trial", "--yes", code=16).stderr
    text = run("branch", store, "--delete", "main", code=16).stderr
    assert "delete branch main at step 5" in text and "--yes" in text
    run("branch", store, "x", "--delete", "main", "--yes", code=16)
    assert run_json("branch", store, "--delete", "main", "--yes")["deleted"] == "main"
    run("branch", store, "--delete", "main", "--yes", code=16)
    assert "deleted branch main" in run("undo", store, code=16).stderr
    assert "branch main is back" in run("undo", store, "--yes").stdout
    assert "switch from trial back to main" in run("undo", store, code=16).stderr
    assert "main is the current branch again, at step 5" in run("undo", store, "--yes").stdout
    run("undo", store, "--yes", code=16)
    assert head(store) == ("main", 5)


@pytest.mark.req("S7", "S22")
def test_log_wal_and_info_know_the_records(store: Path) -> None:
    run("branch", store, "trial")
    run("switch", store, "trial")
    with Store.open(store, "r+", settings=SETTINGS) as opened:
        commit(opened, 6)
        opened.switch("main")
        opened.set_retention(Retention(last=1, every=3))
        opened.gc()
        opened.delete("trial")
        opened.delete("early")
    text = run("log", store, "--all").stdout
    for words in ("branch trial at step 5 (seq 8)", "switched to trial", "deleted branch trial",
                  "retention: the last commit, every step that 3 divides", "gave up 1 commits",
                  "deleted snapshot early"):  # fmt: skip
        assert words in text, words
    about = {frame["type"]: frame["about"] for frame in run_json("wal", store)["frames"]}
    assert about["switch"] == "main" and about["unkeep"].startswith("seq ")
    assert '"every": 3' in about["retention"]
    run("undo", store, "--yes")
    run("undo", store, "--yes")
    assert [line[0] for line in run("log", store).stdout.splitlines()] == list("/*****")
    statuses = [entry["status"] for entry in run_json("log", store)]
    assert statuses[0] == "branched" and set(statuses[1:]) == {"effective"}
    value = run_json("info", store)
    assert (value["branch"], value["branches"]) == ("main", 2)
    assert value["retention"] == {"last": 1, "every": 3, "best": None}
    text = run("info", store).stdout
    assert "main of 2" in text and "every step that 3 divides" in text
    frames = {f["type"]: f["about"] for f in run_json("wal", store, "--segment", 3)["frames"]}
    assert frames["branch"] == "trial at seq 8"


@pytest.mark.req("S17")
def test_retention_is_shown_and_changed(store: Path) -> None:
    assert run_json("retention", store) == {"last": 2, "every": None, "best": None}
    assert "the last 2 commits" in run("retention", store).stdout
    text = run("retention", store, "--last", 1, code=16).stderr
    assert "keep the last commit instead of the last 2 commits" in text and "--yes" in text
    words = ("--every", 1000, "--best", "metrics.val_loss", "--mode", "max", "--count", 3, "--yes")
    best = {"metric": "metrics.val_loss", "mode": "max", "count": 3}
    assert run_json("retention", store, *words) == {"last": 2, "every": 1000, "best": best}
    assert run_json("retention", store)["best"] == best
    for wrong in (("--last", 0), ("--every", 0), ("--best", "a..b"), ("--mode", "min"),
                  ("--count", 2), ("--best", "loss", "--mode", "least")):  # fmt: skip
        run("retention", store, *wrong, "--yes", code=16)


@pytest.mark.req("S17")
def test_gc_asks_tells_and_gives_back(store: Path) -> None:
    before = list(files(store))
    told = run_json("gc", store, "--dry-run", "--all")
    assert told["dry_run"] and told["unkept"] == [] and told["files"] > 0
    assert "nothing was changed" in run("gc", store, "--dry-run").stdout
    assert "--yes" in run("gc", store, "--all", code=16).stderr
    assert list(files(store)) == before
    done = run_json("gc", store, "--all", "--yes")
    assert (done["files"], done["bytes"]) == (told["files"], told["bytes"])
    sizes = sum(len(content) for name, content, _ in before if "/objects/" in name)
    left = sum(len(content) for name, content, _ in files(store) if "/objects/" in name)
    assert sizes - left == done["bytes"] > 0
    assert "gave up 0 commits and 0 object files" in run("gc", store, "--all").stdout
    run("retention", store, "--last", 1, "--yes")
    assert "1 commits (seq 7)" in run("gc", store, "--yes").stdout
    with Store.open(store) as opened:
        assert [made.step for made in opened.kept] == [5]
        assert opened.commit_of(Ref.name("early")).step == 2
    assert run_json("fsck", store, "--deep")["clean"]
