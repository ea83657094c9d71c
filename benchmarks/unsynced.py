"""A file system that leaves syncing to the kernel: for making the long logs that are measured."""

from __future__ import annotations

from shardstore.fs.posix import PosixFile, PosixFileSystem
from shardstore.fs.protocol import OpenMode


class UnsyncedFile(PosixFile):
    def datasync(self) -> None:
        """Leave it to the kernel."""


class Unsynced(PosixFileSystem):
    """Durability is not what is measured, and 33 syncs a commit would take minutes."""

    def open(self, path: str, mode: OpenMode, *, direct: bool = False) -> PosixFile:
        file = super().open(path, mode, direct=False)
        file.__class__ = UnsyncedFile
        return file

    def sync_directory(self, path: str) -> None:
        """Leave it to the kernel."""
