"""What the store needs from a file system and its host; see `tests/contract` for the suite.

Paths are plain strings with "/" between parts. Every method raises the operating system's own
`OSError` (with `errno` and `filename`); the layers above turn it into the store's errors. A method
that returned has taken effect for every process of the machine, but survives a power cut only
after the matching sync: `File.datasync` for bytes and size, `FileSystem.sync_directory` for names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

OpenMode = Literal["read", "write", "create", "replace"]
"""read: existing, read only. write: existing, read and write. create: must not exist.
replace: created, or emptied where it exists."""

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """What the store asks about a path."""

    size: int
    device: int
    inode: int
    is_directory: bool


class File(Protocol):
    """An open file. Threads may read and write at the same time where the places differ."""

    path: str
    direct: bool
    """True when transfers bypass the page cache: buffers, offsets and lengths must then be
    multiples of 4,096 bytes."""

    def pread(self, offset: int, buffer: bytearray | memoryview) -> int:
        """Fill `buffer` (writable) from `offset`; returns the bytes read, short only at the end."""

    def pwrite(self, offset: int, data: Bytes) -> None:
        """Write all of `data` at `offset`, growing the file as needed, or raise."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def datasync(self) -> None:
        """Bytes and size survive a power cut once this returned."""

    def close(self) -> None: ...


class Lock(Protocol):
    """A held writer's lock; it goes away with `release` or with the process."""

    def release(self) -> None: ...


class LockHeld(Exception):
    """The lock is taken; `holder` is what its owner wrote about itself (may be empty)."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class PinFile(Protocol):
    """A file opened for pinning: byte n stands for slot n, a shared lock on it for a reader.

    Locks belong to this open file: they go away with `close` or with the process, are not shared
    with forked children, and another open of the same file, in this process or any other, sees
    them. Nothing here waits or writes. Any thread may call.
    """

    def pin(self, slots: Iterable[int]) -> bool:
        """Lock these beside what is locked already; False, and nothing is held, where no such
        lock can be had (the system or the file system has none, or has run out of them)."""

    def unpin(self, slots: Iterable[int]) -> None: ...

    def pinned(self, slots: Iterable[int]) -> set[int]:
        """Those of the slots that another open of the file pins; none where nobody can."""

    def close(self) -> None: ...


class FileSystem(Protocol):
    """One file system and the few facts about its host that the store needs."""

    parallel: bool
    """Whether it pays to have several transfers in flight."""

    def open(self, path: str, mode: OpenMode, *, direct: bool = False) -> File:
        """Open a regular file. Anything else in the place of an existing one is refused with one of
        `calls.LOST`, without waiting for the other end of a pipe. With `direct` the page cache is
        bypassed where that is possible; the returned file's `direct` says whether it is. A refusal
        is found out by trying."""

    def stat(self, path: str) -> FileStat:
        """Raises FileNotFoundError where nothing is."""

    def list_directory(self, path: str) -> list[str]:
        """Names in the directory, sorted."""

    def make_directory(self, path: str) -> None:
        """Create one directory; raises FileExistsError where something is."""

    def rename(self, source: str, target: str) -> None:
        """Rename without replacing; raises FileExistsError where `target` exists."""

    def unlink(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Names created, renamed and removed in the directory survive a power cut. A rename between
        two directories does once both are synced, the target's first."""

    def lock(self, path: str, owner: str) -> Lock:
        """Create `path` if needed and take its exclusive lock without waiting, then write `owner`
        into it for others to read; raises `LockHeld`. The lock is the kernel's: it dies with its
        process and is not shared with forked children."""

    def open_pins(self, path: str) -> PinFile:
        """Open an existing file for pinning; reading it is enough, so that a mount which allows no
        more will do."""

    def lock_holder(self, path: str) -> str | None:
        """What the holder of the lock on `path` wrote about itself, None where nobody holds it or
        nothing is there. Changes nothing, needs no more than permission to read."""

    def free_bytes(self, path: str) -> int: ...

    def in_memory(self, path: str) -> bool:
        """Whether the file system below `path` is known to live in memory only: syncs then return
        and prove nothing."""

    def doubts(self, path: str) -> str | None:
        """What is known to speak against the file system below `path`: a kind that the store's
        promises were not tested on. None where nothing is known."""

    def host_path(self, path: str) -> str | None:
        """Where other libraries find the file; None where no real file is."""

    def boot_id(self) -> str:
        """Identifies the running kernel: what a dead process wrote is still there while it
        stays the same."""

    def now(self) -> float:
        """Wall clock, seconds since 1970."""

    def random_bytes(self, count: int) -> bytes: ...

    def process(self) -> tuple[int, str]:
        """Process id and host name."""
