"""Slots: the files that hold objects, and which of them may be written.

Invariants: a slot is handed out only while nothing needs it (rule 5) and no reader pins it (rule
10: asked when it is handed out, long after it was un-kept; a pinned one waits here); one whose
creation is not yet synced keeps its flag until a directory sync returned, whichever transaction
uses it (rule 7); one whose sync failed is never written again (rule 8). A number has one file, of
one storage format: numbers are issued again after an opening only, which syncs the directory first,
so that no crash brings a removed file back. An interrupt may take a slot from whoever reserved it:
`recount` finds what nobody has. Callers hold the context's mutex.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from contextlib import suppress

from shardstore.format.names import OBJECTS_DIRECTORY, slot_file, slot_of
from shardstore.fs.calls import is_loss
from shardstore.fs.protocol import FileSystem
from shardstore.pins import Pins

Kind = tuple[str, int]
"""Storage format and size of a slot's file."""


class SlotTable:
    """Free slots by kind. Lowest numbers first, so that the same history uses the same slots."""

    def __init__(self, fs: FileSystem, root: str, needed: set[int], pins: Pins) -> None:
        self._fs = fs
        self._pins = pins
        self._root = root
        self._needed_at_opening = frozenset(needed)
        self._kinds: dict[int, Kind] = {}
        self._free: dict[Kind, list[int]] = {}
        self._pooled: set[int] = set()
        """All that is in `_free`."""
        self._unsynced: set[int] = set()
        self._loose: dict[int, str] = {}
        """Files that may be there and are no slots: being made, or being removed."""
        for name in fs.list_directory(f"{root}/{OBJECTS_DIRECTORY}"):
            place = slot_of(name)
            if place is None:
                continue
            slot, storage_format = place
            self._kinds[slot] = (storage_format, _size(fs, f"{root}/{slot_file(*place)}"))
            if slot not in needed:
                self._pool(slot)
        self._next = 1 + max([-1, *self._kinds, *needed])

    def unlink_odd(self) -> None:
        """Remove free files of a kind that no needed object has: what a crash left half made, and
        what a changed model or format left. Only at opening, once the new segment is visible; a
        file that cannot be removed stays free."""
        wanted = {self._kinds.get(slot) for slot in self._needed_at_opening}
        odd = [slot for kind, free in self._free.items() if kind not in wanted for slot in free]
        with suppress(OSError):
            self.unlink(odd)

    def size(self, slot: int) -> int:
        """Bytes of the slot's file."""
        return self._kinds[slot][1]

    def excess(self, spare: Mapping[Kind, int]) -> list[int]:
        """Free slots that nobody pins beyond the first `spare[kind]` of each kind, those with the
        lowest numbers."""
        found: list[int] = []
        for kind, free in self._free.items():
            loose = [slot for slot in sorted(free) if not self._pins.pinned((slot,))]
            found += loose[spare.get(kind, 0) :]
        return sorted(found)

    def unlink(self, slots: Iterable[int]) -> None:
        """Remove the files of free slots. What is pinned stays free; so does what cannot be
        removed, and that is raised."""
        ahead = set(slots)
        for kind, free in list(self._free.items()):
            self._free[kind] = [slot for slot in free if slot not in ahead]
            heapq.heapify(self._free[kind])
        self._pooled -= ahead
        failed: OSError | None = None
        for slot in sorted(ahead):
            if self._pins.pinned((slot,)):
                self._pool(slot)
                continue
            kind = self._kinds[slot]
            self._loose[slot] = kind[0]
            del self._kinds[slot]
            try:
                self._fs.unlink(f"{self._root}/{slot_file(slot, kind[0])}")
            except OSError as error:
                self._kinds[slot] = kind
                self._pool(slot)
                failed = failed or error
            else:
                self._unsynced.discard(slot)
            del self._loose[slot]
        if failed is not None:
            raise failed

    def reserve(self, size: int, storage_format: str) -> tuple[int, bool]:
        """A slot for an object of `size` bytes, and whether its file must be created."""
        found = self._take(self._free.get((storage_format, size), []))
        if found is not None:
            return found, False
        slot = self._next
        self._next += 1
        self._loose[slot] = storage_format
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
                self._pooled.discard(slot)
        for slot in passed:
            heapq.heappush(free, slot)
        return found

    def created(self, slot: int, size: int, storage_format: str) -> None:
        """The slot's file exists now, but its name is not durable."""
        self._kinds[slot] = (storage_format, size)
        self._unsynced.add(slot)
        self._loose.pop(slot, None)

    def recount(self, used: set[int]) -> None:
        """Besides `used` and what is free there is nothing: other slots are free, half-made files
        go. For after an interrupt, but cheap enough to be asked at every beginning."""
        self._pooled = set().union(*self._free.values())
        self.release(sorted(self._kinds.keys() - used - self._pooled))
        for slot in [slot for slot in self._loose if slot not in used]:
            with suppress(OSError):  # it may never have been made
                self._fs.unlink(f"{self._root}/{slot_file(slot, self._loose[slot])}")
            del self._loose[slot]

    def release(self, slots: Iterable[int]) -> None:
        """Nothing needs these any more and all their I/O has ended."""
        for slot in slots:
            if slot in self._kinds:
                self._pool(slot)

    def retire(self, slot: int) -> None:
        """Never hand this slot out again: its sync failed, so its bytes are unknown."""
        self._kinds.pop(slot, None)

    def flagged(self) -> frozenset[int]:
        """Slots that are not yet durable as a name."""
        return frozenset(self._unsynced)

    def directory_synced(self, flagged: frozenset[int]) -> None:
        """A sync of the directory returned that began when these were flagged."""
        self._unsynced -= flagged

    def _pool(self, slot: int) -> None:
        if slot in self._pooled:
            return
        self._pooled.add(slot)
        heapq.heappush(self._free.setdefault(self._kinds[slot], []), slot)


def _size(fs: FileSystem, path: str) -> int:
    """Of a file in a slot's place; of what is none, a size that no object has."""
    try:
        return fs.stat(path).size
    except OSError as error:
        if not is_loss(error):
            raise
        return -1
