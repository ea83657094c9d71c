"""Small things that every caller of the seam does in the same way."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from shardstore.errors import StorageError
from shardstore.fs.protocol import FileSystem

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk, the user's share of it, or what one file may take is used up."""
NOT_REGULAR = errno.ENXIO
"""How an opening says that no regular file is there: as the kernel does of sockets."""
LOST = frozenset(
    {
        *(errno.EIO, getattr(errno, "EUCLEAN", errno.EIO), errno.EBADMSG),
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, NOT_REGULAR),
    }
)
"""Errors of looking at a file that say something of the disk: it has damaged or lost what was
there, or another thing stands there. All others are refusals of the system, which prove nothing."""

_LIMITS: dict[int | None, str] = {
    errno.EFBIG: ": not the disk is full, a limit on the size of one file is reached; look at "
    "'ulimit -f', and at what the file system allows",
    errno.EDQUOT: ": not the disk is full, but this user's quota on it; look at 'quota', delete "
    "files, or ask for a larger one",
}


class Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def named(path: str) -> Iterator[None]:
    """Calls on descriptors raise errors that name no file; the protocol promises one."""
    try:
        yield
    except OSError as failure:
        if failure.filename is None:
            failure.filename = path
        raise


def is_loss(error: OSError) -> bool:
    """Whether the disk has damaged or lost what was looked at; else it is the system that refuses:
    permission, descriptors, memory, an interrupt. Whoever judges files asks this, and lets a
    refusal pass on as what it is."""
    return error.errno in LOST


def refuse_irregular(path: str) -> None:
    """Before the opening of a file that exists: to open a pipe may take for ever. All else that is
    wrong the opening itself says."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(NOT_REGULAR, "not a regular file", path)


def close_quietly(file: Closable) -> None:
    """Close what was synced, or is given up: a failure to close changes nothing any more."""
    try:
        file.close()
    except OSError:
        return


def sync_file(fs: FileSystem, path: str) -> None:
    """Make the bytes of an existing file durable."""
    file = fs.open(path, "write")
    try:
        file.datasync()
    finally:
        file.close()


def unlink_quietly(fs: FileSystem, path: str) -> None:
    """Remove a temporary file; one that stays is replaced by the next."""
    try:
        fs.unlink(path)
    except OSError:
        return


def storage_error(
    fs: FileSystem, root: str, doing: str, error: OSError, *, needed: int = 0
) -> StorageError:
    """The store's error for one of the operating system's, with the space that there is."""
    name = error.filename or root
    message = f"{doing} failed on {name}: {error.strerror or error}"
    return StorageError(f"{message}{space_text(fs, root, error, needed)}", errno=error.errno)


def space_text(fs: FileSystem, root: str, error: OSError, needed: int = 0) -> str:
    """What is used up, what was needed and what is free, where that is what an error is about."""
    if error.errno not in FULL:
        return ""
    wanted = f"{needed} bytes needed" if needed else "more space needed"
    limit = _LIMITS.get(error.errno, "")
    place = root
    while True:
        try:
            return f"; {wanted}, {fs.free_bytes(place)} free{limit}"
        except OSError:  # it may not be made yet
            above = posixpath.dirname(place) or "."
            if place in (above, "."):
                return f"; {wanted}{limit}"
            place = above
