"""Questions to Linux whose answers change nothing: `posix` acts, this only asks."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress
from io import FileIO

from shardstore.fs.portable_locks import is_taken

_OFD_GETLK: int | None = getattr(fcntl, "F_OFD_GETLK", None)
_LOCK_FORMAT = "hhqqi"
_MOUNTS_FILE = "/proc/self/mountinfo"
_MEMORY_KINDS = frozenset({"tmpfs", "ramfs"})
_NETWORK_KINDS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "ocfs2", "gfs2"),
        *("ceph", "lustre", "gpfs", "beegfs", "pvfs2", "orangefs", "glusterfs", "davfs"),
    }
)
_HOST_KINDS = frozenset({"9p", "drvfs", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "fakeowner"})
"""Directories of another system: Windows drives, or the host's of a virtual machine."""


def is_locked(file: FileIO) -> bool:
    """Whether another open file holds the whole file's lock. Where the kernel cannot be asked, a
    shared lock is tried and given back at once."""
    if _OFD_GETLK is not None:
        wanted = struct.pack(_LOCK_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            found = struct.unpack(_LOCK_FORMAT, fcntl.fcntl(file.fileno(), _OFD_GETLK, wanted))
            return bool(found[0] != fcntl.F_UNLCK)
        except OSError as refusal:
            if refusal.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
                raise
    return is_taken(file)


def lives_in_memory(device: int) -> bool:
    """Whether the table of mounts calls the device one that a power cut empties; False where there
    is no such table."""
    return _kind_of(device) in _MEMORY_KINDS


def doubts_about(device: int) -> str | None:
    """What speaks against the kind of file system that the table of mounts names, None if nothing
    is known."""
    kind = _kind_of(device)
    if kind in _NETWORK_KINDS:
        return f"it is on a network ({kind}): locks and syncs are what its server makes of them"
    if kind in _HOST_KINDS:
        return (
            f"it is another system's directory mounted here ({kind}), as Windows drives are: its "
            "locks may hold on this side only, and its syncs prove nothing"
        )
    if kind.startswith("fuse"):
        return f"a program serves it ({kind}): what locks and syncs are worth is up to that one"
    return None


def _kind_of(device: int) -> str:
    """The file system's kind as the table of mounts has it; "" where it is not there."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), open(_MOUNTS_FILE, encoding="utf-8", errors="replace") as file:
        for line in file:
            mount, _, kind = line.partition(" - ")
            if mount.split()[2:3] == [wanted]:
                return kind.split()[0]
    return ""
