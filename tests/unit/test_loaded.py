"""Loaded objects: views of one buffer, read-only or exclusive, dead after close or donation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shardstore.buffers import BufferPool
from shardstore.errors import ClosedError, InvalidTensorError
from shardstore.format.layout import parse_header
from shardstore.loaded import Checkout, LoadedObject
from tests.support.objects import bytes_of, make_file, tensor_of

TENSORS = {
    "w": tensor_of("F32", (3, 4), 1),
    "a/b": tensor_of("I64", (), 2),
    "none": tensor_of("F16", (0, 2), 3),
}


def load(
    kind: Callable[..., LoadedObject] = LoadedObject,
    tensors: dict[str, torch.Tensor] = TENSORS,
    pool: BufferPool | None = None,
    **arguments: Any,
) -> Any:
    data = make_file(tensors)
    buffer = (pool or BufferPool()).acquire(len(data))
    buffer.view[:] = data
    return kind(buffer, parse_header(data[:4096], file="f"), **arguments)


USES: dict[str, Callable[[LoadedObject], Any]] = {
    "raw": lambda loaded: loaded.raw("w"),
    "numpy": lambda loaded: loaded.numpy(),
    "torch": lambda loaded: loaded.torch(),
}


def test_an_object_says_what_it_is() -> None:
    with load() as loaded:
        assert (loaded.shard, loaded.part, loaded.step) == ("block_000", "params", 12)
        assert loaded.names == ("w", "a/b", "none")
        assert [(s.name, s.dtype, s.shape) for s in loaded.specs] == [
            ("w", "F32", (3, 4)),
            ("a/b", "I64", ()),
            ("none", "F16", (0, 2)),
        ]
    assert loaded.closed


@pytest.mark.req("S10")
@pytest.mark.parametrize("kind", [LoadedObject, Checkout])
def test_tensors_are_views_of_the_buffer(kind: type[LoadedObject]) -> None:
    loaded = load(kind)
    start = loaded._buffer.address
    arrays, tensors = loaded.numpy(), loaded.torch()
    for entry in loaded.header.layout.tensors:
        name = entry.spec.name
        if entry.spec.nbytes:
            assert arrays[name].ctypes.data == tensors[name].data_ptr() == start + entry.begin
        assert bytes(loaded.raw(name)) == arrays[name].tobytes() == bytes_of(TENSORS[name])
        assert arrays[name].shape == tuple(tensors[name].shape) == entry.spec.shape
        assert tensors[name].dtype == TENSORS[name].dtype


def test_a_loaded_object_refuses_writing_where_it_can() -> None:
    loaded = load()
    with pytest.raises(ValueError, match="read-only"):
        loaded.numpy()["w"][0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        loaded.numpy()["w"].flags.writeable = True
    with pytest.raises(TypeError, match="read-only"):
        loaded.raw("w")[0] = 1


@pytest.mark.filterwarnings("error")
def test_a_checkout_is_changed_in_place_through_any_view() -> None:
    checkout = load(Checkout)
    checkout.torch()["w"].fill_(2)
    assert (checkout.numpy()["w"] == 2).all()
    checkout.numpy()["a/b"][...] = 5
    assert checkout.torch()["a/b"] == 5
    checkout.raw("w")[:4] = np.float32(7).tobytes()
    assert checkout.torch()["w"][0, 0] == 7


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_after_close_everything_raises(use: Callable[[LoadedObject], Any]) -> None:
    loaded = load()
    loaded.close()
    loaded.close()
    with pytest.raises(ClosedError, match="shard 'block_000' part 'params' of step 12 was closed"):
        use(loaded)


@pytest.mark.parametrize("use", [*USES.values(), Checkout.take], ids=[*USES, "take"])
def test_after_donation_everything_raises(use: Callable[[Any], Any]) -> None:
    closed: list[LoadedObject] = []
    checkout = load(Checkout, on_close=closed.append)
    buffer = checkout.take()
    assert len(buffer.view) == checkout.header.layout.total_bytes and checkout.closed
    with pytest.raises(ClosedError, match="donated"):
        use(checkout)
    checkout.close()
    assert not closed and len(buffer.view)


def test_close_gives_the_buffer_to_its_owner_or_the_pool() -> None:
    pool = BufferPool()
    closed: list[LoadedObject] = []
    with load(pool=pool):
        assert pool.free_bytes == 0
    assert pool.free_bytes == pool.allocated_bytes == 8192
    loaded = load(pool=pool, on_close=closed.append)
    loaded.close()
    loaded.close()
    assert closed == [loaded]


def test_views_keep_their_bytes_after_close() -> None:
    pool = BufferPool()
    loaded = load(pool=pool)
    tensor, array, memory = loaded.torch()["w"], loaded.numpy()["w"], loaded.raw("w")
    loaded.close()
    other = pool.acquire(8192)
    other.view[:] = bytes(8192)
    other.release()
    pool.trim()
    assert bytes_of(tensor) == array.tobytes() == bytes(memory) == bytes_of(TENSORS["w"])


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F8_E5M2"])
def test_numpy_refuses_by_name_what_it_has_no_word_for(dtype: str) -> None:
    loaded = load(tensors={"w": tensor_of(dtype, (2,), 1)})
    with pytest.raises(InvalidTensorError, match=rf"'w': found dtype {dtype}.*\.torch\(\)"):
        loaded.numpy()
    assert bytes(loaded.raw("w")) == bytes_of(loaded.torch()["w"])


def test_an_unknown_tensor_is_named_beside_those_there_are() -> None:
    with pytest.raises(InvalidTensorError, match=r"no tensor 'x', only \['w', 'a/b', 'none'\]"):
        load().raw("x")
