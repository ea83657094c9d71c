"""Locks with the standard library alone: flock where a system has it, else locked bytes (Windows).

Both belong to the open file: another opening of it is refused, in this process too, and the lock is
gone with the file's last descriptor. A forked child closes its copies, so that a lock ends with the
parent. `HeldLock` serves the locks of `posix` as well, which have a call of their own.

On Windows a locked byte can be read by nobody else: it lies where no file has content.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from io import FileIO
from typing import Any

from shardstore.fs.calls import named, refuse_irregular

HOLDER_BYTES_MAX = 4096
LOCKED_BYTE = 1 << 30
_BUSY = frozenset({errno.EAGAIN, errno.EACCES, getattr(errno, "EDEADLOCK", errno.EDEADLK)})


def _if_there(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


_fcntl: Any = _if_there("fcntl")
_msvcrt: Any = _if_there("msvcrt")


def open_lock_file(path: str) -> FileIO:
    """The file, made where it is missing, and never emptied: a holder's name may stand in it."""
    refuse_irregular(path)
    return FileIO(path, "r+b", opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o666))


def try_exclusive(file: FileIO) -> bool:
    """Take the file's lock without waiting; False where another open file has it."""
    if _fcntl is not None:
        return _tried(lambda: _fcntl.flock(file.fileno(), _fcntl.LOCK_EX | _fcntl.LOCK_NB))
    return _tried(lambda: _lock_byte(file, _msvcrt.LK_NBLCK))


def unlock(file: FileIO) -> None:
    if _fcntl is not None:
        _fcntl.flock(file.fileno(), _fcntl.LOCK_UN)
    else:
        _lock_byte(file, _msvcrt.LK_UNLCK)


def is_taken(file: FileIO) -> bool:
    """Whether another open file has the lock: it is tried, and given back at once."""
    if _fcntl is not None:
        free = _tried(lambda: _fcntl.flock(file.fileno(), _fcntl.LOCK_SH | _fcntl.LOCK_NB))
    else:
        free = try_exclusive(file)
    if free:
        unlock(file)
    return not free


def _lock_byte(file: FileIO, how: int) -> None:
    file.seek(LOCKED_BYTE)
    _msvcrt.locking(file.fileno(), how, 1)


def _tried(lock: Callable[[], object]) -> bool:
    try:
        lock()
    except OSError as refusal:
        if refusal.errno not in _BUSY:
            raise
        return False
    return True


def read_holder(file: FileIO) -> str:
    """What the holder wrote about itself."""
    file.seek(0)
    return (file.read(HOLDER_BYTES_MAX) or b"").decode("utf-8", "replace")


def write_holder(file: FileIO, owner: str) -> None:
    file.truncate(0)
    file.seek(0)
    file.write(owner.encode()[:HOLDER_BYTES_MAX])


_held: weakref.WeakSet[HeldLock] = weakref.WeakSet()


def _forget() -> None:
    """In a forked child: close its copies, so that the lock ends with the parent."""
    for lock in list(_held):
        lock.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class HeldLock:
    """See `protocol.Lock`. It is released when its last reference goes, too."""

    def __init__(self, path: str, file: FileIO, give_up: Callable[[FileIO], None] = unlock) -> None:
        self._path = path
        self._file = file
        self._give_up = give_up
        _held.add(self)

    def fileno(self) -> int:
        return self._file.fileno()

    def release(self) -> None:
        """Unlock, then close: a copy of the descriptor elsewhere must not keep the lock."""
        if self._file.closed:
            return
        with named(self._path):
            try:
                self._give_up(self._file)
            finally:
                self._file.close()

    def __del__(self) -> None:
        with suppress(OSError):
            self.release()

    def close_in_child(self) -> None:
        """Close without unlocking: the lock belongs to the open file that the parent shares."""
        with suppress(OSError):
            self._file.close()
