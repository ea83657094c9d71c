"""A small closed store on the in-memory file system, and the means to damage it and to check it.

Bytes are changed through the file system, so that nothing of the code under test takes part.
"""

from __future__ import annotations

from shardstore import Ref
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import Finding, Report, fsck
from shardstore.wal.reader import list_segments
from tests.support.stores import ROOT, commit, open_store

WAL = f"{ROOT}/wal"


def built(draws: int = 0) -> MemoryFileSystem:
    """Three openings, steps 1 to 5, snapshots of step 2 and 5, one rewind undone.

    With random numbers drawn before, it is another store.
    """
    fs = MemoryFileSystem()
    for _ in range(draws):
        fs.random_bytes(1)
    with open_store(fs) as store:
        for step in (1, 2):
            commit(store, step)
        store.snapshot("early")
    with open_store(fs) as store:
        for step in (3, 4):
            commit(store, step)
    with open_store(fs) as store:
        commit(store, 5)
        store.rewind("early")
        store.undo()
        store.snapshot("late")
    return fs


def check(fs: FileSystem, *, deep: bool = True) -> Report:
    return fsck(fs, ROOT, deep=deep)


def damages(fs: FileSystem, *, deep: bool = True) -> list[Finding]:
    return [finding for finding in check(fs, deep=deep).findings if finding.is_damage]


def change(fs: FileSystem, path: str, at: int, new: bytes | None = None) -> None:
    """Write `new` at an offset; without it flip all bits of the byte there."""
    file = fs.open(path, "write")
    if new is None:
        byte = bytearray(1)
        file.pread(at, byte)
        new = bytes([byte[0] ^ 0xFF])
    file.pwrite(at, new)
    file.close()


def object_path(fs: FileSystem, part: tuple[str, str], name: str | None = None) -> str:
    """The file of a part of the head, or of a snapshot's."""
    with open_store(fs, mode="r") as store:
        found = store._find(Ref.name(name) if name else Ref.head)
        return f"{ROOT}/objects/{found.manifest[part].slot:06x}.raw"


def newest(fs: FileSystem) -> str:
    return f"{WAL}/{list_segments(fs, ROOT)[-1]:016x}.wal"
