"""A deterministic file system in memory that can lose power, for tests and the crash explorer.

Contract: `protocol`, strictly: files opened with `direct` refuse unaligned buffers, offsets and
lengths with EINVAL, so that misuse is found. What it can do besides (crash at an operation, be
cloned, killed, lose power, be digested) stands in `memory_image`, the legal states of a power cut
in `crash_states`. Safe to use from several threads; nothing here does input or output.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from shardstore.fs.memory_image import ROOT, CrashableState, CrashPoint, Operation
from shardstore.fs.memory_nodes import (
    EMPTY,
    PAGE,
    SECTOR,
    DirectoryNode,
    FileNode,
    NameEffect,
    Node,
    SectorWrite,
    SizeChange,
    sync_names,
)
from shardstore.fs.memory_pins import MemoryPinFile
from shardstore.fs.protocol import Bytes, FileStat, LockHeld, OpenMode

__all__ = ["CrashPoint", "MemoryFile", "MemoryFileSystem", "MemoryLock", "Operation"]

_DEVICE = 1


class _Buffer(ctypes.Structure):
    """CPython's Py_buffer: the only way to the address of a read-only buffer."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("rest", ctypes.c_byte * 128),
    )


def _address(data: Bytes) -> int:
    found = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(data), ctypes.byref(found), 0)
    address: int | None = found.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(found))
    return address or 0


def _fail(code: int, path: str, target: str | None = None) -> NoReturn:
    raise OSError(code, os.strerror(code), path, None, target)


class MemoryFile:
    """An open file; see `protocol.File`."""

    def __init__(
        self, owner: MemoryFileSystem, inode: int, path: str, *, writable: bool, direct: bool
    ) -> None:
        self.path = path
        self.direct = direct
        self._owner = owner
        self._inode = inode
        self._writable = writable
        self._open = True

    def _check(self, *, write: bool = False) -> None:
        self._owner.check_alive()
        if not self._open or (write and not self._writable):
            _fail(errno.EBADF, self.path)

    def _check_transfer(self, offset: int, data: Bytes) -> None:
        length = memoryview(data).nbytes
        unaligned = self.direct and length and (offset | length | _address(data)) % PAGE
        if offset < 0 or unaligned:
            _fail(errno.EINVAL, self.path)

    def pread(self, offset: int, buffer: bytearray | memoryview) -> int:
        self._check()
        self._check_transfer(offset, buffer)
        with memoryview(buffer) as whole, whole.cast("B") as view:
            piece = self._owner.file_node(self._inode).content.read(offset, len(view))
            view[: len(piece)] = piece
        return len(piece)

    def pwrite(self, offset: int, data: Bytes) -> None:
        self._check(write=True)
        self._check_transfer(offset, data)
        self._owner.write(self._inode, self.path, offset, bytes(data))

    def size(self) -> int:
        self._check()
        return self._owner.file_node(self._inode).content.size

    def truncate(self, size: int) -> None:
        self._check(write=True)
        if size < 0:
            _fail(errno.EINVAL, self.path)
        self._owner.truncate(self._inode, self.path, size)

    def datasync(self) -> None:
        self._check()
        self._owner.datasync(self._inode, self.path)

    def drop_unsynced(self) -> None:
        """What a failed sync does: the written bytes stay visible and count as synced, but the
        disk has the old ones, and no later sync writes them."""
        self._check()
        self._owner.drop_unsynced(self._inode, self.path)

    def close(self) -> None:
        self._open = False


class MemoryLock:
    """A held lock; see `protocol.Lock`."""

    def __init__(self, owner: MemoryFileSystem, inode: int, path: str) -> None:
        self._owner = owner
        self._inode = inode
        self._path = path

    def release(self) -> None:
        self._owner.release(self._inode, self._path, self)


class MemoryFileSystem(CrashableState):
    """See the module's docstring. The root directory exists and is durable; paths may begin with
    "/" or not."""

    parallel = False

    # Names

    def _resolve(self, path: str) -> int:
        inode = ROOT
        for name in _parts(path):
            inode = self._directory(inode, path).entries.get(name, 0) or _fail(errno.ENOENT, path)
        return inode

    def _parent(self, path: str) -> tuple[int, str, Mapping[str, int]]:
        """Directory, last name, and the directory's entries."""
        *above, name = _parts(path) or _fail(errno.EEXIST, path)
        inode = self._resolve("/".join(above)) if above else ROOT
        return inode, name, self._directory(inode, path).entries

    def _directory(self, inode: int, path: str) -> DirectoryNode:
        node = self._nodes[inode]
        return node if isinstance(node, DirectoryNode) else _fail(errno.ENOTDIR, path)

    def file_node(self, inode: int) -> FileNode:
        node = self._nodes[inode]
        assert isinstance(node, FileNode)
        return node

    def _link(self, directory: int, name: str, inode: int | None) -> None:
        """Set or remove an entry as processes see it."""
        node = self._nodes[directory]
        assert isinstance(node, DirectoryNode)
        entries = dict(node.entries)
        if inode is None:
            del entries[name]
        else:
            entries[name] = inode
        self._nodes[directory] = DirectoryNode(entries, node.durable)

    def _add(self, directory: int, name: str, node: Node) -> int:
        inode, self._next_inode = self._next_inode, self._next_inode + 1
        self._nodes[inode] = node
        self._link(directory, name, inode)
        self._names += (NameEffect(self._tick(), "add", inode, directory, name),)
        return inode

    # Files

    def write(self, inode: int, path: str, offset: int, data: bytes) -> None:
        with self._mutex:
            self._check_room(inode, path, offset + len(data))
            with self._mutation("pwrite", path, offset, len(data)) as half:
                if half:
                    data = data[: len(data) // 2 // SECTOR * SECTOR]
                if data:
                    self._write(inode, offset, data)

    def _write(self, inode: int, offset: int, data: bytes) -> None:
        node = self.file_node(inode)
        content = node.content.write(offset, data)
        first = offset // SECTOR * SECTOR
        end = -(-(offset + len(data)) // SECTOR) * SECTOR
        whole = data if end - first == len(data) else content.sectors(first, end - first)
        effects = (*node.effects, SectorWrite(self._tick(), first, whole))
        if content.size > node.content.size:
            effects += (SizeChange(self._tick(), content.size, False),)
        self._nodes[inode] = replace(node, content=content, effects=effects)

    def truncate(self, inode: int, path: str, size: int) -> None:
        with self._mutex:
            self._check_room(inode, path, size)
            with self._mutation("truncate", path, size):
                self._resize(inode, size)

    def _resize(self, inode: int, size: int) -> None:
        node = self.file_node(inode)
        old = node.content.size
        if size != old:
            effects = (*node.effects, SizeChange(self._tick(), size, size < old))
            content = node.content.resize(size)
            self._nodes[inode] = replace(node, content=content, effects=effects)

    def datasync(self, inode: int, path: str) -> None:
        with self._mutex, self._mutation("datasync", path):
            self._nodes[inode] = self.file_node(inode).synced()

    def drop_unsynced(self, inode: int, path: str) -> None:
        with self._mutex, self._mutation("drop_unsynced", path):
            self._nodes[inode] = self.file_node(inode).dropped()

    def release(self, inode: int, path: str, lock: MemoryLock) -> None:
        with self._mutex:
            if not self.crashed and self._locks.get(inode) is lock:
                with self._mutation("release", path):
                    del self._locks[inode]

    # The protocol

    def open(self, path: str, mode: OpenMode, *, direct: bool = False) -> MemoryFile:
        with self._mutex:
            self.check_alive()
            known = mode in ("read", "write")
            inode = self._resolve(path) if known else self._open_new(path, mode)
            if isinstance(self._nodes[inode], DirectoryNode):
                _fail(errno.EISDIR, path)
        direct = direct and self.supports_direct
        return MemoryFile(self, inode, path, writable=mode != "read", direct=direct)

    def _open_new(self, path: str, mode: OpenMode) -> int:
        directory, name, entries = self._parent(path)
        inode = entries.get(name)
        if inode is not None:
            if mode == "create":
                _fail(errno.EEXIST, path)
            if isinstance(self._nodes[inode], DirectoryNode):
                return inode
        with self._mutation(f"open_{mode}", path):
            if inode is None:
                return self._add(directory, name, FileNode())
            self._resize(inode, 0)
            return inode

    def stat(self, path: str) -> FileStat:
        with self._mutex:
            self.check_alive()
            inode = self._resolve(path)
            node = self._nodes[inode]
        is_directory = isinstance(node, DirectoryNode)
        size = node.content.size if isinstance(node, FileNode) else 0
        return FileStat(size=size, device=_DEVICE, inode=inode, is_directory=is_directory)

    def list_directory(self, path: str) -> list[str]:
        with self._mutex:
            self.check_alive()
            return sorted(self._directory(self._resolve(path), path).entries)

    def make_directory(self, path: str) -> None:
        with self._mutex:
            self.check_alive()
            directory, name, entries = self._parent(path)
            if name in entries:
                _fail(errno.EEXIST, path)
            with self._mutation("make_directory", path):
                self._add(directory, name, DirectoryNode({}, {}))

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            self.check_alive()
            old_directory, old_name, old_entries = self._parent(source)
            inode = old_entries.get(old_name) or _fail(errno.ENOENT, source, target)
            directory, name, entries = self._parent(target)
            if name in entries:
                _fail(errno.EEXIST, source, target)
            if f"{_plain(target)}/".startswith(f"{_plain(source)}/"):
                _fail(errno.EINVAL, source, target)
            with self._mutation("rename", source, target):
                self._link(old_directory, old_name, None)
                self._link(directory, name, inode)
                names = (inode, old_directory, old_name, directory, name)
                self._names += (NameEffect(self._tick(), "move", *names),)

    def unlink(self, path: str) -> None:
        with self._mutex:
            self.check_alive()
            directory, name, entries = self._parent(path)
            inode = entries.get(name) or _fail(errno.ENOENT, path)
            if isinstance(self._nodes[inode], DirectoryNode):
                _fail(errno.EISDIR, path)
            with self._mutation("unlink", path):
                self._link(directory, name, None)
                self._names += (NameEffect(self._tick(), "remove", inode, directory, name),)

    def sync_directory(self, path: str) -> None:
        with self._mutex:
            self.check_alive()
            inode = self._resolve(path)
            self._directory(inode, path)
            with self._mutation("sync_directory", path):
                entries = {
                    at: dict(node.durable)
                    for at, node in self._nodes.items()
                    if isinstance(node, DirectoryNode)
                }
                self._names = sync_names(self._names, inode, entries)
                for at, durable in entries.items():
                    self._nodes[at] = DirectoryNode(self._directory(at, path).entries, durable)

    def lock(self, path: str, owner: str) -> MemoryLock:
        with self._mutex:
            self.check_alive()
            directory, name, entries = self._parent(path)
            inode = entries.get(name)
            if inode is not None and isinstance(self._nodes[inode], DirectoryNode):
                _fail(errno.EISDIR, path)
            if inode in self._locks:
                text = self.file_node(inode).content
                raise LockHeld(text.read(0, text.size).decode())
            with self._mutation("lock", path):
                if inode is None:
                    inode = self._add(directory, name, FileNode())
                text = EMPTY.write(0, owner.encode())
                self._nodes[inode] = FileNode(text, text, is_lock=True)
                taken = self._locks[inode] = MemoryLock(self, inode, path)
            return taken

    def open_pins(self, path: str) -> MemoryPinFile:
        with self._mutex:
            self.check_alive()
            inode = self._resolve(path)
            if isinstance(self._nodes[inode], DirectoryNode):
                _fail(errno.EISDIR, path)
            file = MemoryPinFile(self, path)
            self._pins[file] = (inode, frozenset())
        return file

    def lock_holder(self, path: str) -> str | None:
        with self._mutex:
            self.check_alive()
            _, name, entries = self._parent(path)
            inode = entries.get(name)
            if inode not in self._locks:
                return None
            text = self.file_node(inode).content
            return text.read(0, text.size).decode()

    def in_memory(self, path: str) -> bool:
        with self._mutex:
            self.check_alive()
            self._resolve(path)
            return self.volatile

    def doubts(self, path: str) -> str | None:
        """It is what the tests are made for."""
        return None

    def host_path(self, path: str) -> str | None:
        """Nothing outside this process can see it."""
        return None

    def free_bytes(self, path: str) -> int:
        with self._mutex:
            self.check_alive()
            self._resolve(path)
            return max(0, self.capacity_bytes - self._used_bytes())

    def _used_bytes(self) -> int:
        named: set[int] = set()
        for node in self._nodes.values():
            if isinstance(node, DirectoryNode):
                named.update(node.entries.values())
        files = (node for inode in named if isinstance(node := self._nodes[inode], FileNode))
        return sum(-(-file.content.size // PAGE) * PAGE for file in files)

    def _check_room(self, inode: int, path: str, size: int) -> None:
        growth = size - self.file_node(inode).content.size
        if growth > 0 and growth > self.capacity_bytes - self._used_bytes():
            _fail(errno.ENOSPC, path)


def _parts(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _plain(path: str) -> str:
    return "/".join(_parts(path))
