"""Goal: rules hit exactly the operations they name, and do what they say. Method: over memory,
whose crash images tell what reached the disk."""

from __future__ import annotations

import errno
import mmap

import pytest

from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem, Operation
from shardstore.fs.protocol import LockHeld

pytestmark = pytest.mark.req("S18")


@pytest.fixture
def memory() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_directory("/wal")
    file = fs.open("/wal/a", "create")
    file.pwrite(0, b"old")
    file.datasync()
    fs.sync_directory("/")
    fs.sync_directory("/wal")
    return fs


@pytest.fixture
def faulty(memory: MemoryFileSystem) -> FaultyFileSystem:
    return FaultyFileSystem(memory)


def get(fs: MemoryFileSystem, path: str = "/wal/a") -> bytes:
    file = fs.open(path, "read")
    buffer = bytearray(file.size())
    file.pread(0, buffer)
    return bytes(buffer)


def after_power_cuts(fs: MemoryFileSystem) -> set[bytes]:
    return {get(image) for image in fs.power_cuts()}


def test_the_nth_match_fails_before_it_takes_effect(
    memory: MemoryFileSystem, faulty: FaultyFileSystem
) -> None:
    rule = faulty.fail("pwrite", "*/a", nth=2, error=errno.ENOSPC)
    file, other = faulty.open("/wal/a", "write"), faulty.open("/b", "create")
    file.pwrite(0, b"1")
    other.pwrite(0, b"not counted")
    with pytest.raises(OSError) as failed:
        file.pwrite(0, b"2")
    assert (failed.value.errno, failed.value.filename) == (errno.ENOSPC, "/wal/a")
    file.pwrite(1, b"3")
    assert get(memory) == b"13d"
    assert (rule.matched, rule.hits) == (3, 1)


def test_times_and_clear(faulty: FaultyFileSystem) -> None:
    faulty.fail("stat", times=2)
    for _ in range(2):
        with pytest.raises(OSError):
            faulty.stat("/wal")
    faulty.stat("/wal")
    faulty.fail("*", times=None)
    for _ in range(3):
        with pytest.raises(OSError):
            faulty.list_directory("/wal")
    faulty.clear()
    assert faulty.list_directory("/wal") == ["a"]
    assert faulty.counts == {"stat": 3, "list_directory": 4}


def test_failing_after_the_effect(memory: MemoryFileSystem, faulty: FaultyFileSystem) -> None:
    faulty.fail("rename", "/wal/b", after=True)
    with pytest.raises(OSError) as failed:
        faulty.rename("/wal/a", "/wal/b")
    assert (failed.value.filename, failed.value.filename2) == ("/wal/a", "/wal/b")
    assert memory.list_directory("/wal") == ["b"]


def test_what_nobody_receives_is_given_back(
    memory: MemoryFileSystem, faulty: FaultyFileSystem
) -> None:
    faulty.fail("lock", after=True)
    faulty.fail("open_create", after=True)
    with pytest.raises(OSError):
        faulty.lock("/LOCK", "me")
    with pytest.raises(OSError):
        faulty.open("/b", "create")
    assert memory.list_directory("/") == ["LOCK", "b", "wal"]
    lock = faulty.lock("/LOCK", "me")
    with pytest.raises(LockHeld):
        memory.lock("/LOCK", "other")
    lock.release()


def test_open_modes_are_told_apart(faulty: FaultyFileSystem) -> None:
    faulty.fail("open_create", times=None)
    faulty.open("/wal/a", "read").close()
    faulty.open("/b", "replace").close()
    with pytest.raises(OSError):
        faulty.open("/c", "create")


@pytest.mark.parametrize(("direct", "kept"), [(False, 5000), (True, 4096)])
def test_a_short_write(memory: MemoryFileSystem, direct: bool, kept: int) -> None:
    faulty = FaultyFileSystem(memory)
    faulty.shorten("*", kept_bytes=5000)
    file = faulty.open("/b", "create", direct=direct)
    buffer = mmap.mmap(-1, 8192)
    buffer.write(b"x" * 8192)
    with pytest.raises(OSError) as full:
        file.pwrite(0, memoryview(buffer))
    assert full.value.errno == errno.ENOSPC
    assert get(memory, "/b") == b"x" * kept
    file.pwrite(0, memoryview(buffer))
    assert get(memory, "/b") == b"x" * 8192


def test_a_failed_datasync_loses_what_was_unsynced(
    memory: MemoryFileSystem, faulty: FaultyFileSystem
) -> None:
    faulty.fail_datasync("*/a")
    file = faulty.open("/wal/a", "write")
    file.pwrite(0, b"new")
    with pytest.raises(OSError) as failed:
        file.datasync()
    assert failed.value.errno == errno.EIO
    file.datasync()
    assert get(memory) == b"new"
    assert after_power_cuts(memory) == {b"old"}


def test_a_datasync_that_fails_otherwise_loses_nothing(
    memory: MemoryFileSystem, faulty: FaultyFileSystem
) -> None:
    faulty.fail("datasync")
    file = faulty.open("/wal/a", "write")
    file.pwrite(0, b"new")
    with pytest.raises(OSError):
        file.datasync()
    assert after_power_cuts(memory) == {b"old", b"new"}


@pytest.mark.parametrize("op", ["datasync", "sync_directory"])
def test_a_skipped_sync_is_a_forgotten_one(
    memory: MemoryFileSystem, faulty: FaultyFileSystem, op: str
) -> None:
    rule = faulty.skip(op)
    file = faulty.open("/wal/a", "write")
    file.pwrite(0, b"new")
    file.datasync()
    faulty.open("/wal/b", "create")
    faulty.sync_directory("/wal")
    seen = {(get(image), tuple(image.list_directory("/wal"))) for image in memory.power_cuts()}
    lost_data, lost_name = op == "datasync", op == "sync_directory"
    assert ((b"old", ("a", "b")) in seen) == lost_data
    assert ((b"new", ("a",)) in seen) == lost_name
    assert rule.hits == 1


def test_only_what_has_no_result_can_be_skipped(faulty: FaultyFileSystem) -> None:
    for op in ("open_read", "stat", "lock", "*"):
        with pytest.raises(ValueError, match="cannot skip"):
            faulty.skip(op)
    with pytest.raises(ValueError, match="nth counts from 1, found 0"):
        faulty.fail("pwrite", nth=0)


def test_hooks_see_every_operation_and_after_only_what_returned(memory: MemoryFileSystem) -> None:
    before: list[Operation] = []
    after: list[Operation] = []
    faulty = FaultyFileSystem(memory, before=before.append, after=after.append)
    faulty.fail("unlink")
    file = faulty.open("/wal/a", "write")
    file.pwrite(1, b"xy")
    file.close()
    with pytest.raises(OSError):
        faulty.unlink("/wal/a")
    names = ["open_write", "pwrite", "close", "unlink"]
    assert [operation.op for operation in before] == names
    assert [operation.op for operation in after] == names[:-1]
    assert before[1] == Operation("pwrite", "/wal/a", (1, 2))
