"""`shardstore status` beside readers in other processes, and for stores of two tiers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardstore import Store, open_active
from tests.cli.support import SETTINGS, commit, files, make, run, run_json

READER = """
import sys
from shardstore import Store
with Store.open(sys.argv[1]) as store, store.pin(sys.argv[2]) as view:
    print(view.pinned, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


@contextmanager
def reader(path: Path, ref: str) -> Iterator[subprocess.Popen[str]]:
    """A process that pins until its input ends."""
    child = subprocess.Popen([sys.executable, "-c", READER, str(path), ref],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def row(path: Path, name: str) -> str:
    """One row of the screen, with the lines below it that have no name."""
    found: list[str] = []
    for line in run("status", path).stdout.partition("\nnext: ")[0].splitlines():
        if line.startswith(f"{name} ") or (found and line.startswith(" ")):
            found.append(line.removeprefix(name).strip())
        elif found:
            break
    return "\n".join(found)


@pytest.mark.req("S8", "S31")
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_reader_in_another_process_is_seen_until_it_ends(store: Path, end: str) -> None:
    assert row(store, "pinned") == "nothing: no reader holds a commit"
    before = list(files(store))
    with reader(store, "early") as child:
        assert "4 objects, " in row(store, "pinned")
        assert row(store, "pinned").endswith("by readers of snapshots early")
        value = run_json("status", store)["pinned"]
        assert value["snapshots"] == ["early"] and len(value["slots"]) == 4
        assert list(files(store)) == before
        if end == "killed":
            child.kill()
        child.communicate()
        assert run_json("status", store)["pinned"]["slots"] == []
        assert row(store, "pinned") == "nothing: no reader holds a commit"


@pytest.mark.req("S8", "S31")
def test_why_gc_gives_nothing_back_beside_a_writer(store: Path) -> None:
    with reader(store, "head") as child, Store.open(store, "r+", settings=SETTINGS) as writer:
        assert row(store, "pinned").endswith("by readers of step 5")
        for step in range(6, 12):
            commit(writer, step)
        text = row(store, "pinned")
        assert "3 of them, " in text and "written by step 5: only pins keep these" in text
        value = run_json("status", store)
        assert value["pinned"]["held_back_bytes"] == value["pinned"]["bytes"] > 0
        assert value["pinned"]["held_back_steps"] == [5] and value["healthy"]
        child.communicate()
        assert run_json("status", store)["pinned"]["held_back_bytes"] == 0


@pytest.mark.req("S31")
def test_pins_that_cannot_be_read_are_unknown(store: Path) -> None:
    (store / "PINS").unlink()
    (store / "PINS").symlink_to("PINS")
    assert row(store, "pinned").startswith("unknown")
    assert run_json("status", store)["pinned"] is None


@pytest.mark.req("S16", "S31")
def test_the_last_published_step_is_shown(tmp_path: Path) -> None:
    active, durable = make(tmp_path / "run"), tmp_path / "durable"
    assert row(active, "published") == "" and run_json("status", active)["published"] is None
    with open_active(active, durable, settings=SETTINGS) as opened:
        opened.publish(durable)
        commit(opened, 6)
    assert row(active, "published").startswith("step 5, to the durable store ")
    assert row(durable, "published").startswith("step 5, of the active store as it was ")
    value = run_json("status", active)["published"]
    assert (value["tier"], value["step"]) == ("active", 5) and value["age_seconds"] >= 0
    run("publish", active, durable)
    assert row(active, "published").startswith("step 6, ")
    assert run_json("status", durable)["published"]["step"] == 6
