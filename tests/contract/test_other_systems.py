"""Systems that are not Linux: which implementation they get, and that a store works there.

Method: no such system is at hand, so one is played: a process without Linux's modules and calls,
and Windows' way of locking bytes made of the kernel's own. What this cannot show is how a foreign
system's file system behaves.
"""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardstore.fs import portable_locks, system
from shardstore.fs.portable import PortableFileSystem
from shardstore.fs.posix import PosixFileSystem
from shardstore.fs.protocol import LockHeld

pytestmark = pytest.mark.req("S30")
ROOT = Path(__file__).resolve().parents[2]


class LockedBytes:
    """Module msvcrt, as far as locks go: at the file's position, and of the open file."""

    LK_UNLCK, LK_NBLCK = 0, 2

    def __init__(self) -> None:
        self.places: set[int] = set()

    def locking(self, descriptor: int, how: int, count: int) -> None:
        place = os.lseek(descriptor, 0, os.SEEK_CUR)
        self.places.add(place)
        assert count == 1
        kind = fcntl.LOCK_UN if how == self.LK_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.flock(descriptor, kind)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None


def test_locked_bytes_are_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = LockedBytes()
    monkeypatch.setattr(portable_locks, "_fcntl", None)
    monkeypatch.setattr(portable_locks, "_msvcrt", windows)
    fs, path = PortableFileSystem(), str(tmp_path / "LOCK")
    assert fs.lock_holder(path) is None
    lock = fs.lock(path, "one")
    with pytest.raises(LockHeld, match="one"):
        fs.lock(path, "two")
    assert fs.lock_holder(path) == "one"
    lock.release()
    lock.release()
    assert fs.lock_holder(path) is None  # asking took it, and gave it back
    second = fs.lock(path, "two")
    assert fs.lock_holder(path) == "two"
    del second
    fs.lock(path, "three").release()
    assert windows.places == {portable_locks.LOCKED_BYTE}, "nothing that somebody reads is locked"


def test_a_lock_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    for fs in (PortableFileSystem(), PosixFileSystem()):
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", none_left)
            patched.setattr(fcntl, "fcntl", none_left)
            with pytest.raises(OSError, match="LOCK") as refused:
                fs.lock(str(tmp_path / "LOCK"), "me")
            assert refused.value.errno == errno.ENOLCK
        fs.lock(str(tmp_path / "LOCK"), "me").release()


def test_linux_gets_posix_and_others_what_is_portable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(system.local_file_system()) is PosixFileSystem
    for other in ("darwin", "win32", "freebsd14"):
        monkeypatch.setattr(system.sys, "platform", other)
        assert type(system.local_file_system()) is PortableFileSystem


def test_memory_that_nobody_tells_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert system.memory_bytes() > 1 << 20
    monkeypatch.delattr(os, "sysconf")
    assert system.memory_bytes() == 8 << 30


STRIPPED = """
import fcntl, os, sys
import json, logging, random, shutil, socket, tempfile, threading  # as they are here
import click, lmdb, numpy, rich.console, xxhash, zstandard

from tests.contract.test_other_systems import LockedBytes

sys.modules["msvcrt"] = LockedBytes()
for name in [name for name in sys.modules if name.startswith("shardstore")]:
    del sys.modules[name]
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
for name in ("preadv", "pwritev", "pread", "pwrite", "readv", "writev", "fdatasync", "uname",
             "sysconf", "register_at_fork", "fork", "O_DIRECT", "O_DIRECTORY", "O_CLOEXEC",
             "O_DSYNC", "O_SYNC", "sched_getaffinity", "sendfile", "posix_fadvise", "getuid",
             "posix_fallocate", "copy_file_range", "sync", "mkfifo", "geteuid", "kill", "link"):
    if hasattr(os, name):
        delattr(os, name)
sys.platform = "win32"

import shardstore
from shardstore import Settings, Store
from shardstore.cli.main import root as command
from shardstore.errors import LockedError

path = sys.argv[1]
settings = Settings(prewrite_bytes=16384, host_budget_bytes=1 << 24, commits_per_segment=4)
with Store.open(path, "a", settings=settings) as store:
    for step in range(1, 8):
        with store.begin(step) as txn:
            txn.stage("a", "p", {"w": numpy.full(3000, step, "f4")})
            txn.commit_async().result()
    store.snapshot("seven")
    try:
        Store.open(path, "r+")
        raise SystemExit("two writers")
    except LockedError as refused:
        assert f"process {os.getpid()} on " in str(refused), refused
    with Store.open(path) as reader, reader.pin() as view:
        assert not view.pinned
        assert view.load("a", "p").numpy()["w"][0] == 7
    assert command.main(["status", path], standalone_mode=False) == 0
    store.gc()
with Store.open(path, "r+") as store:
    assert store.head.step == 7 and store.recovered.head_step == 7
    store.rewind("seven")
for words in (["fsck", "--deep"], ["log"], ["ls"], ["recover", "--dry-run"], ["diff"], ["info"]):
    arguments = [words[0], path, *words[1:], *(["seven", "head"] if words == ["diff"] else [])]
    assert command.main(arguments, standalone_mode=False) == 0, words
assert "shardstore.fs.posix" not in sys.modules
assert "shardstore.fs.portable" in sys.modules
"""


@pytest.mark.timeout(120)
def test_a_store_works_on_a_system_without_linuxs_calls(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STRIPPED, str(tmp_path / "run")],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
