"""Readers' pins on Linux; see `protocol.PinFile`.

Shared byte-range locks of the open file description: the kernel lets go of them when the last
descriptor closes, so a killed reader leaves nothing. Systems and file systems without them have no
pins: classic POSIX locks end when the process closes any descriptor of the file, and flock knows
whole files only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import FileIO

from shardstore.fs.calls import named, refuse_irregular
from shardstore.fs.pin_runs import runs

_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_GETLK: int | None = getattr(fcntl, "F_OFD_GETLK", None)
_NONE_HERE = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOTTY})
_NONE_TO_BE_HAD = _NONE_HERE | {errno.ENOLCK, errno.EPERM, errno.EAGAIN, errno.EACCES}
_FLOCK = "hhqqi"
"""struct flock: type, whence, start, length, process (0 for these locks)."""

_open_files: weakref.WeakSet[PosixPinFile] = weakref.WeakSet()


def _forget_pins() -> None:
    """In a forked child: close its copies, so that the pins end with the parent."""
    for file in list(_open_files):
        file.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pins)


class PosixPinFile:
    """See the module's docstring. Closed when its last reference goes, too."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._usable = _SETLK is not None and _GETLK is not None
        refuse_irregular(path)
        self._file = FileIO(path, "rb")
        self._descriptor = self._file.fileno()
        _open_files.add(self)

    def pin(self, slots: Iterable[int]) -> bool:
        if not self._usable:
            return False
        try:
            for run in runs(slots):
                self._call(_SETLK, fcntl.F_RDLCK, run.start, len(run))
        except OSError as refusal:
            self._call(_SETLK, fcntl.F_UNLCK, 0, 0)
            if refusal.errno in _NONE_TO_BE_HAD:
                return False
            raise
        return True

    def unpin(self, slots: Iterable[int]) -> None:
        if self._usable:
            for run in runs(slots):
                self._call(_SETLK, fcntl.F_UNLCK, run.start, len(run))

    def pinned(self, slots: Iterable[int]) -> set[int]:
        if not self._usable:
            return set()
        return {slot for run in runs(slots) for slot in self._pinned(run)}

    def _pinned(self, run: range) -> Iterator[int]:
        """The kernel names one lock that is in the way; what lies beside it is asked again."""
        ahead = [run]
        while ahead:
            asked = ahead.pop()
            try:
                kind, start, length = self._call(_GETLK, fcntl.F_WRLCK, asked.start, len(asked))
            except OSError as refusal:
                if refusal.errno in _NONE_HERE:
                    return
                raise
            if kind == fcntl.F_UNLCK:
                continue
            held = range(
                max(asked.start, start), min(asked.stop, start + length) if length else asked.stop
            )
            yield from held
            sides = (range(asked.start, held.start), range(held.stop, asked.stop))
            ahead += [side for side in sides if side]

    def close(self) -> None:
        """Unlock, then close: a copy of the descriptor elsewhere must not keep the pins."""
        if self._descriptor < 0:
            return
        try:
            if self._usable:
                with suppress(OSError):  # where there are none, there is nothing to unlock
                    self._call(_SETLK, fcntl.F_UNLCK, 0, 0)
        finally:
            self._descriptor = -1
            with named(self._path):
                self._file.close()

    def close_in_child(self) -> None:
        """Close without unlocking: the locks belong to the open file that the parent shares."""
        self._descriptor = -1
        with suppress(OSError):
            self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            with suppress(OSError):
                self.close()

    def _call(self, command: int | None, kind: int, start: int, length: int) -> tuple[int, ...]:
        """fcntl on a range (length 0: to the end of all files); the lock that it answers with."""
        assert command is not None
        with named(self._path):
            if self._descriptor < 0:  # Python objects to it with another kind of error
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            asked = struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
            found = struct.unpack(_FLOCK, fcntl.fcntl(self._descriptor, command, asked))
        return found[0], found[2], found[3]
