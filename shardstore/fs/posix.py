"""The file system of POSIX systems: with `posix_pins` all that calls the operating system.

Contract: `protocol`, on Linux with direct I/O, kernel locks tied to the open file description and
renames that refuse to replace; each of these falls back where the system lacks it. With
`portable=True` the fall-backs are used everywhere: this is what other systems get, and how the
contract suite runs it on Linux. The two modes' locks do not see each other: one store, one mode.

Fall-backs: buffered transfers for direct ones; flock for open-file-description locks (both belong
to the open file and die with its last descriptor); link, sync and unlink for renaming without
replacing, and where hard links are refused a check before a plain rename, which the store's own
lock has to protect; a boot id derived from the time of boot, which can only make one boot look like
two; no pins at all. Interrupted system calls are repeated by Python itself.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import struct
import sys
import time
import weakref
from contextlib import suppress

from shardstore.fs.posix_asks import is_locked, lives_in_memory
from shardstore.fs.posix_pins import PosixPinFile
from shardstore.fs.posix_pins import named as _named
from shardstore.fs.protocol import Bytes, FileStat, LockHeld, OpenMode

try:
    import fcntl
except ImportError as error:  # pragma: no cover - reached on other systems only
    raise ImportError(f"shardstore needs a POSIX system, found {sys.platform}") from error

ALIGNMENT = 4096
HOLDER_BYTES_MAX = 4096

_FLAGS: dict[OpenMode, int] = {
    "read": os.O_RDONLY,
    "write": os.O_RDWR,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "replace": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
}
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_FLOCK_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOTTY, errno.EPERM})
_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


def _full_sync(descriptor: int) -> None:
    """Sync everything, through the drive's own cache where a system has an extra call for it."""
    if _FULL_SYNC is not None:
        with suppress(OSError):  # a file system may lack it; fsync is then the best there is
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
    os.fsync(descriptor)


def _read_some(descriptor: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], offset)
    piece = os.pread(descriptor, len(view), offset)
    view[: len(piece)] = piece
    return len(piece)


class PosixFile:
    """An open file; see `protocol.File`. Operations after `close` raise EBADF."""

    def __init__(self, path: str, descriptor: int, *, direct: bool) -> None:
        self.path = path
        self.direct = direct and self._take_direct(descriptor)
        self._descriptor = descriptor

    @staticmethod
    def _take_direct(descriptor: int) -> bool:
        """Asked for after opening: a refused open with O_CREAT would leave the file behind."""
        if not _O_DIRECT:
            return False
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _O_DIRECT)
        except OSError as refusal:
            if refusal.errno not in _UNSUPPORTED:
                raise
            return False
        return True

    def _leave_direct(self, was_direct: bool, refusal: OSError) -> None:
        """Go on buffered after EINVAL; any other error, or EINVAL when buffered, is real."""
        if not was_direct or refusal.errno != errno.EINVAL:
            raise refusal
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_O_DIRECT)
        self.direct = False

    def pread(self, offset: int, buffer: bytearray | memoryview) -> int:
        with _named(self.path), memoryview(buffer) as whole, whole.cast("B") as view:
            if offset < 0:  # -1 would mean the descriptor's own position
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            done = 0
            while done < len(view):
                direct = self.direct  # another thread may leave it meanwhile
                try:
                    count = _read_some(self._descriptor, view[done:], offset + done)
                except OSError as refusal:
                    self._leave_direct(direct, refusal)
                    continue
                done += count
                # A direct read stops inside a block at the end of the file only, and the next
                # one from there would be refused as unaligned.
                if count == 0 or (direct and (offset + done) % ALIGNMENT):
                    break
            return done

    def pwrite(self, offset: int, data: Bytes) -> None:
        with _named(self.path), memoryview(data) as whole, whole.cast("B") as view:
            done = 0
            while done < len(view):
                direct = self.direct  # another thread may leave it meanwhile
                try:
                    count = os.pwrite(self._descriptor, view[done:], offset + done)
                except OSError as refusal:
                    self._leave_direct(direct, refusal)
                    continue
                if count == 0:
                    raise OSError(errno.EIO, "wrote nothing", self.path)
                done += count

    def size(self) -> int:
        with _named(self.path):
            return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        with _named(self.path):
            os.ftruncate(self._descriptor, size)

    def datasync(self) -> None:
        with _named(self.path):
            if self._descriptor < 0:  # Python objects to it with another kind of error
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if _FULL_SYNC is None and hasattr(os, "fdatasync"):
                os.fdatasync(self._descriptor)
            else:
                _full_sync(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with _named(self.path):
                os.close(descriptor)


_held_locks: weakref.WeakSet[PosixLock] = weakref.WeakSet()


def _forget_locks() -> None:
    """In a forked child: close its copies, so that the lock ends with the parent."""
    for lock in list(_held_locks):
        lock.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


class PosixLock:
    """A held lock; see `protocol.Lock`. It is released when its last reference goes, too."""

    def __init__(self, path: str, descriptor: int, *, portable: bool) -> None:
        self._path = path
        self._descriptor = descriptor
        self._portable = portable
        _held_locks.add(self)

    def release(self) -> None:
        """Unlock, then close: a copy of the descriptor elsewhere must not keep the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with _named(self._path):
                try:
                    _set_lock(descriptor, fcntl.F_UNLCK, portable=self._portable)
                finally:
                    os.close(descriptor)

    def __del__(self) -> None:
        with suppress(OSError):
            self.release()

    def close_in_child(self) -> None:
        """Close without unlocking: the lock belongs to the open file that the parent shares."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)


def _set_lock(descriptor: int, kind: int, *, portable: bool) -> bool:
    """Lock or unlock the whole file without waiting; returns whether flock did it."""
    if _OFD_SETLK is not None and not portable:
        try:
            fcntl.fcntl(descriptor, _OFD_SETLK, struct.pack("hhqqi", kind, os.SEEK_SET, 0, 0, 0))
            return False
        except OSError as refusal:
            if refusal.errno not in _UNSUPPORTED:
                raise
    fcntl.flock(descriptor, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else _FLOCK_TRY)
    return True


def _read_holder(descriptor: int) -> str:
    return os.pread(descriptor, HOLDER_BYTES_MAX, 0).decode("utf-8", "replace")


def _rename_at_once(source: str, target: str) -> bool:
    """renameat2 with RENAME_NOREPLACE; False where system or file system lacks it."""
    import ctypes  # only writers rename; kept out of every command's start-up

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    names = (_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target))
    if call(*names, _RENAME_NOREPLACE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED and code != errno.EPERM:
        return False
    raise OSError(code, os.strerror(code), source, None, target)


class PosixFileSystem:
    """The real thing; see `protocol.FileSystem`. Stateless: one instance serves every thread."""

    parallel = True

    def __init__(self, *, portable: bool = False) -> None:
        self.portable = portable

    def open(self, path: str, mode: OpenMode, *, direct: bool = False) -> PosixFile:
        descriptor = os.open(path, _FLAGS[mode] | os.O_CLOEXEC, 0o666)
        try:
            with _named(path):
                if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                return PosixFile(path, descriptor, direct=direct and not self.portable)
        except BaseException:
            os.close(descriptor)
            raise

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
        if not self.portable and sys.platform == "linux" and _rename_at_once(source, target):
            return
        os.lstat(source)  # a missing source is reported before an existing target, as above
        if os.path.lexists(target):
            code = errno.EEXIST
            raise FileExistsError(code, os.strerror(code), source, None, target)
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as refusal:
            if refusal.errno not in _UNSUPPORTED | {errno.EMLINK, errno.EISDIR}:
                raise
            os.rename(source, target)
            return
        self.sync_directory(os.path.dirname(target) or ".")  # never neither name on the disk
        os.unlink(source)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _named(path):
                _full_sync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str, owner: str) -> PosixLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with _named(path):
                try:
                    flock = _set_lock(descriptor, fcntl.F_WRLCK, portable=self.portable)
                except OSError as refusal:
                    if refusal.errno not in (errno.EAGAIN, errno.EACCES):
                        raise
                    raise LockHeld(_read_holder(descriptor)) from None
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, owner.encode()[:HOLDER_BYTES_MAX], 0)
                return PosixLock(path, descriptor, portable=flock)
        except BaseException:
            os.close(descriptor)
            raise

    def open_pins(self, path: str) -> PosixPinFile:
        return PosixPinFile(path, portable=self.portable)

    def lock_holder(self, path: str) -> str | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            with _named(path):
                locked = is_locked(descriptor, portable=self.portable)
                return _read_holder(descriptor) if locked else None
        finally:
            os.close(descriptor)

    def in_memory(self, path: str) -> bool:
        return lives_in_memory(os.stat(path).st_dev)

    def host_path(self, path: str) -> str | None:
        return path

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def boot_id(self) -> str:
        if not self.portable:
            with suppress(OSError), open(_BOOT_ID_FILE, encoding="ascii") as file:
                return file.read().strip()
        return _boot_id_from_time()

    def now(self) -> float:
        return time.time()

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def process(self) -> tuple[int, str]:
        return os.getpid(), os.uname().nodename


@functools.cache
def _boot_id_from_time() -> str:
    """The second of the boot, fixed per process so that a clock adjustment cannot change it."""
    return f"boot-{round(time.time() - time.monotonic())}"
