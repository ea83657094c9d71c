"""The file system of Linux: with `posix_pins` and `posix_asks` all that calls the kernel by name.

Contract: `protocol`, with direct I/O, kernel locks tied to the open file description, pins, and
renames that refuse to replace. What is common to all systems stands in `portable`; where a kernel
or a file system lacks one of these, what `portable` does is done: buffered transfers, flock (both
kinds of lock belong to the open file and die with its last descriptor), a second name. Interrupted
system calls are repeated by Python itself. Descriptors live in `FileIO` objects from the moment
they exist, so that one which an interrupt keeps from its owner is closed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from io import FileIO

from shardstore.fs.calls import named, refuse_irregular
from shardstore.fs.portable import EXISTING, MODES, PortableFileSystem, full_sync
from shardstore.fs.portable_locks import (
    HeldLock,
    open_lock_file,
    read_holder,
    try_exclusive,
    unlock,
    write_holder,
)
from shardstore.fs.posix_asks import doubts_about, is_locked, lives_in_memory
from shardstore.fs.posix_pins import PosixPinFile
from shardstore.fs.protocol import Bytes, LockHeld, OpenMode

ALIGNMENT = 4096

_O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOTTY, errno.EPERM})
_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


class PosixFile:
    """An open file; see `protocol.File`. Operations after `close` raise EBADF."""

    def __init__(self, path: str, mode: OpenMode, *, direct: bool) -> None:
        self.path = path
        self.direct = False
        if mode in EXISTING:
            refuse_irregular(path)
        self._file = FileIO(path, MODES[mode])
        self._descriptor = self._file.fileno()
        if direct:
            with named(path):
                self.direct = self._take_direct(self._descriptor)

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
        with named(self.path), memoryview(buffer) as whole, whole.cast("B") as view:
            if offset < 0:  # -1 would mean the descriptor's own position
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            done = 0
            while done < len(view):
                direct = self.direct  # another thread may leave it meanwhile
                try:
                    count = os.preadv(self._descriptor, [view[done:]], offset + done)
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
        with named(self.path), memoryview(data) as whole, whole.cast("B") as view:
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
        with named(self.path):
            return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        with named(self.path):
            os.ftruncate(self._descriptor, size)

    def datasync(self) -> None:
        with named(self.path):
            if self._descriptor < 0:  # Python objects to it with another kind of error
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        self._descriptor = -1
        with named(self.path):
            self._file.close()


def _take_lock(file: FileIO) -> Callable[[FileIO], None] | None:
    """Lock the whole file without waiting; how to unlock it, None where another opening has it."""
    try:
        _set_lock(file, fcntl.F_WRLCK)
        return _unlock
    except OSError as refusal:
        if refusal.errno in (errno.EAGAIN, errno.EACCES):
            return None
        if refusal.errno not in _UNSUPPORTED:
            raise
    return unlock if try_exclusive(file) else None


def _unlock(file: FileIO) -> None:
    _set_lock(file, fcntl.F_UNLCK)


def _set_lock(file: FileIO, kind: int) -> None:
    if _OFD_SETLK is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    asked = struct.pack("hhqqi", kind, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(file.fileno(), _OFD_SETLK, asked)


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


class PosixFileSystem(PortableFileSystem):
    """The real thing; see `protocol.FileSystem`. Stateless: one instance serves every thread."""

    def open(self, path: str, mode: OpenMode, *, direct: bool = False) -> PosixFile:
        return PosixFile(path, mode, direct=direct)

    def rename(self, source: str, target: str) -> None:
        if not _rename_at_once(source, target):
            super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with named(path):
                full_sync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str, owner: str) -> HeldLock:
        file = open_lock_file(path)
        try:
            with named(path):
                give_up = _take_lock(file)
                if give_up is None:
                    raise LockHeld(read_holder(file))
                write_holder(file, owner)
        except BaseException:
            file.close()
            raise
        return HeldLock(path, file, give_up)

    def open_pins(self, path: str) -> PosixPinFile:
        return PosixPinFile(path)

    def lock_holder(self, path: str) -> str | None:
        refuse_irregular(path)
        try:
            file = FileIO(path, "rb")
        except FileNotFoundError:
            return None
        with file, named(path):
            return read_holder(file) if is_locked(file) else None

    def in_memory(self, path: str) -> bool:
        return lives_in_memory(os.stat(path).st_dev)

    def doubts(self, path: str) -> str | None:
        return doubts_about(os.stat(path).st_dev)

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def boot_id(self) -> str:
        with suppress(OSError), open(_BOOT_ID_FILE, encoding="ascii") as file:
            return file.read().strip()
        return super().boot_id()
