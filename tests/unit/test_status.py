"""Status of stores that are well, at work, interrupted and damaged: right, and without a change.

Method: the small store of the fsck tests on the in-memory file system. What counts as damage is
`fsck`'s to say: for every damage a look finds what a quick check finds in the newest segment or in
an object, and ends in a status or an error of the store.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from shardstore.context import Settings
from shardstore.errors import CorruptionError, NotAStoreError, StorageError
from shardstore.format.frames import BLOCK
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import fsck
from shardstore.fsck.findings import damage
from shardstore.fsck.wanted import Wants, wanted_objects
from shardstore.status import Status, read_status
from shardstore.wal.reader import read_bytes, read_log
from tests.support.stores import ROOT, commit, object_files, open_store, tree
from tests.unit.fsck_support import WAL, built, change, newest, object_path

pytestmark = pytest.mark.req("S31")


@pytest.fixture
def fs() -> MemoryFileSystem:
    return built()


def look(fs: FileSystem) -> Status:
    return read_status(fs, ROOT)


def test_a_healthy_store(fs: MemoryFileSystem) -> None:
    before, done = tree(fs), len(fs.log)
    status = look(fs)
    assert status.healthy and not status.unfinished and status.writer is None
    assert status.acknowledged == status.durable
    assert status.durable is not None and status.durable.step == 5
    assert status.durable.age_seconds > 0
    assert status.snapshots == ("early", "late") and status.branch == "main"
    assert status.uuid is not None and not status.in_memory
    assert status.wear is not None and status.wear.bytes_per_commit == 3 * 2 * BLOCK + BLOCK
    assert status.next_command()[0] == f"shardstore log {ROOT} -n 5"
    assert tree(fs) == before and len(fs.log) == done


def test_an_empty_store() -> None:
    fs = MemoryFileSystem()
    open_store(fs).close()
    status = look(fs)
    assert status.healthy and status.acknowledged is None and status.durable is None
    assert status.wear is None and status.space is not None
    assert status.space.commits_left is None and status.space.growth_bytes == 0
    assert "nothing was committed" in status.next_command()[1]


def test_a_live_writer_is_named_and_not_disturbed(fs: MemoryFileSystem) -> None:
    with open_store(fs) as store:
        status = look(fs)
        assert status.writer is not None
        assert (status.writer["pid"], status.writer["host"]) == fs.process()
        assert status.writer["since"].endswith("Z")
        assert "at work" in status.next_command()[1]
        commit(store, 6)
        after = look(fs)
        assert after.healthy and after.acknowledged is not None and after.acknowledged.step == 6
    assert look(fs).writer is None


def test_a_writer_that_said_nothing_yet_is_alive_all_the_same(fs: MemoryFileSystem) -> None:
    lock = fs.lock(f"{ROOT}/LOCK", "{")
    status = look(fs)
    assert status.writer == {"pid": None, "host": None, "since": None}
    lock.release()


def tear(fs: MemoryFileSystem) -> None:
    view = read_log(fs, ROOT)
    frame = view.segment.records[-1].frame
    content = read_bytes(fs, newest(fs))[frame.offset : frame.end]
    change(fs, newest(fs), view.segment.end, content[:704] + bytes(BLOCK - 704))


def test_what_a_crash_left_is_unfinished_and_no_damage(fs: MemoryFileSystem) -> None:
    tear(fs)
    status = look(fs)
    assert status.healthy and status.unfinished
    assert status.plan is not None and status.plan.torn
    assert status.next_command()[0] == f"shardstore recover {ROOT} --dry-run"
    with open_store(fs, mode="r+"):
        assert not look(fs).unfinished


def test_what_a_power_cut_would_take_is_told_apart(fs: MemoryFileSystem) -> None:
    """A commit whose frame does not say that all before it is synced."""
    settings = Settings(prewrite_bytes=32 * 1024, durability="deferred")
    with open_store(fs, settings=settings) as store:
        commit(store, 6)
        status = look(fs)
        assert status.acknowledged is not None and status.acknowledged.step == 6
        assert status.durable is not None and status.durable.step == 5 and status.healthy


def test_space_is_counted_in_commits() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        first = look(fs).space
        assert first is not None
        # Nothing was freed yet: the next commit needs new files for all parts.
        assert first.growth_bytes == first.commit_bytes == 3 * 2 * BLOCK
        assert first.commits_left == first.free_bytes // (first.growth_bytes + BLOCK)
        for step in (2, 3, 4):
            commit(store, step)
        steady = look(fs).space
        assert steady is not None and steady.growth_bytes == 0
        assert steady.reusable_bytes >= steady.commit_bytes
        assert steady.commits_left == steady.free_bytes // BLOCK
        assert steady.needed_bytes + steady.reusable_bytes == len(object_files(fs)) * 2 * BLOCK


def test_little_space_is_what_to_look_at_first() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
    fs.capacity_bytes -= fs.free_bytes(ROOT) - 5 * 3 * 2 * BLOCK
    command, why = look(fs).next_command()
    assert command == f"shardstore snapshots {ROOT}" and "space for 4 commits" in why


def test_memory_is_said(fs: MemoryFileSystem) -> None:
    fs.volatile = True
    assert look(fs).in_memory


# ---------------------------------------------------------------------- damage


def cut(fs: MemoryFileSystem, path: str, size: int) -> None:
    file = fs.open(path, "write")
    file.truncate(size)
    file.close()


def swap(fs: MemoryFileSystem) -> None:
    one, other = (object_path(fs, part) for part in (("a", "params"), ("b", "params")))
    contents = {one: read_bytes(fs, other), other: read_bytes(fs, one)}
    for path, content in contents.items():
        change(fs, path, 0, content)


def damaged_header(fs: MemoryFileSystem) -> None:
    change(fs, object_path(fs, ("a", "params")), 300)


def damaged_snapshot(fs: MemoryFileSystem) -> None:
    info = read_log(fs, ROOT).state.snapshots["early"]
    change(fs, f"{ROOT}/objects/{info.reference.slot:06x}.raw", BLOCK + 100)


DAMAGES: dict[str, Callable[[MemoryFileSystem], None]] = {
    "STORE flipped": lambda fs: change(fs, f"{ROOT}/STORE", 30),
    "STORE empty": lambda fs: cut(fs, f"{ROOT}/STORE", 0),
    "STORE foreign": lambda fs: change(fs, f"{ROOT}/STORE", 0, b"nonsense"),
    "segment header": lambda fs: change(fs, newest(fs), 200),
    "opening record": lambda fs: change(fs, newest(fs), BLOCK + 500),
    "record in the middle": lambda fs: change(
        fs, newest(fs), read_log(fs, ROOT).records[2].frame.offset + 300
    ),
    "unwritten space": lambda fs: change(fs, newest(fs), read_log(fs, ROOT).segment.end + 9),
    "segment cut": lambda fs: cut(fs, newest(fs), BLOCK),
    "segment empty": lambda fs: cut(fs, newest(fs), 0),
    "no segment": lambda fs: [fs.unlink(f"{WAL}/{n}") for n in fs.list_directory(WAL)] and None,
    "object header": damaged_header,
    "object cut": lambda fs: cut(fs, object_path(fs, ("a", "optim")), BLOCK),
    "object gone": lambda fs: fs.unlink(object_path(fs, ("b", "params"))),
    "objects swapped": swap,
    "snapshot manifest": damaged_snapshot,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_seen_and_nothing_is_changed(fs: MemoryFileSystem, name: str) -> None:
    DAMAGES[name](fs)
    assert not fsck(fs, ROOT).clean
    before, done = tree(fs), len(fs.log)
    status = look(fs)
    assert not status.healthy and all(finding.is_damage for finding in status.findings)
    assert status.next_command()[0] == f"shardstore fsck {ROOT} --deep"
    assert tree(fs) == before and len(fs.log) == done


def test_any_flipped_byte_ends_in_a_status(fs: MemoryFileSystem) -> None:
    """A sample over all files; status is never healthier than a check of the same things."""
    draw = random.Random(1)
    segment = newest(fs)
    for path, content in sorted(tree(fs).items()):
        for at in draw.sample(range(len(content)), min(len(content), 12)):
            change(fs, path, at)
            status, report = look(fs), fsck(fs, ROOT)
            looked_at = [f for f in report.findings if f.is_damage and not f.file.startswith(WAL)]
            looked_at += [f for f in report.findings if f.is_damage and f.file == segment]
            assert status.healthy == (not looked_at), (path, at, looked_at)
            change(fs, path, at)


def test_without_a_directory_it_is_damage(fs: MemoryFileSystem) -> None:
    for directory in ("objects", "wal"):
        broken = fs.clone()
        broken.rename(f"{ROOT}/{directory}", f"{ROOT}/moved")
        status = look(broken)
        missing = [finding.file for finding in status.findings if "missing" in finding.what]
        assert missing and all(path.startswith(f"{ROOT}/{directory}") for path in missing)


def test_what_is_no_store_is_refused(fs: MemoryFileSystem) -> None:
    fs.make_directory("empty")
    for path in ("empty", "nowhere", f"{ROOT}/STORE"):
        with pytest.raises(NotAStoreError):
            read_status(fs, path)


@pytest.mark.parametrize("op", ["list_directory", "stat", "free_bytes", "open_read", "pread",
                                "lock_holder", "in_memory"])  # fmt: skip
def test_a_disk_that_refuses_is_no_healthy_store(fs: MemoryFileSystem, op: str) -> None:
    """Each call in turn: an error of the store, or damage; never another exception."""
    counting = FaultyFileSystem(fs)
    look(counting)
    for number in range(1, counting.counts[op] + 1):
        faulty = FaultyFileSystem(fs)
        faulty.fail(op, nth=number, times=None)
        try:
            status = look(faulty)
        except (StorageError, CorruptionError):
            continue
        assert not status.healthy, number


def test_what_is_wrong_with_no_object_counts_too(
    fs: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wants(*place: Any) -> Wants:
        found = wanted_objects(*place)
        found.findings.append((None, damage("the counts are wrong", WAL)))
        return found

    monkeypatch.setattr("shardstore.status.wanted_objects", wants)
    (finding,) = look(fs).findings
    assert "counts" in finding.what


@pytest.mark.parametrize("damaged", [False, True])
def test_a_writer_at_work_is_no_damage(fs: MemoryFileSystem, damaged: bool) -> None:
    """It commits between the reading of the log and that of the objects, and so writes over what
    was the head; what a snapshot needs is judged all the same."""
    if damaged:
        damaged_snapshot(fs)
    moved = FaultyFileSystem(fs)
    with open_store(fs) as store:
        for step in (6, 7):  # no snapshot's: what the next commits free is written over
            commit(store, step)
        steps = iter(range(8, 100))

        def go_on(operation: Operation) -> None:
            if operation.op == "free_bytes":
                for _ in range(4):
                    commit(store, next(steps))

        moved.before = go_on
        status = look(moved)
        assert next(steps) == 12 and status.writer is not None
        assert status.healthy == (not damaged)
        assert all("early" in finding.snapshots for finding in status.findings)
