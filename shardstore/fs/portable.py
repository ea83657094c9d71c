"""The file system of any system that Python runs on, with the standard library alone.

Contract: `protocol`. Linux has `posix`, which builds on this; every other system gets this one
(`system` chooses), and the contract suite runs both on Linux. What is weaker here:

- Transfers go through the page cache, those of one open file one after the other.
- A rename makes a second name, syncs it and removes the first; where there are no hard links it
  looks, then renames, which the store's own lock protects. Windows refuses to replace by itself.
- Windows cannot sync a directory: names are as durable there as its file system makes them.
- Locks are flock or a locked byte (`portable_locks`). Asking for the holder takes the lock for a
  moment. These locks and those of `posix` do not see each other: one store, one implementation.
- No pins: classic locks end when the process closes any descriptor of their file, flock knows
  whole files only. Views are not pinned, and every read is verified.
- The boot is known by the second it began in, which can only make one boot look like two.
- Nothing is known of what a directory is mounted from.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from typing import Any

from shardstore.fs.calls import named, refuse_irregular
from shardstore.fs.portable_locks import (
    HeldLock,
    is_taken,
    open_lock_file,
    read_holder,
    try_exclusive,
    unlock,
    write_holder,
)
from shardstore.fs.protocol import Bytes, File, FileStat, LockHeld, OpenMode, PinFile

try:
    import fcntl
except ImportError:  # pragma: no cover - reached on other systems only
    _FULL_SYNC: int | None = None
else:
    _FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)

MODES: dict[OpenMode, str] = {"read": "rb", "write": "r+b", "create": "x+b", "replace": "w+b"}
EXISTING: frozenset[OpenMode] = frozenset({"read", "write"})
NO_LINKS = frozenset(
    {
        *(errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOTTY, errno.EPERM),
        *(errno.EMLINK, errno.EISDIR),
    }
)


def _windows() -> bool:
    """Asked when it matters, so that the tests may pretend."""
    return sys.platform == "win32"


def full_sync(descriptor: int) -> None:
    """Sync everything, through the drive's own cache where a system has an extra call for it."""
    if _FULL_SYNC is not None:
        with suppress(OSError):  # a file system may lack it; fsync is then the best there is
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
    os.fsync(descriptor)


@contextmanager
def _calling(path: str) -> Iterator[None]:
    """Python says by an error of its own that a file is closed, or not open for writing."""
    try:
        with named(path):
            yield
    except ValueError as refusal:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), path) from refusal


class PortableFile:
    """See `protocol.File`. Dropped without `close` it closes itself."""

    def __init__(self, path: str, mode: OpenMode) -> None:
        self.path = path
        self.direct = False
        self._writable = mode != "read"
        if mode in EXISTING:
            refuse_irregular(path)
        self._file = FileIO(path, MODES[mode])
        self._place = threading.Lock()
        """Held from setting the file's position to the end of the transfer there."""

    def pread(self, offset: int, buffer: bytearray | memoryview) -> int:
        with memoryview(buffer) as whole, whole.cast("B") as view:
            with _calling(self.path), self._place:
                self._file.seek(offset)
                done = 0
                while done < len(view) and (count := self._file.readinto(view[done:]) or 0):
                    done += count
            return done

    def pwrite(self, offset: int, data: Bytes) -> None:
        with (
            memoryview(data) as whole,
            whole.cast("B") as view,
            _calling(self.path),
            self._place,
        ):
            self._file.seek(offset)
            done = 0
            while done < len(view):
                count = self._file.write(view[done:]) or 0
                if count == 0:
                    raise OSError(errno.EIO, "wrote nothing", self.path)
                done += count

    def size(self) -> int:
        with _calling(self.path):
            return os.fstat(self._file.fileno()).st_size

    def truncate(self, size: int) -> None:
        with _calling(self.path), self._place:
            self._file.truncate(size)

    def datasync(self) -> None:
        with _calling(self.path):
            descriptor = self._file.fileno()
            if self._writable or not _windows():  # which refuses it to readers
                full_sync(descriptor)

    def close(self) -> None:
        with named(self.path):
            self._file.close()


class UnpinnedFile:
    """Readers' pins where none can be had; see `protocol.PinFile`."""

    def __init__(self, path: str) -> None:
        self._path = path
        refuse_irregular(path)
        self._file = FileIO(path, "rb")

    def pin(self, slots: Iterable[int]) -> bool:
        self._check()
        return False

    def unpin(self, slots: Iterable[int]) -> None:
        self._check()

    def pinned(self, slots: Iterable[int]) -> set[int]:
        self._check()
        return set()

    def close(self) -> None:
        with named(self._path):
            self._file.close()

    def _check(self) -> None:
        with _calling(self._path):
            self._file.fileno()


class PortableFileSystem:
    """See the module's docstring. Stateless: one instance serves every thread."""

    parallel = True

    def open(self, path: str, mode: OpenMode, *, direct: bool = False) -> File:
        return PortableFile(path, mode)

    def stat(self, path: str) -> FileStat:
        found = os.stat(path)
        return FileStat(
            size=found.st_size,
            device=found.st_dev,
            inode=found.st_ino,
            is_directory=stat.S_ISDIR(found.st_mode),
        )

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        os.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        os.lstat(source)  # a missing source is reported before an existing target
        if os.path.lexists(target):
            code = errno.EEXIST
            raise FileExistsError(code, os.strerror(code), source, None, target)
        if _windows():  # where it refuses to replace, whatever came in between
            os.rename(source, target)
            return
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as refusal:
            if refusal.errno not in NO_LINKS:
                raise
            os.rename(source, target)
            return
        self.sync_directory(os.path.dirname(target) or ".")  # never neither name on the disk
        os.unlink(source)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        os.scandir(path).close()  # what is no directory is refused everywhere
        if _windows():
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            with named(path):
                full_sync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str, owner: str) -> HeldLock:
        file = open_lock_file(path)
        try:
            with named(path):
                if not try_exclusive(file):
                    raise LockHeld(read_holder(file))
                write_holder(file, owner)
        except BaseException:
            file.close()
            raise
        return HeldLock(path, file, unlock)

    def open_pins(self, path: str) -> PinFile:
        return UnpinnedFile(path)

    def lock_holder(self, path: str) -> str | None:
        refuse_irregular(path)
        try:
            file = FileIO(path, "rb")
        except FileNotFoundError:
            return None
        with file, named(path):
            return read_holder(file) if is_taken(file) else None

    def in_memory(self, path: str) -> bool:
        """Nobody can be asked: what is there counts as lasting."""
        os.stat(path)
        return False

    def doubts(self, path: str) -> str | None:
        os.stat(path)
        return None

    def host_path(self, path: str) -> str | None:
        return path

    def free_bytes(self, path: str) -> int:
        from shutil import disk_usage  # brings all of the compressors along

        return disk_usage(path).free

    def boot_id(self) -> str:
        return _boot_id_from_time()

    def now(self) -> float:
        return time.time()

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def process(self) -> tuple[int, str]:
        return os.getpid(), _host_name()


@functools.cache
def _boot_id_from_time() -> str:
    """The second of the boot, fixed per process so that a clock adjustment cannot change it."""
    return f"boot-{round(time.time() - time.monotonic())}"


@functools.cache
def _host_name() -> str:
    system: Any = os
    if hasattr(system, "uname"):
        return str(system.uname().nodename)
    from socket import gethostname

    return gethostname()
