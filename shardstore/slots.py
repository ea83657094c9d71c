"""Slots: the files that hold objects, and which of them may be written.

Invariants: a slot is handed out only while nothing needs it (rule 5) and no reader pins it (rule
10: asked when it is handed out, long after it was un-kept; a pinned one waits here); one whose
creation is not yet synced keeps its flag until a directory sync returned, whichever transaction
uses it (rule 7); one whose sync failed is never written again (rule 8). Callers hold the session's
lock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from shardstore.format.names import OBJECTS_DIRECTORY, slot_file, slot_number
from shardstore.fs.protocol import FileSystem
from shardstore.pins import Pins


class SlotTable:
    """Free slots by size. Lowest numbers first, so that the same history uses the same slots."""

    def __init__(self, fs: FileSystem, root: str, needed: set[int], pins: Pins) -> None:
        self._fs = fs
        self._pins = pins
        self._root = root
        self._needed_at_opening = frozenset(needed)
        self._sizes: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}
        self._unsynced: set[int] = set()
        for name in fs.list_directory(f"{root}/{OBJECTS_DIRECTORY}"):
            slot = slot_number(name)
            if slot is not None:
                self._sizes[slot] = fs.stat(f"{root}/{slot_file(slot)}").size
                if slot not in needed:
                    self._pool(slot)
        self._next = 1 + max([-1, *self._sizes, *needed])

    def unlink_odd(self) -> None:
        """Remove free files of a size that no needed object has: what a crash left half made, and
        what a changed model left. Only at opening, once the new segment is visible; a file that
        cannot be removed, or is pinned, stays free."""
        wanted = {self._sizes.get(slot) for slot in self._needed_at_opening}
        for size in [size for size in self._free if size not in wanted]:
            for slot in self._free.pop(size):
                self._unlink(slot)

    def _unlink(self, slot: int) -> None:
        if self._pins.pinned((slot,)):
            self._pool(slot)
            return
        try:
            self._fs.unlink(f"{self._root}/{slot_file(slot)}")
        except OSError:
            self._pool(slot)
        else:
            del self._sizes[slot]

    def reserve(self, size: int) -> tuple[int, bool]:
        """A slot for an object of `size` bytes, and whether its file must be created."""
        found = self._take(self._free.get(size, []))
        if found is not None:
            return found, False
        slot = self._next
        self._next += 1
        return slot, True

    def _take(self, free: list[int]) -> int | None:
        """The lowest free slot that nobody pins; the others stay."""
        passed: list[int] = []
        found: int | None = None
        while free and found is None:
            slot = heapq.heappop(free)
            if self._pins.pinned((slot,)):
                passed.append(slot)
            else:
                found = slot
        for slot in passed:
            heapq.heappush(free, slot)
        return found

    def created(self, slot: int, size: int) -> None:
        """The slot's file exists now, but its name is not durable."""
        self._sizes[slot] = size
        self._unsynced.add(slot)

    def release(self, slots: Iterable[int]) -> None:
        """Nothing needs these any more and all their I/O has ended."""
        for slot in slots:
            if slot in self._sizes:
                self._pool(slot)

    def retire(self, slot: int) -> None:
        """Never hand this slot out again: its sync failed, so its bytes are unknown."""
        self._sizes.pop(slot, None)

    def unsynced(self, slots: Iterable[int]) -> bool:
        """Whether one of the slots is not yet durable as a name."""
        return not self._unsynced.isdisjoint(slots)

    def directory_synced(self) -> None:
        """A sync of the directory returned."""
        self._unsynced.clear()

    def _pool(self, slot: int) -> None:
        heapq.heappush(self._free.setdefault(self._sizes[slot], []), slot)
