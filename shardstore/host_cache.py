"""The store's own cache: host buffers that hold objects, within a budget.

Direct I/O never sees the page cache, so that what will be read again soon has to be kept here:
what was just committed or loaded. An entry stands for a slot and a write id, so that a slot that
was written again never answers for what it held before (rule 9).

Contract: `share` serves an object without a copy, read-only; `take` hands its memory out for
change, and the entry is gone then. `acquire` keeps what the store holds by its own will within the
budget: it gives up the entries used longest ago, then waits for writes in flight; what callers hold
open counts, but is never refused. Any thread may call.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardstore.buffers import Buffer, BufferPool
from shardstore.format.layout import ObjectHeader
from shardstore.format.manifest import ObjectRef
from shardstore.fs.system import memory_bytes

_DEFAULT_SHARE = 4


def default_budget_bytes() -> int:
    """A quarter of the machine's memory."""
    return memory_bytes() // _DEFAULT_SHARE


@dataclass(slots=True)
class _Entry:
    write: tuple[int, int]
    """Epoch and counter."""
    buffer: Buffer
    header: ObjectHeader
    ahead: bool
    """Prefetched, and not used yet."""


class HostCache:
    """See the module's docstring."""

    def __init__(self, pool: BufferPool, budget_bytes: int) -> None:
        self.pool = pool
        self.budget_bytes = budget_bytes
        self.make_room: Callable[[], bool] = lambda: False
        """Lets go of one buffer that only a write in flight needs, waiting for it; False where
        there is none. Called without locks."""
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        """By slot; used longest ago first."""
        self._lock = threading.Lock()

    def acquire(self, size: int) -> Buffer:
        """A buffer for staging or loading."""
        while self._is_over(size):
            if not self._evict() and not self.make_room():
                break
        return self.pool.acquire(size)

    def acquire_ahead(self, size: int) -> Buffer | None:
        """A buffer for prefetching: None where it would cost anything but old entries."""
        while self._is_over(size):
            if not self._evict(spare_ahead=True):
                return None
        return self.pool.acquire(size)

    def share(self, reference: ObjectRef) -> tuple[Buffer, ObjectHeader] | None:
        """The object for reading; the buffer is the caller's to release."""
        with self._lock:
            entry = self._find(reference)
            if entry is None:
                return None
            entry.ahead = False
            self._entries.move_to_end(reference.slot)
            return self.pool.share(entry.buffer), entry.header

    def take(self, reference: ObjectRef) -> tuple[Buffer, ObjectHeader] | None:
        """The object for change, without a copy: None where it is not here or somebody reads it."""
        with self._lock:
            entry = self._find(reference)
            if entry is None or self.pool.is_shared(entry.buffer):
                return None
            del self._entries[reference.slot]
        return entry.buffer, entry.header

    def put(
        self, reference: ObjectRef, buffer: Buffer, header: ObjectHeader, *, ahead: bool = False
    ) -> None:
        """Keep an object, or release its buffer where the budget is used up. Takes the buffer."""
        if buffer.memory is None or self.pool.lent_bytes > self.budget_bytes:
            buffer.release()
            return
        with self._lock:
            old = self._entries.pop(reference.slot, None)
            write = (reference.epoch, reference.counter)
            self._entries[reference.slot] = _Entry(write, buffer, header, ahead)
        if old is not None:
            old.buffer.release()

    def holds(self, reference: ObjectRef) -> bool:
        """Whether `share` would give it."""
        with self._lock:
            return self._find(reference) is not None

    def forget(self, slots: Iterable[int]) -> None:
        """Give up what these slots held."""
        with self._lock:
            gone = [self._entries.pop(slot) for slot in slots if slot in self._entries]
        for entry in gone:
            entry.buffer.release()

    def clear(self) -> None:
        """Give up every entry."""
        with self._lock:
            entries, self._entries = list(self._entries.values()), OrderedDict()
        for entry in entries:
            entry.buffer.release()

    def _find(self, reference: ObjectRef) -> _Entry | None:
        entry = self._entries.get(reference.slot)
        if entry is None or entry.write != (reference.epoch, reference.counter):
            return None
        return entry

    def _is_over(self, size: int) -> bool:
        return self.pool.lent_bytes + size > self.budget_bytes

    def _evict(self, *, spare_ahead: bool = False) -> bool:
        with self._lock:
            for slot, entry in self._entries.items():
                if not (spare_ahead and entry.ahead):
                    del self._entries[slot]
                    entry.buffer.release()
                    return True
        return False
