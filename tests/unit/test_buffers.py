"""Host buffers: aligned, reused, and never lent twice while somebody still looks at them."""

from __future__ import annotations

import ctypes
import gc
import threading
from typing import Any

import numpy as np
import pytest
import torch

from shardstore.buffers import Buffer, BufferPool
from shardstore.errors import ClosedError, UnavailableError, UsageError
from shardstore.torch import register_host_memory

SIZES = [0, 1, 4096, 4097, 1 << 20, (5 << 20) + 1, 33 << 20]


def address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@pytest.mark.req("S10")
@pytest.mark.parametrize("size", SIZES)
def test_a_buffer_is_aligned_writable_and_of_exactly_its_size(size: int) -> None:
    buffer = BufferPool().acquire(size)
    view = buffer.view
    assert (len(view), view.format, view.readonly) == (size, "B", False)
    assert buffer.size == size and buffer.address % 4096 == 0
    assert buffer.aligned == (size % 4096 == 0)
    if size:
        assert address_of(view) == buffer.address
        view[0] = view[-1] = 7


@pytest.mark.req("S10")
@pytest.mark.parametrize("size", SIZES)
def test_a_released_buffer_is_used_again(size: int) -> None:
    pool = BufferPool()
    first = pool.acquire(size)
    address, allocated = first.address, pool.allocated_bytes
    assert allocated >= max(size, 1) and pool.free_bytes == 0
    first.release()
    first.release()
    assert pool.free_bytes == pool.allocated_bytes == allocated
    again = pool.acquire(size)
    assert again.address == address and pool.free_bytes == 0
    assert pool.acquire(size).address != address
    assert pool.allocated_bytes == 2 * allocated


@pytest.mark.parametrize(
    "look",
    [
        lambda view: view[100:200],
        lambda view: view.toreadonly(),
        lambda view: torch.frombuffer(view[:400], dtype=torch.float32)[3:],
        lambda view: np.frombuffer(view, np.float32)[5:],
        lambda view: np.ndarray((4,), np.float64, buffer=view),
    ],
    ids=["slice", "read-only", "torch", "numpy", "ndarray"],
)
def test_memory_with_a_live_view_is_not_lent_again(look: Any) -> None:
    pool = BufferPool()
    buffer = pool.acquire(8192)
    buffer.view[:] = bytes([3]) * 8192
    seen = look(buffer.view)
    address = buffer.address
    buffer.release()
    assert pool.free_bytes == 0
    other = pool.acquire(8192)
    assert other.address != address
    other.view[:] = bytes(8192)
    assert np.asarray(seen).tobytes()[:4] == bytes([3]) * 4
    del seen
    assert pool.free_bytes == 8192
    assert pool.acquire(8192).address == address


def test_a_view_outlives_trim_and_pool() -> None:
    pool = BufferPool()
    buffer = pool.acquire(8192)
    seen = torch.frombuffer(buffer.view, dtype=torch.uint8)
    seen.fill_(9)
    buffer.release()
    assert pool.trim() == 0
    del pool, buffer
    gc.collect()
    assert int(seen.sum(dtype=torch.int64)) == 9 * 8192


def test_a_dropped_buffer_comes_back_even_from_a_cycle() -> None:
    pool = BufferPool()
    buffer = pool.acquire(4096)
    cycle: list[Any] = [buffer.view]
    cycle.append(cycle)
    del buffer, cycle
    gc.collect()
    assert pool.free_bytes == 4096


def test_as_many_buffers_exist_as_were_lent_at_once() -> None:
    pool = BufferPool()
    for size in (1 << 20, 100 << 20, 10 << 20, 90 << 20):
        buffer = pool.acquire(size)
        assert len(buffer.view) == size
        buffer.release()
        del buffer
    assert pool.allocated_bytes == pool.free_bytes == 100 << 20
    both = pool.acquire(100 << 20), pool.acquire(1 << 20)
    assert pool.allocated_bytes == 101 << 20
    assert both[0].address != both[1].address


def test_trim_gives_free_memory_back_and_keeps_lent() -> None:
    pool = BufferPool()
    kept, freed = pool.acquire(4096), pool.acquire(8192)
    freed.release()
    assert pool.trim() == 8192
    assert (pool.allocated_bytes, pool.free_bytes) == (4096, 0)
    kept.release()
    assert pool.free_bytes == 4096


def test_a_released_buffer_refuses() -> None:
    buffer = BufferPool().acquire(1)
    buffer.release()
    with pytest.raises(ClosedError, match="released"):
        _ = buffer.view


def test_memory_that_is_not_there_is_an_error_of_the_store() -> None:
    pool = BufferPool()
    with pytest.raises(UnavailableError, match="no memory for a buffer"):
        pool.acquire(1 << 60)
    assert pool.allocated_bytes == 0


def test_threads_never_share_a_buffer() -> None:
    pool, wrong = BufferPool(), []

    def work(mark: int) -> None:
        for _ in range(300):
            buffer = pool.acquire(4096)
            buffer.view[:] = bytes([mark]) * 4096
            if bytes(buffer.view) != bytes([mark]) * 4096:
                wrong.append(mark)
            buffer.release()

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.free_bytes == pool.allocated_bytes <= 6 * 4096


@pytest.mark.req("S10")
def test_the_callers_own_memory_is_wrapped() -> None:
    array = np.zeros((64, 64), np.float64)
    buffer = Buffer.wrap(array, 1000)
    buffer.view[:] = b"\1" * 1000
    assert buffer.address == array.ctypes.data and array.view(np.uint8).sum() == 1000
    base = BufferPool().acquire(16384).view
    assert Buffer.wrap(base).aligned and Buffer.wrap(base[4096:], 4096).aligned
    assert not Buffer.wrap(base[64:], 4096).aligned and not Buffer.wrap(base, 100).aligned
    assert len(Buffer.wrap(bytearray()).view) == 0


@pytest.mark.req("S10")
@pytest.mark.parametrize(
    ("memory", "word"),
    [
        (b"12345678", "read-only"),
        (np.zeros((4, 4)).T[1:], "non-contiguous"),
        (torch.zeros(4), "found Tensor"),
        (bytearray(7), "has 7 bytes, expected 8"),
    ],
    ids=["read-only", "strided", "tensor", "small"],
)
def test_memory_that_cannot_take_the_bytes_is_refused(memory: Any, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        Buffer.wrap(memory, 8)


def test_without_cuda_nothing_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    buffer = BufferPool().acquire(4096)
    assert register_host_memory(buffer) is False
    assert register_host_memory(Buffer.wrap(bytearray(8))) is False


class Runtime:
    """Stands for CUDA's runtime: says what was registered."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.calls: list[tuple[Any, ...]] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls.append(("register", address, size, flags))
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("unregister", address))
        return 0


@pytest.mark.parametrize("code", [0, 2])
def test_memory_is_registered_once_and_unregistered_before_it_goes(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    runtime = Runtime(code)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    pool = BufferPool()
    address = pool.acquire(5000).address
    for _ in range(3):
        buffer = pool.acquire(5000)
        assert buffer.address == address
        assert register_host_memory(buffer) is (code == 0)
        buffer.release()
    expected: list[tuple[Any, ...]] = [("register", address, 8192, 0)]
    assert runtime.calls == expected
    pool.trim()
    assert runtime.calls == expected + [("unregister", address)] * (code == 0)


@pytest.mark.gpu
def test_registered_memory_is_pinned() -> None:
    pool = BufferPool()
    buffer = pool.acquire(8 << 20)
    assert register_host_memory(buffer)
    assert torch.frombuffer(buffer.view, dtype=torch.uint8).is_pinned()
    buffer.release()
    pool.trim()
    assert register_host_memory(pool.acquire(8 << 20))
