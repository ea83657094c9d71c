"""Loaded objects: tensors as views of the buffer that holds an object's bytes.

Contract: nothing is copied or parsed per tensor. A `LoadedObject` is read-only by contract: numpy
arrays and memoryviews of it refuse writing, torch knows no read-only tensors, so not writing to
them is the caller's promise (the bytes may be shared with other readers). A `Checkout` is exclusive
and writable until `take`.

After `close` the object's methods raise ClosedError. Views made before stay valid and keep their
bytes: pooled memory is not lent again before the last view of it is gone, so a forgotten view costs
memory and never correctness. After `take` views must no longer be written to. Objects may be used
from several threads; closing one twice does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shardstore.buffers import Buffer
from shardstore.errors import ClosedError, InvalidTensorError
from shardstore.format.layout import ObjectHeader, TensorEntry, TensorSpec

if TYPE_CHECKING:
    import torch

_TORCH_ONLY = frozenset({"BF16", "F8_E4M3", "F8_E5M2"})


class LoadedObject:
    """One object in memory, verified by whoever made this.

    `on_close` is called once, by the first `close`, and then owns the buffer; without one the
    buffer is released.
    """

    _writable = False

    def __init__(
        self,
        buffer: Buffer,
        header: ObjectHeader,
        on_close: Callable[[LoadedObject], None] | None = None,
    ) -> None:
        self._buffer: Buffer | None = buffer
        self._on_close = on_close
        self._gone = "closed; load it again"
        self.header = header
        self._places = {entry.spec.name: entry for entry in header.layout.tensors}

    @property
    def shard(self) -> str:
        return self.header.label.shard

    @property
    def part(self) -> str:
        return self.header.label.part

    @property
    def step(self) -> int:
        """The step that wrote the object; later commits may have kept it."""
        return self.header.label.step

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names, in the order in which they were staged."""
        return tuple(self._places)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return self.header.layout.specs

    @property
    def closed(self) -> bool:
        return self._buffer is None

    def raw(self, name: str) -> memoryview:
        """A tensor's bytes: little-endian, C order."""
        view = self._view()
        if name not in self._places:
            raise InvalidTensorError(f"{self} has no tensor {name!r}, only {list(self._places)}")
        memory = _slice(view, self._places[name])
        return memory if self._writable else memory.toreadonly()

    def numpy(self) -> dict[str, Any]:
        """All tensors as numpy arrays, which share the object's memory."""
        from shardstore.codecs import numpy_side

        view = self._view()
        for entry in self._places.values():
            if entry.spec.dtype in _TORCH_ONLY:
                raise InvalidTensorError(
                    f"{self} tensor {entry.spec.name!r}: found dtype {entry.spec.dtype}, which "
                    "numpy has no word for; use .torch(), or .raw(name) for the bytes"
                )
        return self._views(view, numpy_side.view)

    def torch(self) -> dict[str, torch.Tensor]:
        """All tensors as torch tensors, which share the object's memory."""
        import shardstore.torch as torch_side

        return self._views(self._view(), torch_side.view)

    def close(self) -> None:
        """Give the memory back. Views made before stay valid."""
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            return
        if self._on_close is None:
            buffer.release()
        else:
            self._on_close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"shard {self.shard!r} part {self.part!r} of step {self.step}"

    def _open_buffer(self) -> Buffer:
        buffer = self._buffer
        if buffer is None:
            raise ClosedError(f"{self} was {self._gone}")
        return buffer

    def _view(self) -> memoryview:
        return self._open_buffer().view

    def _views(self, view: memoryview, make: Callable[..., Any]) -> dict[str, Any]:
        return {
            name: make(
                _slice(view, entry), entry.spec.dtype, entry.spec.shape, writable=self._writable
            )
            for name, entry in self._places.items()
        }


class Checkout(LoadedObject):
    """An exclusive, writable object: change it, then stage it with `donate=True`."""

    _writable = True

    def take(self) -> Buffer:
        """Hand the buffer over; afterwards this object is dead and `close` does nothing."""
        buffer = self._open_buffer()
        self._gone = "donated; check it out again"
        self._buffer = None
        return buffer


def _slice(view: memoryview, entry: TensorEntry) -> memoryview:
    return view[entry.begin : entry.end]
