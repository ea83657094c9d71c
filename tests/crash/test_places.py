"""File systems with less to give: full, out of inodes, limited, without direct I/O, 4 KiB sectors,
read-only.

Goal: a refusal is an error that says what failed and how much room there is, the head is what it
was, and the same store goes on when there is room again, to the same bits as a store that never was
short of it. Method: real mounts, small ones; where a kernel refuses only sometimes, the call is.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardstore import Store
from shardstore.errors import ShardStoreError, StorageError
from shardstore.fs.posix import PosixFileSystem
from shardstore.fsck import fsck
from tests.crash.real_mounts import ImageDisk, mounted, read_only
from tests.crash.real_process import TOP
from tests.crash.real_store import SETTINGS, Seen, commit, judge, look
from tests.support.permitted import mount_refusal

pytestmark = [pytest.mark.req("S18"), pytest.mark.timeout(300)]
STEADY_COMMITS = 500
_MIB = 1 << 20


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A mount as the test's parameter says: (kind, options)."""
    if reason := mount_refusal():
        pytest.skip(reason)
    kind, options = request.param
    with mounted(kind, tmp_path / "place", options) as point:
        yield point


def fill(place: Path, *, leave: int = 0) -> Path:
    """A file that takes all room, but for `leave` bytes."""
    path = place / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError as error:
            assert error.errno == errno.ENOSPC
        if leave:
            file.truncate(file.tell() - leave)
    return path


def reference_digest(directory: Path, steps: list[int]) -> str:
    """Of a store that had all the room it wanted."""
    with Store.open(directory / "reference", "a", settings=SETTINGS) as store:
        for step in steps:
            commit(store, step)
        return store.state_digest()


def refused(store: Store, step: int) -> StorageError:
    with pytest.raises(StorageError) as caught:
        commit(store, step)
    return caught.value


@pytest.mark.permission("tmpfs")
@pytest.mark.parametrize("place", [("tmpfs", "size=8m")], indirect=True)
def test_a_full_disk_is_told_with_its_room_and_the_run_goes_on(place: Path, tmp_path: Path) -> None:
    with Store.open(place / "run", "a", settings=SETTINGS) as store:
        commit(store, 1)
        for leave in (0, 4096, 300_000):  # nothing fits, the small parts fit, half of the big one
            filler = fill(place, leave=leave)
            error = refused(store, 2)
            assert error.errno == errno.ENOSPC
            assert str(place) in str(error), error
            found = re.search(r"(\d+) bytes needed, (\d+) free", str(error))
            assert found and int(found[2]) <= leave + 65536, error
            assert look(store) == Seen(1)
            filler.unlink()
        commit(store, 2)
        commit(store, 3)
        assert store.state_digest() == reference_digest(tmp_path, [1, 2, 3])
    judge(str(place / "run"), [Seen(3)], 4)


@pytest.mark.permission("tmpfs")
@pytest.mark.parametrize("place", [("tmpfs", "size=12m")], indirect=True)
def test_a_full_disk_does_not_stop_500_commits_of_the_steady_state(
    place: Path, tmp_path: Path
) -> None:
    """The log's room was written ahead, the slots exist: nothing is asked of the file system."""
    ahead = replace(SETTINGS, prewrite_bytes=4 * _MIB, commits_per_segment=1000)
    with Store.open(place / "run", "a", settings=ahead) as store:
        for step in (1, 2, 3, 4):
            commit(store, step)
        filler = fill(place)
        for step in range(5, 5 + STEADY_COMMITS):
            commit(store, step)
        assert look(store) == Seen(4 + STEADY_COMMITS)
        filler.unlink()
    judge(str(place / "run"), [Seen(4 + STEADY_COMMITS)], 1000)


@pytest.mark.permission("tmpfs")
@pytest.mark.parametrize("place", [("tmpfs", "size=64m,nr_inodes=40")], indirect=True)
def test_no_inode_is_left(place: Path, tmp_path: Path) -> None:
    with Store.open(place / "run", "a", settings=SETTINGS) as store:
        commit(store, 1)
        fillers = []
        with pytest.raises(OSError) as full:
            while True:
                fillers.append(place / f"filler{len(fillers)}")
                fillers[-1].touch()
        assert full.value.errno == errno.ENOSPC
        error = refused(store, 2)
        assert error.errno == errno.ENOSPC and str(place) in str(error)
        assert look(store) == Seen(1)
        for filler in fillers[:-1]:
            filler.unlink()
        commit(store, 2)
        assert store.state_digest() == reference_digest(tmp_path, [1, 2])
    judge(str(place / "run"), [Seen(2)], 3)


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with Store.open(root, "a", settings=SETTINGS) as store:
        commit(store, 1)
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.limited_child", str(root), str(_MIB)],
        cwd=TOP, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    judge(str(root), [Seen(4)], 5)


@pytest.mark.req("S30")
@pytest.mark.permission("tmpfs")
@pytest.mark.parametrize("place", [("ramfs", "")], indirect=True)
def test_a_file_system_that_refuses_direct_transfers(place: Path) -> None:
    file = PosixFileSystem().open(str(place / "probe"), "create", direct=True)
    assert not file.direct, "this kernel's ramfs takes direct I/O: another place has to be found"
    file.close()
    with Store.open(place / "run", "a", settings=SETTINGS) as store:
        commit(store, 1)
    judge(str(place / "run"), [Seen(1)], 2)


@pytest.mark.req("S30")
@pytest.mark.parametrize("nth", [1, 2, 5, 9])
def test_direct_transfers_that_are_refused_later(
    nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some network file systems do: opening works, a transfer does not."""
    write, read, left = os.pwrite, os.preadv, nth

    def refuses(descriptor: int) -> bool:
        nonlocal left
        if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            return False
        left -= 1
        return left <= 0

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        if refuses(descriptor):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return write(descriptor, data, offset)

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        if refuses(descriptor):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "preadv", preadv)
    root = tmp_path / "run"
    with Store.open(root, "a", settings=SETTINGS) as store:
        for step in (1, 2, 3):
            commit(store, step)
        store.snapshot("here")
    assert left <= 0, "nothing was refused"
    judge(str(root), [Seen(3, frozenset({"here"}))], 4)


@pytest.mark.req("S10", "S30")
@pytest.mark.permission("ext4")
def test_a_disk_with_sectors_of_4096_bytes(tmp_path: Path) -> None:
    if reason := mount_refusal("ext4"):
        pytest.skip(reason)
    with ImageDisk(tmp_path, sector_bytes=4096) as disk:
        device = os.stat(disk.point).st_dev
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue")
        assert (block / "logical_block_size").read_text().strip() == "4096"
        probe = PosixFileSystem().open(str(disk.point / "probe"), "create", direct=True)
        probe.pwrite(0, memoryview(mmap.mmap(-1, 4096)))  # aligned, as the store's buffers are
        direct = probe.direct
        probe.close()
        assert direct
        root = disk.point / "run"
        with Store.open(root, "a", settings=SETTINGS) as store:
            for step in range(1, 9):
                commit(store, step)
            with store.load("a", "optim") as loaded:
                assert (loaded.numpy()["w"] == 81).all()
        judge(str(root), [Seen(8)], 9)


@pytest.mark.req("S8", "S13")
@pytest.mark.permission("tmpfs")
def test_a_read_only_mount_is_read_pinned_checked_and_never_written(tmp_path: Path) -> None:
    if reason := mount_refusal():
        pytest.skip(reason)
    origin = tmp_path / "origin"
    origin.mkdir()
    with Store.open(origin / "run", "a", settings=SETTINGS) as store:
        commit(store, 1)
        store.snapshot("one")
    before = _tree(origin)
    with read_only(origin, tmp_path / "view") as view:
        root = view / "run"
        with Store.open(root, settings=SETTINGS) as store:
            assert look(store) == Seen(1, frozenset({"one"}))
            with store.pin("one") as pinned:
                assert pinned.pinned
                with pinned.load("a", "params") as loaded:
                    assert np.all(loaded.numpy()["w"] == 10)
        assert fsck(PosixFileSystem(), str(root), deep=True).clean
        with pytest.raises(StorageError) as caught:
            Store.open(root, "r+", settings=SETTINGS)
        assert caught.value.errno == errno.EROFS and str(root) in str(caught.value)
        with pytest.raises(ShardStoreError):
            Store.open(view / "new", "a", settings=SETTINGS)
    assert _tree(origin) == before
    judge(str(origin / "run"), [Seen(1, frozenset({"one"}))], 2)


def _tree(top: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mode, path.read_bytes())
        for path in sorted(top.rglob("*"))
        if stat.S_ISREG(path.stat().st_mode)
    }
