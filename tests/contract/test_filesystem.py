"""Goal: every file system keeps `shardstore.fs.protocol`. Method: one suite, run over each of them.

Where the suite looks behind the interface (other processes, forks), it does so for the real ones.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import pytest

from shardstore.fs import portable, posix
from shardstore.fs.calls import is_loss
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.portable import PortableFileSystem
from shardstore.fs.posix import PosixFileSystem
from shardstore.fs.protocol import FileSystem, LockHeld

pytestmark = pytest.mark.req("S30")
BLOCK = 4096
REAL: dict[str, type[PortableFileSystem]] = {
    "posix": PosixFileSystem,
    "portable": PortableFileSystem,
}


@dataclass
class Place:
    fs: FileSystem
    root: str

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def put(self, name: str, data: bytes) -> str:
        file = self.fs.open(self.path(name), "replace")
        file.pwrite(0, data)
        file.close()
        return self.path(name)

    def get(self, name: str) -> bytes:
        file = self.fs.open(self.path(name), "read")
        buffer = bytearray(file.size())
        assert file.pread(0, buffer) == len(buffer)
        file.close()
        return bytes(buffer)


@pytest.fixture(params=[*REAL, "memory", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param in REAL:
        return Place(REAL[request.param](), str(tmp_path))
    memory = MemoryFileSystem()
    memory.make_directory("/root")
    return Place(memory if request.param == "memory" else FaultyFileSystem(memory), "/root")


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(REAL[request.param](), str(tmp_path))


def aligned(data: bytes) -> memoryview:
    """A page-aligned, writable buffer with these bytes."""
    view = memoryview(mmap.mmap(-1, len(data)))
    view[:] = data
    return view


def pattern(length: int, start: int = 1) -> bytes:
    return bytes((start + at * 7) % 251 for at in range(length))


# Files


def test_written_bytes_are_read_back_at_every_offset(place: Place) -> None:
    data = pattern(3 * BLOCK + 100)
    place.put("a", data)
    file = place.fs.open(place.path("a"), "read")
    assert file.path == place.path("a")
    for offset, length in ((0, 10), (511, 2), (4095, 2), (1, 3 * BLOCK), (0, len(data))):
        buffer = bytearray(length)
        assert file.pread(offset, buffer) == length
        assert bytes(buffer) == data[offset : offset + length]
    file.close()


def test_a_read_is_short_at_the_end_only(place: Place) -> None:
    place.put("a", pattern(100))
    file = place.fs.open(place.path("a"), "read")
    buffer = bytearray(b"\xff" * 50)
    assert file.pread(80, buffer) == 20
    assert bytes(buffer) == pattern(100)[80:] + b"\xff" * 30
    assert file.pread(100, buffer) == 0
    assert file.pread(5000, buffer) == 0
    assert file.pread(0, bytearray()) == 0
    file.close()


def test_a_read_fills_the_part_of_the_buffer_it_was_given(place: Place) -> None:
    place.put("a", pattern(100))
    buffer = bytearray(30)
    file = place.fs.open(place.path("a"), "read")
    assert file.pread(7, memoryview(buffer)[10:20]) == 10
    file.close()
    assert bytes(buffer) == bytes(10) + pattern(100)[7:17] + bytes(10)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_written(
    place: Place, kind: type[bytes] | type[bytearray] | type[memoryview]
) -> None:
    place.put("a", bytes(6))
    file = place.fs.open(place.path("a"), "write")
    file.pwrite(2, kind(b"xy"))
    file.pwrite(6, kind(b""))
    file.close()
    assert place.get("a") == b"\0\0xy\0\0"


def test_writing_beyond_the_end_grows_with_zeros(place: Place) -> None:
    place.put("a", b"ab")
    file = place.fs.open(place.path("a"), "write")
    file.pwrite(5000, b"z")
    assert file.size() == 5001
    file.close()
    assert place.get("a") == b"ab" + bytes(4998) + b"z"


def test_truncate_cuts_and_grows_with_zeros(place: Place) -> None:
    path = place.put("a", pattern(5000))
    file = place.fs.open(path, "write")
    file.truncate(4100)
    assert file.size() == 4100
    file.truncate(4200)
    file.close()
    assert place.get("a") == pattern(5000)[:4100] + bytes(100)
    assert place.fs.stat(path).size == 4200


def test_datasync_changes_nothing_that_is_seen(place: Place) -> None:
    file = place.fs.open(place.path("a"), "create")
    file.pwrite(0, b"abc")
    file.datasync()
    file.close()
    reader = place.fs.open(place.path("a"), "read")
    reader.datasync()
    reader.close()
    assert place.get("a") == b"abc"


def test_open_modes(place: Place) -> None:
    path = place.path("a")
    for mode in ("read", "write"):
        with pytest.raises(FileNotFoundError) as missing:
            place.fs.open(path, mode)
        assert missing.value.filename == path
    place.fs.open(path, "create").close()
    with pytest.raises(FileExistsError) as exists:
        place.fs.open(path, "create")
    assert exists.value.filename == path
    place.put("a", b"long text")
    place.fs.open(path, "write").close()
    assert place.get("a") == b"long text"
    place.fs.open(path, "replace").close()
    assert place.get("a") == b""
    place.fs.open(place.path("b"), "replace").close()
    assert place.fs.list_directory(place.root) == ["a", "b"]


def test_opening_a_directory_is_refused(place: Place) -> None:
    for mode in ("read", "write", "replace"):
        with pytest.raises(IsADirectoryError):
            place.fs.open(place.root, mode)


def test_what_is_no_regular_file_is_refused_at_once(real: Place) -> None:
    """A pipe that nobody writes to would keep whoever opens it waiting for ever."""
    pipe, link, loop = real.path("pipe"), real.path("link"), real.path("loop")
    os.mkfifo(pipe)
    os.symlink("pipe", link)
    os.symlink("loop", loop)
    for path in (pipe, link, "/dev/null"):
        for mode in ("read", "write"):
            with pytest.raises(OSError, match="not a regular file") as refused:
                real.fs.open(path, mode)
            assert is_loss(refused.value) and refused.value.filename == path
        for ask in (real.fs.open_pins, real.fs.lock_holder, lambda p: real.fs.lock(p, "me")):
            with pytest.raises(OSError, match="not a regular file"):
                ask(path)
    with pytest.raises(OSError) as endless:
        real.fs.open(loop, "read")
    assert endless.value.errno == errno.ELOOP and is_loss(endless.value)
    data = real.put("data", b"abc")
    os.symlink(data, real.path("other"))
    assert real.get("other") == b"abc"


def test_only_what_the_disk_lost_counts_as_loss() -> None:
    lost = ("EIO", "EUCLEAN", "EBADMSG", "ENOENT", "ENOTDIR", "EISDIR", "ELOOP", "ENXIO")
    for name, code in vars(errno).items():
        if name.startswith("E") and os.strerror(code) != os.strerror(0):
            assert is_loss(OSError(code, "")) == (name in lost), name


def test_opening_below_what_is_missing_or_no_directory_is_refused(place: Place) -> None:
    place.put("a", b"x")
    for mode in ("read", "create"):
        with pytest.raises(FileNotFoundError):
            place.fs.open(place.path("d/x"), mode)
        with pytest.raises(NotADirectoryError):
            place.fs.open(place.path("a/x"), mode)


def test_a_file_opened_for_reading_refuses_changes(place: Place) -> None:
    path = place.put("a", b"abc")
    file = place.fs.open(path, "read")
    with pytest.raises(OSError) as write:
        file.pwrite(0, b"x")
    assert write.value.errno == errno.EBADF
    assert write.value.filename == path
    with pytest.raises(OSError) as cut:
        file.truncate(0)
    assert cut.value.errno in (errno.EBADF, errno.EINVAL)
    assert cut.value.filename == path
    file.close()
    assert place.get("a") == b"abc"


def test_a_closed_file_refuses_everything_and_closes_again(place: Place) -> None:
    file = place.fs.open(place.put("a", b"abc"), "write")
    file.close()
    file.close()
    for call in (
        lambda: file.pread(0, bytearray(1)),
        lambda: file.pwrite(0, b"x"),
        file.size,
        lambda: file.truncate(0),
        file.datasync,
    ):
        with pytest.raises(OSError) as closed:
            call()
        assert closed.value.errno == errno.EBADF
        assert closed.value.filename == place.path("a")


def test_negative_offsets_and_sizes_are_refused(place: Place) -> None:
    file = place.fs.open(place.put("a", b"abc"), "write")
    for call in (
        lambda: file.pread(-1, bytearray(1)),
        lambda: file.pwrite(-1, b"x"),
        lambda: file.truncate(-1),
    ):
        with pytest.raises(OSError) as refused:
            call()
        assert refused.value.errno == errno.EINVAL
    file.close()


def test_an_unlinked_file_lives_until_it_is_closed(place: Place) -> None:
    path = place.put("a", b"abc")
    file = place.fs.open(path, "write")
    place.fs.unlink(path)
    place.put("a", b"other")
    file.pwrite(3, b"def")
    buffer = bytearray(6)
    assert file.pread(0, buffer) == 6
    assert buffer == b"abcdef"
    file.close()
    assert place.get("a") == b"other"


# Direct transfers


def test_direct_files_take_aligned_transfers(place: Place) -> None:
    data = pattern(4 * BLOCK)
    file = place.fs.open(place.path("a"), "create", direct=True)
    file.pwrite(0, aligned(data[: 2 * BLOCK]))
    file.pwrite(2 * BLOCK, aligned(data[2 * BLOCK :]).toreadonly())
    file.datasync()
    buffer = aligned(bytes(2 * BLOCK))
    assert file.pread(BLOCK, buffer) == 2 * BLOCK
    assert bytes(buffer) == data[BLOCK : 3 * BLOCK]
    file.close()
    assert place.get("a") == data


def test_a_direct_read_stops_at_an_unaligned_end(place: Place) -> None:
    place.put("a", pattern(BLOCK + 100))
    file = place.fs.open(place.path("a"), "read", direct=True)
    was_direct = file.direct
    buffer = aligned(b"\xff" * 3 * BLOCK)
    assert file.pread(0, buffer) == BLOCK + 100
    assert bytes(buffer[: BLOCK + 100]) == pattern(BLOCK + 100)
    assert file.direct == was_direct
    file.close()


def test_an_unaligned_direct_transfer_is_refused_or_goes_through_the_cache(place: Place) -> None:
    file = place.fs.open(place.path("a"), "create", direct=True)
    try:
        file.pwrite(0, aligned(pattern(BLOCK))[:100])
    except OSError as refused:
        assert refused.errno == errno.EINVAL
        assert not isinstance(place.fs, PortableFileSystem)
        assert place.get("a") == b""
    else:
        assert place.get("a") == pattern(100)
    file.close()


def test_direct_is_off_unless_asked_for(place: Place) -> None:
    assert place.fs.open(place.path("a"), "create").direct is False


# Names


def test_directories_are_made_and_listed_sorted(place: Place) -> None:
    place.fs.make_directory(place.path("d"))
    for name in ("d/b", "d/a", "d/A", "d/10"):
        place.put(name, b"")
    assert place.fs.list_directory(place.path("d")) == ["10", "A", "a", "b"]
    assert place.fs.list_directory(place.root) == ["d"]
    with pytest.raises(FileExistsError):
        place.fs.make_directory(place.path("d"))
    with pytest.raises(FileExistsError):
        place.fs.make_directory(place.path("d/a"))
    with pytest.raises(FileNotFoundError):
        place.fs.make_directory(place.path("x/y"))
    with pytest.raises(FileNotFoundError):
        place.fs.list_directory(place.path("x"))
    with pytest.raises(NotADirectoryError):
        place.fs.list_directory(place.path("d/a"))


def test_stat(place: Place) -> None:
    path = place.put("a", b"12345")
    place.put("b", b"")
    first, second = place.fs.stat(path), place.fs.stat(place.path("b"))
    assert (first.size, first.is_directory) == (5, False)
    assert place.fs.stat(place.root).is_directory
    assert first.device == second.device
    assert first.inode != second.inode
    with pytest.raises(FileNotFoundError) as missing:
        place.fs.stat(place.path("x"))
    assert missing.value.filename == place.path("x")
    with pytest.raises(NotADirectoryError):
        place.fs.stat(place.path("a/x"))


def test_rename_keeps_the_file(place: Place) -> None:
    path = place.put("a", b"abc")
    inode = place.fs.stat(path).inode
    place.fs.make_directory(place.path("d"))
    place.fs.rename(path, place.path("d/b"))
    assert place.fs.list_directory(place.root) == ["d"]
    assert place.get("d/b") == b"abc"
    assert place.fs.stat(place.path("d/b")).inode == inode


def test_rename_of_a_directory(place: Place) -> None:
    place.fs.make_directory(place.path("d"))
    place.put("d/a", b"abc")
    place.fs.rename(place.path("d"), place.path("e"))
    assert place.get("e/a") == b"abc"
    with pytest.raises(FileNotFoundError):
        place.fs.stat(place.path("d"))


@pytest.mark.parametrize("target", ["b", "a", "d"])
def test_rename_never_replaces(place: Place, target: str) -> None:
    source = place.put("a", b"abc")
    place.put("b", b"other")
    place.fs.make_directory(place.path("d"))
    with pytest.raises(FileExistsError) as exists:
        place.fs.rename(source, place.path(target))
    assert exists.value.filename2 == place.path(target)
    assert place.get("a") == b"abc"
    assert place.get("b") == b"other"


def test_rename_of_what_is_missing(place: Place) -> None:
    place.put("b", b"other")
    for target in ("b", "c"):
        with pytest.raises(FileNotFoundError) as missing:
            place.fs.rename(place.path("x"), place.path(target))
        assert missing.value.filename == place.path("x")
    with pytest.raises(FileNotFoundError):
        place.fs.rename(place.path("b"), place.path("no/c"))
    assert place.get("b") == b"other"


def test_unlink(place: Place) -> None:
    path = place.put("a", b"abc")
    place.fs.unlink(path)
    assert place.fs.list_directory(place.root) == []
    with pytest.raises(FileNotFoundError) as missing:
        place.fs.unlink(path)
    assert missing.value.filename == path
    place.fs.make_directory(path)
    with pytest.raises(OSError):
        place.fs.unlink(path)


def test_sync_directory(place: Place) -> None:
    path = place.put("a", b"abc")
    place.fs.sync_directory(place.root)
    with pytest.raises(FileNotFoundError):
        place.fs.sync_directory(place.path("x"))
    with pytest.raises(NotADirectoryError):
        place.fs.sync_directory(path)


# Locks and the host


def test_a_lock_is_held_once_and_names_its_holder(place: Place) -> None:
    path = place.path("LOCK")
    lock = place.fs.lock(path, "pid 12 on här")
    with pytest.raises(LockHeld) as held:
        place.fs.lock(path, "second")
    assert held.value.holder == "pid 12 on här"
    assert place.get("LOCK") == "pid 12 on här".encode()
    lock.release()
    lock.release()
    second = place.fs.lock(path, "two")
    with pytest.raises(LockHeld) as held:
        place.fs.lock(path, "third")
    assert held.value.holder == "two"
    lock.release()  # of a lock that was released long ago: the holder keeps it
    with pytest.raises(LockHeld):
        place.fs.lock(path, "third")
    second.release()


def test_locks_on_two_files_are_independent(place: Place) -> None:
    first, second = place.fs.lock(place.path("a"), ""), place.fs.lock(place.path("b"), "")
    with pytest.raises(LockHeld) as held:
        place.fs.lock(place.path("a"), "")
    assert held.value.holder == ""
    first.release()
    second.release()


def test_a_lock_needs_a_directory_and_a_file(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.fs.lock(place.path("d/LOCK"), "")
    with pytest.raises(IsADirectoryError):
        place.fs.lock(place.root, "")


def test_facts_about_the_host(place: Place) -> None:
    fs = place.fs
    assert fs.free_bytes(place.root) > 0
    with pytest.raises(FileNotFoundError):
        fs.free_bytes(place.path("x"))
    seen = fs.host_path(place.path("x"))
    assert seen is None or seen == place.path("x")
    assert fs.boot_id() == fs.boot_id() != ""
    assert 1_600_000_000 < fs.now() <= fs.now()
    assert len(fs.random_bytes(16)) == 16
    assert fs.random_bytes(16) != fs.random_bytes(16)
    pid, host = fs.process()
    assert pid > 0
    assert host


# The real ones only


def test_a_refused_direct_transfer_falls_back_for_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may take O_DIRECT at opening and refuse it at the first transfer."""
    if not hasattr(os, "O_DIRECT"):  # other systems have no direct files to fall back from
        assert PosixFileSystem().open(str(tmp_path / "a"), "create", direct=True).direct is False
        return
    preadv, pwrite = os.preadv, os.pwrite

    def is_direct(descriptor: int) -> bool:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)

    def refusing_preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if is_direct(descriptor):
            raise OSError(errno.EINVAL, "refused")
        return preadv(descriptor, buffers, offset)

    def refusing_pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        if is_direct(descriptor):
            raise OSError(errno.EINVAL, "refused")
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "preadv", refusing_preadv)
    monkeypatch.setattr(os, "pwrite", refusing_pwrite)
    fs, path = PosixFileSystem(), str(tmp_path / "a")
    writer = fs.open(path, "create", direct=True)
    writer.pwrite(0, aligned(pattern(BLOCK)))
    assert writer.direct is False
    writer.close()
    reader = fs.open(path, "read", direct=True)
    buffer = aligned(bytes(BLOCK))
    assert reader.pread(0, buffer) == BLOCK
    assert reader.direct is False
    assert bytes(buffer) == pattern(BLOCK)
    reader.close()


def test_the_end_of_a_direct_file_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some kernels refuse a direct read from an unaligned place even at the end of the file."""
    preadv = os.preadv

    def strict_preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if offset % BLOCK:
            raise OSError(errno.EINVAL, "unaligned")
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", strict_preadv)
    place = Place(PosixFileSystem(), str(tmp_path))
    file = place.fs.open(place.put("a", pattern(BLOCK + 100)), "read", direct=True)
    file.direct = True  # also where this disk takes no direct transfers
    assert file.pread(0, aligned(bytes(3 * BLOCK))) == BLOCK + 100
    assert file.direct is True
    file.close()


class ShortFile(FileIO):
    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        return super().readinto(buffer[:7])

    def write(self, data: memoryview) -> int | None:  # type: ignore[override]
        return super().write(data[:5])


class FailingFile(FileIO):
    def write(self, data: object) -> int:
        raise OSError(errno.EIO, "no disk")


def test_short_transfers_go_on_where_they_stopped(
    real: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv, pwrite = os.preadv, os.pwrite
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:7]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: pwrite(fd, view[:5], at))
    monkeypatch.setattr(portable, "FileIO", ShortFile)
    real.put("a", pattern(100))
    assert real.get("a") == pattern(100)


def test_a_failed_system_call_names_the_file(real: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "no disk")

    path = real.put("a", b"x")
    monkeypatch.setattr(portable, "FileIO", FailingFile)
    file = real.fs.open(path, "write")
    for name in ("pwrite", "fdatasync", "fsync"):
        monkeypatch.setattr(os, name, fail)
    calls: list[Callable[[], None]] = [lambda: file.pwrite(0, b"x"), file.datasync]
    for call in calls:
        with pytest.raises(OSError) as failed:
            call()
        assert (failed.value.errno, failed.value.filename) == (errno.EIO, real.path("a"))
    file.close()


def test_new_files_and_directories_follow_the_umask(real: Place) -> None:
    old = os.umask(0o027)
    try:
        real.put("a", b"")
        real.fs.make_directory(real.path("d"))
        real.fs.lock(real.path("LOCK"), "").release()
    finally:
        os.umask(old)
    modes = [os.stat(real.path(name)).st_mode & 0o777 for name in ("a", "LOCK", "d")]
    assert modes == [0o640, 0o640, 0o750]


def test_descriptors_do_not_reach_started_programs(real: Place) -> None:
    lock = real.fs.lock(real.path("LOCK"), "")
    file = real.fs.open(real.put("a", b""), "write")
    for descriptor in (lock.fileno(), file._file.fileno()):  # type: ignore[attr-defined]
        assert os.get_inheritable(descriptor) is False
    file.close()
    lock.release()


@pytest.mark.parametrize("way", ["link", "check", "windows"])
def test_rename_without_the_kernels_help(
    real: Place, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(posix, "_rename_at_once", lambda source, target: False)
    monkeypatch.setattr(portable, "_windows", lambda: way == "windows")
    if way != "link":

        def no_links(*_: object, **__: object) -> None:
            raise OSError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(os, "link", no_links)
    source = real.put("a", b"abc")
    real.put("b", b"other")
    with pytest.raises(FileExistsError):
        real.fs.rename(source, real.path("b"))
    real.fs.rename(source, real.path("c"))
    assert real.fs.list_directory(real.root) == ["b", "c"]
    assert real.get("c") == b"abc"


def test_a_file_that_nobody_holds_is_closed(real: Place) -> None:
    """An interrupt may come between opening a file and handing it over."""
    path = real.put("a", b"x")
    before = len(os.listdir("/proc/self/fd"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(3):
            real.fs.open(path, "write", direct=True)
            real.fs.lock(real.path("LOCK"), "gone at once")
        assert len(os.listdir("/proc/self/fd")) == before
