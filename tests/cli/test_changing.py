"""fsck, recover, snapshot, rewind, undo: exit codes, consent, one line for every error."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from shardstore import Store
from shardstore.cli.main import COMMANDS
from shardstore.fs.posix import PosixFileSystem
from shardstore.wal.reader import read_log
from tests.cli.support import COMMAND, SETTINGS, commit, files, make, process, run, run_json
from tests.cli.test_reading import flip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


def head(path: Path) -> int | None:
    with Store.open(path) as store:
        return store.head.step if store.head else None


def newest(path: Path) -> Path:
    return max(path.glob("wal/*.wal"))


def tear(path: Path) -> None:
    """An append that a crash interrupted: the beginning of a frame over zeros."""
    view = read_log(PosixFileSystem(), str(path))
    frame = view.segment.records[-1].frame
    with newest(path).open("r+b") as file:
        file.seek(frame.offset)
        begin = file.read(512)
        file.seek(view.segment.end)
        file.write(begin)


def slot_of(path: Path, shard: str, part: str) -> Path:
    commit = read_log(PosixFileSystem(), str(path)).state.head
    assert commit is not None
    return path / f"objects/{commit.manifest[shard, part].slot:06x}.raw"


# ---------------------------------------------------------------------- the tree of commands


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name: str) -> None:
    text = run(name, "--help").stdout
    assert "Example:" in text and f"shardstore {name} run" in text
    assert "--json" in text and "Exit codes:" in text and "16" in text


def test_the_root_lists_every_command() -> None:
    for words in ([], ["--help"]):
        text = run(*words).stdout
        assert all(f"\n  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize(
    "words",
    [["nosuch"], ["--nosuch"], ["ls"], ["ls", "a", "b", "c"], ["recover", "run", "--salvages"],
     ["log", "run", "-n", "0"], ["log", "run", "-n", "x"], ["wal", "run", "--segment", "-1"]],
)  # fmt: skip
def test_wrong_usage_exits_16(words: list[str]) -> None:
    run(*words, code=16)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("init", "import")])
def test_what_is_no_store_exits_8(tmp_path: Path, name: str) -> None:
    words = {
        "archive": ["x"], "cat": ["a", "b", "c"], "convert": ["--format", "pt"],
        "diff": ["head", "head"], "rewind": ["head", "--yes"], "undo": ["--yes"], "switch": ["x"],
        "clone": [str(tmp_path / "x")], "publish": [str(tmp_path / "x")],
        "export": [str(tmp_path / "x")],
    }.get(name, [])  # fmt: skip
    (tmp_path / "file").touch()
    paths = [tmp_path, tmp_path / "nowhere", tmp_path / "file"]
    for path in paths[name == "bench" :]:  # any directory will do for that one
        run(name, path, *words, code=8)


@pytest.mark.req("S28")
@pytest.mark.parametrize("name", ["info", "fsck", "recover", "status", "wal"])
def test_a_newer_format_exits_8(store: Path, name: str) -> None:
    from shardstore.format.digests import digest

    body = b"shardstore\nversion 7\nuuid x\n"
    (store / "STORE").write_bytes(body + f"digest {digest(body)}\n".encode())
    assert "version 7" in run(name, store, code=8).stderr


def test_a_console_script_behaves_the_same(store: Path) -> None:
    done = process("ls", store, "nobody")
    assert done.returncode == 16 and done.stdout == b""
    assert done.stderr.startswith(b"error: ") and done.stderr.count(b"\n") == 1
    assert process("info", store).returncode == 0


# ---------------------------------------------------------------------- fsck


@pytest.mark.req("S13")
def test_fsck_of_a_healthy_store_exits_0(store: Path) -> None:
    for words in ([], ["--deep"]):
        value = run_json("fsck", store, *words)
        assert value["clean"] is True and value["objects"] == 10
        assert run("fsck", store, *words).stdout.splitlines()[-1].startswith(f"{store}: clean")
    tear(store)
    assert "interrupted append" in run("fsck", store).stdout


@pytest.mark.req("S13")
def test_fsck_names_damage_and_exits_4(store: Path) -> None:
    path = slot_of(store, "a/b", "params")
    flip(path, 4096 + 64)
    assert run_json("fsck", store)["clean"] is True
    value = run_json("fsck", store, "--deep", code=4)
    (finding,) = [f for f in value["findings"] if f["severity"] == "damage"]
    assert finding["file"] == str(path) and finding["offset"] in (4096, 4096 + 64)
    assert (finding["shard"], finding["part"], finding["step"]) == ("a/b", "params", 5)
    assert {"tensor", "snapshots", "expected", "found", "what", "advice"} <= finding.keys()
    text = run("fsck", store, "--deep", code=4).stdout
    assert f"damage: {path} at offset" in text and "shard 'a/b' part 'params'" in text
    assert "1 findings of damage" in text
    path.unlink()
    assert f"damage: {path}: it is missing" in run("fsck", store, code=4).stdout


@pytest.mark.req("S4", "S13")
def test_damage_of_the_log_exits_4_everywhere(store: Path) -> None:
    frame = read_log(PosixFileSystem(), str(store)).records[2].frame
    flip(newest(store), frame.offset + 500)
    before = list(files(store))
    for name, words in {
        "info": [], "ls": [], "log": [], "snapshots": [], "recover": [], "fsck": [],
        "undo": ["--yes"], "rewind": ["early", "--yes"], "snapshot": ["x"], "branch": [],
        "switch": ["x"], "gc": ["--yes"], "retention": [],
        "cat": ["a/b", "params", "w"], "status": [], "diff": ["head", "early"],
    }.items():  # fmt: skip
        text = run(name, store, *words, code=4).output
        assert str(newest(store)) in text and str(frame.offset) in text, name
    changed = [name for name, content, _ in before if Path(name).read_bytes() != content]
    assert [Path(name).name for name in changed] in ([], ["LOCK"])


@pytest.mark.req("S13")
def test_fsck_beside_a_writer(store: Path) -> None:
    with Store.open(store, "r+", settings=SETTINGS) as opened:
        commit(opened, 6)
        assert run_json("fsck", store, "--deep")["clean"] is True
        assert run_json("info", store)["head"]["step"] == 6


@pytest.mark.req("S13", "S18")
def test_an_object_without_permission_is_a_finding(store: Path) -> None:
    path = slot_of(store, "a/b", "params")
    path.unlink()
    path.mkdir()  # unlike a mode, this stops a superuser too
    value = run_json("fsck", store, code=4)
    assert any("cannot be read" in f["what"] for f in value["findings"])


@pytest.mark.req("S13")
@pytest.mark.parametrize("name", ["wal", "objects"])
def test_a_missing_directory_is_damage(store: Path, name: str) -> None:
    shutil.rmtree(store / name)
    assert f"damage: {store / name}: it is missing" in run("fsck", store, code=4).stdout


@pytest.mark.req("S13")
def test_progress_is_drawn_at_a_terminal_only(store: Path) -> None:
    command = [*COMMAND, "fsck", str(store), "--deep"]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=theirs, env=environment, check=True, timeout=60
    )
    os.close(theirs)
    assert b"objects" in os.read(ours, 65536)
    os.close(ours)
    silent = process("fsck", store, "--deep")
    assert silent.stdout == done.stdout and silent.stderr == b""


# ---------------------------------------------------------------------- recover


@pytest.mark.req("S12")
def test_recover_corrects_once(store: Path) -> None:
    assert run_json("recover", store)["needed"] is False
    assert "nothing to do" in run("recover", store).stdout
    tear(store)
    before = list(files(store))
    assert run_json("info", store)["recovery"]["needed"] is True
    value = run_json("recover", store, "--dry-run", code=1)
    assert value["needed"] and not value["corrected"] and value["plan"]["torn"]
    assert "nothing was changed" in run("recover", store, "--dry-run", code=1).stdout
    assert list(files(store)) == before
    text = run("recover", store, code=1).stdout
    assert "interrupted append" in text and text.endswith("recovered\n")
    assert run_json("recover", store)["corrected"] is False
    assert head(store) == 5 and run_json("fsck", store, "--deep")["clean"]


@pytest.mark.req("S12")
def test_recover_after_an_assumed_power_cut(store: Path) -> None:
    value = run_json("recover", store, "--assume-power-cut", code=1)
    assert value["plan"]["power_cut"] and value["corrected"]
    assert run_json("recover", store, "--assume-power-cut")["needed"] is False
    assert head(store) == 5


@pytest.mark.req("S1", "S12")
def test_a_held_lock_exits_8_and_names_its_holder(store: Path) -> None:
    with Store.open(store, "r+", settings=SETTINGS):
        text = run("snapshot", store, "x", code=8).stderr
        assert str(os.getpid()) in text


# ---------------------------------------------------------------------- snapshots and the head


@pytest.mark.req("S5")
def test_snapshots_are_made_and_deleted(store: Path) -> None:
    assert run_json("snapshot", store)["name"] == "step_00000005"
    assert run_json("snapshot", store, "four", "--at", "step:4")["step"] == 4
    run("snapshot", store, "four", code=16)
    run("snapshot", store, "head", code=16)
    assert "--yes" in run("snapshot", store, "--delete", "four", code=16).stderr
    assert run_json("snapshot", store, "--delete", "four", "--yes")["deleted"] == "four"
    run("snapshot", store, "--delete", "four", "--yes", code=16)
    run("snapshot", store, "x", "--delete", "early", "--yes", code=16)
    assert [row["name"] for row in run_json("snapshots", store)] == ["early", "step_00000005"]


@pytest.mark.req("S6")
def test_rewind_and_undo(store: Path) -> None:
    text = run("rewind", store, "early", code=16).stderr
    assert "from step 5" in text and "to step 2" in text and "--yes" in text
    assert head(store) == 5
    value = run_json("rewind", store, "early", "--yes")
    assert (value["branch"], value["head"]["step"], value["left"]["step"]) == ("main", 2, 5)
    assert head(store) == 2
    run("snapshot", store, "--delete", "early", "--yes")
    assert "deleted snapshot early" in run("undo", store, code=16).stderr
    assert run_json("undo", store, "--yes")["op"] == "delete"
    assert "back to step 5" in run("undo", store, code=16).stderr
    assert run_json("undo", store, "--yes")["head"]["step"] == 5
    run("undo", store, "--yes", code=16)
    assert head(store) == 5


@pytest.mark.req("S6")
@pytest.mark.parametrize(("answer", "code", "step"), [(b"y\n", 0, 2), (b"n\n", 16, 5)])
def test_at_a_terminal_it_asks(store: Path, answer: bytes, code: int, step: int) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    command = [*COMMAND, "rewind", str(store), "early"]
    done = subprocess.run(command, stdin=theirs, capture_output=True, check=False, timeout=60)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == code, done.stderr
    assert b"move the head of main from step 5" in done.stderr
    assert head(store) == step
