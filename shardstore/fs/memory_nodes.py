"""What the in-memory file system is made of: contents, unsynced effects, files and directories.

Everything here is immutable, so that a clone of a file system shares all of it. A file has what
processes see (`content`), what the disk surely holds (`durable`) and the effects between the two
in order; a directory likewise, its effects being kept by the file system in one list, since a
rename concerns two directories. Sectors have 512 bytes: the grain at which a write may tear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import xxhash

SECTOR = 512
PAGE = 4096
_ZERO_PAGE = bytes(PAGE)


class Content:
    """Bytes of a file: the pages that are not all zero, and the size. Nothing lies beyond it."""

    __slots__ = ("_digest", "pages", "size")

    def __init__(self, pages: dict[int, bytes], size: int) -> None:
        self.pages: Mapping[int, bytes] = pages
        self.size = size
        self._digest: bytes | None = None

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes, short only at the end."""
        end = min(offset + length, self.size)
        return self.sectors(offset, end - offset) if end > offset else b""

    def sectors(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes, zeros beyond the size."""
        first, last = offset // PAGE, -(-(offset + length) // PAGE)
        joined = b"".join(self.pages.get(index, _ZERO_PAGE) for index in range(first, last))
        start = offset - first * PAGE
        return joined[start : start + length]

    def write(self, offset: int, data: bytes) -> Content:
        pages = dict(self.pages)
        overlay(pages, offset, data)
        return Content(pages, max(self.size, offset + len(data)) if data else self.size)

    def resize(self, size: int) -> Content:
        pages = dict(self.pages)
        if size < self.size:
            cut(pages, size)
        return Content(pages, size)

    @property
    def digest(self) -> bytes:
        if self._digest is None:
            state = xxhash.xxh3_128(self.size.to_bytes(8, "little"))
            for index in sorted(self.pages):
                state.update(index.to_bytes(8, "little"))
                state.update(self.pages[index])
            self._digest = state.digest()
        return self._digest


EMPTY = Content({}, 0)


def overlay(pages: dict[int, bytes], offset: int, data: bytes) -> None:
    """Write into pages; a page that becomes all zero is left out."""
    done, count = 0, len(data)
    while done < count:
        index, start = divmod(offset + done, PAGE)
        take = min(PAGE - start, count - done)
        piece = data[done : done + take]
        if take < PAGE:
            old = pages.get(index, _ZERO_PAGE)
            piece = old[:start] + piece + old[start + take :]
        if piece == _ZERO_PAGE:
            pages.pop(index, None)
        else:
            pages[index] = piece
        done += take


def cut(pages: dict[int, bytes], size: int) -> None:
    """Forget what lies at or beyond `size`."""
    last, rest = divmod(size, PAGE)
    for index in [index for index in pages if index >= last]:
        page = pages.pop(index)
        if index == last and page[:rest].strip(b"\0"):
            pages[index] = page[:rest] + bytes(PAGE - rest)


@dataclass(frozen=True, slots=True)
class SectorWrite:
    """Whole sectors as the page cache held them after a write."""

    sequence: int
    offset: int
    data: bytes

    @property
    def count(self) -> int:
        return len(self.data) // SECTOR

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    def identity(self) -> bytes:
        return b"w%d:" % self.offset + xxhash.xxh3_128_digest(self.data)


@dataclass(frozen=True, slots=True)
class SizeChange:
    """A new size, by a truncation or a write beyond the end."""

    sequence: int
    size: int
    shrinks: bool

    def identity(self) -> bytes:
        return b"s%d:" % self.size


FileEffect: TypeAlias = SectorWrite | SizeChange
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Sectors of one write that reached the disk: (first, end) pairs."""


@dataclass(frozen=True, slots=True)
class FileNode:
    content: Content = EMPTY
    durable: Content = EMPTY
    effects: tuple[FileEffect, ...] = ()
    lossy: bool = False
    """A failed sync threw data away: the disk no longer follows from the content alone."""
    is_lock: bool = False
    """Its text tells others who holds a lock and nothing about the state: not in digests, and
    not unsynced either."""

    def synced(self) -> FileNode:
        """After a sync that returned. What a failed one threw away stays lost."""
        if not self.lossy:
            return FileNode(self.content, self.content, is_lock=self.is_lock)
        durable = replay(self.durable, [(effect, _whole(effect)) for effect in self.effects])
        return FileNode(self.content, durable, (), durable.digest != self.content.digest)

    def dropped(self) -> FileNode:
        """After a sync that failed: the pages count as clean, the disk has the old ones. Sizes
        are kept by the journal and stay unsynced."""
        sizes = tuple(effect for effect in self.effects if isinstance(effect, SizeChange))
        return FileNode(self.content, self.durable, sizes, True, self.is_lock)


@dataclass(frozen=True, slots=True)
class DirectoryNode:
    entries: Mapping[str, int]
    durable: Mapping[str, int]


Node: TypeAlias = FileNode | DirectoryNode


def _whole(effect: FileEffect) -> Ranges:
    return ((0, effect.count),) if isinstance(effect, SectorWrite) else ((0, 0),)


def replay(durable: Content, chosen: Sequence[tuple[FileEffect, Ranges]]) -> Content:
    """The disk after some effects: sizes apart from data, cut at the end. A size change counts
    when its ranges are not empty."""
    pages, size = dict(durable.pages), durable.size
    for effect, ranges in chosen:
        if isinstance(effect, SectorWrite):
            for first, end in ranges:
                piece = effect.data[first * SECTOR : end * SECTOR]
                overlay(pages, effect.offset + first * SECTOR, piece)
        elif ranges:
            size = effect.size
            if effect.shrinks:
                cut(pages, size)
    cut(pages, size)
    return Content(pages, size)


@dataclass(frozen=True, slots=True)
class NameEffect:
    """An unsynced change of directory entries."""

    sequence: int
    kind: Literal["add", "remove", "move"]
    inode: int
    directory: int
    name: str
    target_directory: int = -1
    target_name: str = ""
    source_synced: bool = False

    def apply(self, entries: dict[int, dict[str, int]], *, leave_source: bool = False) -> None:
        """`leave_source`: a move of which only the new name reached the disk."""
        source = entries.setdefault(self.directory, {})
        if self.kind == "add":
            source[self.name] = self.inode
            return
        if self.kind == "move":
            entries.setdefault(self.target_directory, {})[self.target_name] = self.inode
        if not leave_source and source.get(self.name) == self.inode:
            del source[self.name]


def sync_names(
    effects: Sequence[NameEffect], directory: int, entries: dict[int, dict[str, int]]
) -> tuple[NameEffect, ...]:
    """Make the effects on one directory durable in `entries`; returns those still unsynced.

    A move out of the directory stays unsynced until its target directory is synced too, so that
    no order of syncs can lose the file; the target's sync alone may leave both names.
    """
    left: list[NameEffect] = []
    for effect in effects:
        if effect.kind != "move":
            if effect.directory == directory:
                effect.apply(entries)
            else:
                left.append(effect)
        elif effect.target_directory == directory:
            done = effect.source_synced or effect.directory == directory
            effect.apply(entries, leave_source=not done)
            if not done:
                left.append(replace(effect, kind="remove", target_directory=-1, target_name=""))
        elif effect.directory == directory:
            left.append(replace(effect, source_synced=True))
        else:
            left.append(effect)
    return tuple(left)
