"""Slots: the files that hold objects, and which of them may be written.

Invariants: a slot is handed out only while nothing needs it (rule 5); one whose creation is not
yet synced keeps its flag until a directory sync returned, whichever transaction uses it (rule 7);
one whose sync failed is never written again (rule 8). Callers hold the context's mutex.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from contextlib import suppress

from shardstore.format.names import OBJECTS_DIRECTORY, slot_file, slot_number
from shardstore.fs.protocol import FileSystem


class SlotTable:
    """Free slots by size. Lowest numbers first, so that the same history uses the same slots."""

    def __init__(self, fs: FileSystem, root: str, needed: set[int]) -> None:
        self._fs = fs
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
        cannot be removed stays free."""
        wanted = {self._sizes.get(slot) for slot in self._needed_at_opening}
        odd = [slot for size, free in self._free.items() if size not in wanted for slot in free]
        with suppress(OSError):
            self.unlink(odd)

    def size(self, slot: int) -> int:
        """Bytes of the slot's file."""
        return self._sizes[slot]

    def excess(self, spare: Mapping[int, int]) -> list[int]:
        """Free slots beyond the first `spare[size]` of each size, those with the lowest numbers."""
        return sorted(
            slot for size, free in self._free.items() for slot in sorted(free)[spare.get(size, 0) :]
        )

    def unlink(self, slots: Iterable[int]) -> None:
        """Remove the files of free slots. What cannot be removed stays free and is raised."""
        ahead = set(slots)
        for size, free in list(self._free.items()):
            self._free[size] = [slot for slot in free if slot not in ahead]
            heapq.heapify(self._free[size])
        failed: OSError | None = None
        for slot in sorted(ahead):
            try:
                self._fs.unlink(f"{self._root}/{slot_file(slot)}")
            except OSError as error:
                self._pool(slot)
                failed = failed or error
            else:
                del self._sizes[slot]
                self._unsynced.discard(slot)
        if failed is not None:
            raise failed

    def reserve(self, size: int) -> tuple[int, bool]:
        """A slot for an object of `size` bytes, and whether its file must be created."""
        free = self._free.get(size)
        if free:
            return heapq.heappop(free), False
        slot = self._next
        self._next += 1
        return slot, True

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

    def flagged(self) -> frozenset[int]:
        """Slots that are not yet durable as a name."""
        return frozenset(self._unsynced)

    def directory_synced(self, flagged: frozenset[int]) -> None:
        """A sync of the directory returned that began when these were flagged."""
        self._unsynced -= flagged

    def _pool(self, slot: int) -> None:
        heapq.heappush(self._free.setdefault(self._sizes[slot], []), slot)
