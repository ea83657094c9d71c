"""Questions to a POSIX system whose answers change nothing: `posix` acts, this only asks."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress

_OFD_GETLK: int | None = getattr(fcntl, "F_OFD_GETLK", None)
_LOCK_FORMAT = "hhqqi"
_MOUNTS_FILE = "/proc/self/mountinfo"
_MEMORY_KINDS = frozenset({"tmpfs", "ramfs"})


def is_locked(descriptor: int, *, portable: bool) -> bool:
    """Whether another open file holds the whole file's lock. Where the kernel cannot be asked, a
    shared lock is tried and given back at once."""
    if _OFD_GETLK is not None and not portable:
        wanted = struct.pack(_LOCK_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            found = struct.unpack(_LOCK_FORMAT, fcntl.fcntl(descriptor, _OFD_GETLK, wanted))
            return bool(found[0] != fcntl.F_UNLCK)
        except OSError as refusal:
            if refusal.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
                raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def lives_in_memory(device: int) -> bool:
    """Whether the table of mounts calls the device one that a power cut empties; False where there
    is no such table."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), open(_MOUNTS_FILE, encoding="utf-8", errors="replace") as file:
        for line in file:
            mount, _, kind = line.partition(" - ")
            if mount.split()[2:3] == [wanted]:
                return kind.split()[0] in _MEMORY_KINDS
    return False
