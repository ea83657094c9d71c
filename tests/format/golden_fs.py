"""A file system on which equal calls leave equal bytes: what golden stores are made on.

Real directories below `base`, seen under the path /golden, so that no path of a machine gets into a
store. Clock, random bytes, process, boot and the identities of files are fixed; everything else is
the portable layer's. Under the same name and seed a store is on the machine that wrote it; for
every other file system it is a copy (rule 14 of docs/design.md).
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import zlib
from pathlib import Path

from shardstore.fs.portable import PortableFileSystem
from shardstore.fs.portable_locks import HeldLock
from shardstore.fs.protocol import File, FileStat, OpenMode, PinFile

ROOT = "/golden"


class GoldenFileSystem(PortableFileSystem):
    """See the module's docstring."""

    parallel = False

    def __init__(self, base: Path, seed: str) -> None:
        self._base = base
        self._seed = seed
        self._drawn = 0
        self.moment = 1_700_000_000.0
        """What the clock says; whoever makes a store moves it on."""
        self.real_paths = True
        """Whether other libraries find the files: without it there is no catalog, and no thread
        that looks after the log."""

    def real(self, path: str) -> str:
        """Where a path of this file system lies."""
        inside = posixpath.relpath(path, ROOT)
        if inside.startswith(".."):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return str(self._base / inside)

    def open(self, path: str, mode: OpenMode, *, direct: bool = False) -> File:
        return super().open(self.real(path), mode, direct=direct)

    def stat(self, path: str) -> FileStat:
        found = super().stat(self.real(path))
        known = path.removesuffix(".tmp")  # STORE keeps what it was under its first name
        return FileStat(
            size=found.size,
            device=1,
            inode=zlib.crc32(known.encode()),
            is_directory=found.is_directory,
        )

    def list_directory(self, path: str) -> list[str]:
        return super().list_directory(self.real(path))

    def make_directory(self, path: str) -> None:
        super().make_directory(self.real(path))

    def rename(self, source: str, target: str) -> None:
        super().rename(self.real(source), self.real(target))

    def unlink(self, path: str) -> None:
        super().unlink(self.real(path))

    def sync_directory(self, path: str) -> None:
        """Nothing here has to survive a power cut."""

    def lock(self, path: str, owner: str) -> HeldLock:
        return super().lock(self.real(path), owner)

    def lock_holder(self, path: str) -> str | None:
        return super().lock_holder(self.real(path))

    def open_pins(self, path: str) -> PinFile:
        return super().open_pins(self.real(path))

    def in_memory(self, path: str) -> bool:
        return False

    def doubts(self, path: str) -> str | None:
        return None

    def free_bytes(self, path: str) -> int:
        return 1 << 40

    def host_path(self, path: str) -> str | None:
        return self.real(path) if self.real_paths else None

    def boot_id(self) -> str:
        return "golden-boot"

    def now(self) -> float:
        return self.moment

    def random_bytes(self, count: int) -> bytes:
        self._drawn += 1
        return hashlib.shake_128(f"{self._seed} {self._drawn}".encode()).digest(count)

    def process(self) -> tuple[int, str]:
        return 4242, "golden"
