"""Host buffers: page-aligned memory that is allocated and touched once and then used for ever.

Fresh memory is an order of magnitude slower than warm memory, so the pool keeps what it has: as
many buffers as were ever lent at once, each large enough for what it served. `trim` gives back. The
budget says from when on memory that waits makes way for other sizes; who may be lent how much is
for `host_cache` to say.

Contract: a `Buffer` has one owner, who calls `release` when done; acquiring and releasing is safe
from any thread, the bytes are the owner's to guard. `share` gives a second buffer over the same
memory. Memory goes back on the free list only when every buffer over it was released *and* the last
view made of one (memoryview, array, tensor) is gone: whoever holds a view can neither crash nor see
another object's bytes. A buffer that is dropped without `release` comes back in the same way.
`shardstore.torch` registers buffers with CUDA.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Any

from shardstore.errors import ClosedError, UnavailableError, UsageError

PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20
# (capacities from, granule): rounding wastes little and similar sizes still share buffers.
_GRANULES = ((32 << 20, HUGE_PAGE_BYTES), (1 << 20, 64 << 10), (0, PAGE_BYTES))


class HostMemory:
    """One aligned stretch of anonymous memory. It is unmapped when nobody refers to it."""

    __slots__ = ("__weakref__", "_map", "_start", "address", "capacity", "leases", "registered")

    def __init__(self, capacity: int) -> None:
        huge = capacity >= 2 * HUGE_PAGE_BYTES
        self._map = _map_anonymous(capacity + (HUGE_PAGE_BYTES if huge else 0))
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._start = -base % (HUGE_PAGE_BYTES if huge else PAGE_BYTES)
        self.address = base + self._start
        self.capacity = capacity
        self.leases = 0
        """Exporters that are alive; the pool's to count."""
        self.registered: bool | None = None
        """Whether CUDA knows this memory; None until somebody asked."""
        ctypes.memset(self.address, 0, capacity)

    def lend(self) -> Any:
        """A fresh exporter of the whole memory: it dies with the last view made through it."""
        return (ctypes.c_ubyte * self.capacity).from_buffer(self._map, self._start)


class Buffer:
    """Writable memory of an exact size, lent by a pool or wrapped."""

    __slots__ = ("_view", "address", "memory", "size")

    def __init__(self, view: memoryview, address: int, memory: HostMemory | None) -> None:
        self._view: memoryview | None = view
        self.size = view.nbytes
        self.address = address
        self.memory = memory
        """The pool's memory below this buffer; None if it is the caller's, or after `release`."""

    @classmethod
    def wrap(cls, memory: Any, size: int | None = None) -> Buffer:
        """The caller's own writable, contiguous memory, or the first `size` bytes of it."""
        view = _writable_bytes(memory)
        if size is not None and size > view.nbytes:
            raise UsageError(
                f"the buffer given with into= has {view.nbytes} bytes, expected {size} or more"
            )
        view = view[:size]
        address = ctypes.addressof(ctypes.c_char.from_buffer(view)) if view.nbytes else 0
        return cls(view, address, None)

    @property
    def view(self) -> memoryview:
        """All bytes of the buffer, writable."""
        if self._view is None:
            raise ClosedError("this buffer was released; acquire another")
        return self._view

    @property
    def aligned(self) -> bool:
        """Whether address and size suit direct I/O."""
        return self.address % PAGE_BYTES == 0 and self.size % PAGE_BYTES == 0

    def release(self) -> None:
        """Give the memory back (once its views are gone). More calls do nothing."""
        self._view = self.memory = None


class BufferPool:
    """Hands out buffers and takes them back; see the module for who owns what."""

    def __init__(self, budget_bytes: int | None = None) -> None:
        self.budget_bytes = budget_bytes
        """Free memory is given back before more is taken than this; None: only what is too small
        for a wish makes way for it."""
        self._lock = threading.Lock()
        self._free: list[HostMemory] = []
        """Sorted by capacity."""
        self._returned: deque[HostMemory] = deque()
        """Filled by finalizers, which may run anywhere and so take no lock."""
        self._all: weakref.WeakSet[HostMemory] = weakref.WeakSet()
        """What an interrupt keeps from its owner goes, and is not counted any more."""

    @property
    def allocated_bytes(self) -> int:
        """Memory that the pool has, lent or free."""
        with self._lock:
            return self._allocated()

    @property
    def free_bytes(self) -> int:
        """Memory that waits to be lent."""
        with self._lock:
            self._collect()
            return sum(memory.capacity for memory in self._free)

    @property
    def lent_bytes(self) -> int:
        """Memory over which somebody holds a buffer or a view."""
        with self._lock:
            self._collect()
            return self._allocated() - sum(memory.capacity for memory in self._free)

    def acquire(self, size: int) -> Buffer:
        """A buffer of exactly `size` bytes with any content."""
        capacity = _capacity(size)
        with self._lock:
            self._collect()
            memory = self._take(capacity)
        if memory is None:
            memory = self._allocate(capacity)
        return self._lend(memory, size)

    def share(self, buffer: Buffer) -> Buffer:
        """Another buffer over the memory of one that this pool lent. Neither may be written to
        while both are there."""
        assert buffer.memory is not None
        return self._lend(buffer.memory, buffer.size)

    def is_shared(self, buffer: Buffer) -> bool:
        """Whether there is another buffer, or a view of one, over the same memory."""
        assert buffer.memory is not None
        with self._lock:
            self._collect()
            return buffer.memory.leases > 1

    def _lend(self, memory: HostMemory, size: int) -> Buffer:
        with self._lock:
            memory.leases += 1
        exporter = memory.lend()
        # The registry of finalizers keeps the memory mapped for as long as the exporter lives.
        weakref.finalize(exporter, self._returned.append, memory).atexit = False
        return Buffer(memoryview(exporter).cast("B")[:size], memory.address, memory)

    def trim(self) -> int:
        """Give all free memory back to the system; returns how many bytes that was."""
        with self._lock:
            self._collect()
            given = sum(memory.capacity for memory in self._free)
            self._free.clear()
        return given

    def _take(self, capacity: int) -> HostMemory | None:
        """The smallest free memory that holds the wish, however large: then no more exists than
        was ever lent at once. Where none does, one that is too small makes way."""
        index = bisect_left(self._free, capacity, key=_capacity_of)
        if index == len(self._free):
            if self._free:
                self._free.pop()
            while self._free and self._is_over(capacity):
                self._free.pop()
            return None
        found = self._free[index].capacity
        # Of equal ones the last to come back: it is the warmest.
        return self._free.pop(bisect_right(self._free, found, key=_capacity_of) - 1)

    def _is_over(self, capacity: int) -> bool:
        budget = self.budget_bytes
        return budget is not None and self._allocated() + capacity > budget

    def _allocated(self) -> int:
        """The caller holds the lock."""
        return sum(memory.capacity for memory in self._all)

    def _allocate(self, capacity: int) -> HostMemory:
        try:
            memory = HostMemory(capacity)
            with self._lock:
                self._all.add(memory)
            return memory
        except (OSError, MemoryError, ValueError, OverflowError) as error:
            have = self.allocated_bytes
            raise UnavailableError(
                f"no memory for a buffer of {capacity} bytes beside the {have} bytes that the "
                f"store's buffers have: {error}; close loaded objects or use smaller parts"
            ) from error

    def _collect(self) -> None:
        """Put what came back on the free list. The caller holds the lock."""
        while self._returned:
            memory = self._returned.popleft()
            memory.leases -= 1
            if not memory.leases:
                insort(self._free, memory, key=_capacity_of)


def _capacity_of(memory: HostMemory) -> int:
    return memory.capacity


def _capacity(size: int) -> int:
    granule = next(granule for start, granule in _GRANULES if size >= start)
    return max(PAGE_BYTES, -(-size // granule) * granule)


def _map_anonymous(length: int) -> mmap.mmap:
    """Private where the system knows the word: shared memory gets no huge pages."""
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, length)


def _writable_bytes(memory: Any) -> memoryview:
    try:
        view = memoryview(memory)
    except TypeError:
        raise UsageError(
            f"into= takes writable memory, found {type(memory).__name__}; "
            "pass a bytearray, a memoryview, a numpy array or tensor.numpy()"
        ) from None
    if view.readonly or not view.c_contiguous:
        found = "read-only" if view.readonly else "non-contiguous"
        raise UsageError(f"into= takes writable, contiguous memory, found {found} memory")
    return view.cast("B") if view.nbytes else memoryview(bytearray())
