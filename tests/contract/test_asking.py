"""Questions that change nothing: who holds a lock, and whether a directory lives in memory.

The second half of the contract of `shardstore.fs.protocol`, for every implementation.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shardstore.fs import posix_asks
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.portable import PortableFileSystem
from shardstore.fs.posix import PosixFileSystem
from shardstore.fs.protocol import FileSystem, LockHeld

MAKERS: dict[str, Callable[[], FileSystem]] = {
    "memory": MemoryFileSystem,
    "faulty": lambda: FaultyFileSystem(MemoryFileSystem()),
    "posix": PosixFileSystem,
    "portable": PortableFileSystem,
}


@pytest.fixture(params=MAKERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """A file system and an empty directory of it."""
    fs = MAKERS[request.param]()
    if isinstance(fs, PortableFileSystem):
        return fs, str(tmp_path)
    fs.make_directory("root")
    return fs, "root"


@pytest.mark.req("S30")
def test_who_holds_a_lock_can_be_asked_without_taking_it(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    path = f"{root}/LOCK"
    assert fs.lock_holder(path) is None and fs.list_directory(root) == []
    lock = fs.lock(path, "pid 12 on här")
    assert fs.lock_holder(path) == "pid 12 on här" == fs.lock_holder(path)
    with pytest.raises(LockHeld):
        fs.lock(path, "asking did not free it")
    lock.release()
    assert fs.lock_holder(path) is None
    second = fs.lock(path, "two")  # asking did not take it
    assert fs.lock_holder(path) == "two"
    second.release()


@pytest.mark.req("S30")
def test_a_lock_that_may_only_be_read_can_be_asked_about(tmp_path: Path) -> None:
    for fs in (PosixFileSystem(), PortableFileSystem()):
        path = tmp_path / f"LOCK-{type(fs).__name__}"
        lock = fs.lock(str(path), "me")
        path.chmod(0o444)
        before = path.stat().st_mtime_ns
        assert fs.lock_holder(str(path)) == "me" and path.stat().st_mtime_ns == before
        lock.release()


@pytest.mark.req("S30")
def test_asking_about_what_is_not_there(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    assert fs.in_memory(root) in (False, True)
    assert fs.doubts(root) is None
    with pytest.raises(FileNotFoundError):
        fs.in_memory(f"{root}/x")


@pytest.mark.req("S30")
def test_the_table_of_mounts_names_what_lives_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "23 22 0:5 / /dev/shm rw - tmpfs tmpfs rw\n"
        "24 22 0:6 / /x\\040- rw master:2 - ramfs - rw\n"
    )
    monkeypatch.setattr(posix_asks, "_MOUNTS_FILE", str(table))
    devices = {0x801: False, 5: True, 6: True, 7: False}
    assert {device: posix_asks.lives_in_memory(device) for device in devices} == devices
    monkeypatch.setattr(posix_asks, "_MOUNTS_FILE", str(tmp_path / "nowhere"))
    assert posix_asks.lives_in_memory(5) is False


@pytest.mark.req("S30")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("ext4", None),
        ("overlay", None),
        ("tmpfs", None),
        ("nfs4", "network"),
        ("cifs", "network"),
        ("9p", "Windows drives"),
        ("drvfs", "Windows drives"),
        ("virtiofs", "another system's directory"),
        ("fuse.sshfs", "a program serves it"),
        ("fuseblk", "a program serves it"),
    ],
)
def test_what_speaks_against_a_file_system_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, said: str | None
) -> None:
    device = tmp_path.stat().st_dev
    table = tmp_path / "mountinfo"
    place = f"{os.major(device)}:{os.minor(device)}"
    table.write_text(f"22 1 {place} / / rw shared:1 - {kind} C:\\134 rw\n")
    monkeypatch.setattr(posix_asks, "_MOUNTS_FILE", str(table))
    found = PosixFileSystem().doubts(str(tmp_path))
    assert (found is None) is (said is None)
    if said is not None:
        assert found is not None and said in found and kind in found
    assert PortableFileSystem().doubts(str(tmp_path)) is None
