"""Small things that every caller of the seam does in the same way."""

from __future__ import annotations

from typing import Protocol

from shardstore.errors import StorageError
from shardstore.fs.protocol import FileSystem


class Closable(Protocol):
    def close(self) -> None: ...


def close_quietly(file: Closable) -> None:
    """Close what was synced, or is given up: a failure to close changes nothing any more."""
    try:
        file.close()
    except OSError:
        return


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
    space = ""
    if needed:
        try:
            space = f"; {needed} bytes needed, {fs.free_bytes(root)} free"
        except OSError:
            space = f"; {needed} bytes needed"
    name = error.filename or root
    message = f"{doing} failed on {name}: {error.strerror or error}{space}"
    return StorageError(message, errno=error.errno)
