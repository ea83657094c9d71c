"""The raw codec: tensors to the bytes of an object, with digests on the way.

Contract: tensors are numpy arrays or torch tensors on any device; neither library is imported
before one of its tensors is there. What is stored is exactly what was given, in C order and
little-endian, or it is refused by name before a byte is written. `format.layout` says where tensors
lie and writes the header; `shardstore.loaded` reads objects back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import xxhash

from shardstore.codecs import PIECE_BYTES, refusal
from shardstore.errors import InvalidNameError
from shardstore.format.digests import digest
from shardstore.format.layout import ObjectHeader, ObjectLayout, TensorSpec, plan_layout
from shardstore.format.names import check_data_name
from shardstore.format.placement import blank_label

Tensors = Mapping[str, Any]


class _Side(Protocol):
    def describe(self, tensor: Any, where: str) -> tuple[str, tuple[int, ...]]: ...

    def begin_copy(self, tensor: Any, memory: memoryview) -> Iterator[memoryview]: ...


def specs_of(tensors: Tensors, *, shard: str, part: str) -> list[TensorSpec]:
    """What the tensors are, in the mapping's order; InvalidNameError or InvalidTensorError."""
    specs = []
    for name, tensor in tensors.items():
        try:
            check_data_name("tensor", name)
        except InvalidNameError as error:
            raise InvalidNameError(f"shard {shard!r} part {part!r}: {error}") from None
        where = f"shard {shard!r} part {part!r} tensor {name!r}"
        dtype, shape = _side(tensor, where).describe(tensor, where)
        specs.append(TensorSpec(name=name, dtype=dtype, shape=shape))
    return specs


def blank_header(specs: Sequence[TensorSpec], shard: str, part: str) -> ObjectHeader:
    """Of an object whose tensors are still to be filled in; InvalidNameError or InvalidTensorError
    where there can be none."""
    names = [check_data_name("tensor", spec.name) for spec in specs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidNameError(f"shard {shard!r} part {part!r}: two tensors are named {twice!r}")
    layout = plan_layout(specs, shard, part)
    return ObjectHeader(layout=layout, label=blank_label(shard, part), digests=())


def zero_pads(view: memoryview, layout: ObjectLayout) -> None:
    """What lies between the tensors."""
    for begin, end in layout.pads:
        view[begin:end] = bytes(end - begin)


def fill(
    view: memoryview,
    layout: ObjectLayout,
    tensors: Tensors,
    filled: Callable[[int], None] = lambda end: None,
) -> list[str]:
    """Copy every tensor to its place in `view` (the whole file), zero the padding, and return the
    tensors' digests. The header region is left alone.

    `filled(end)` is told on the way that the file is complete from the header to `end`. Tensors on
    an accelerator are copied in the order of their device's current stream; on return every copy is
    complete, and the tensors may change.
    """
    copies = []
    for entry in layout.tensors:
        tensor = tensors[entry.spec.name]
        memory = view[entry.begin : entry.end]
        copies.append(_side(tensor, entry.spec.name).begin_copy(tensor, memory))
    zero_pads(view, layout)
    digests = []
    for entry, copy in zip(layout.tensors, copies, strict=True):
        state, end = xxhash.xxh3_128(), entry.begin
        for piece in copy:
            state.update(piece)
            end += piece.nbytes
            filled(end)
        digests.append(state.hexdigest())
    filled(len(view))
    return digests


def digests_of(view: memoryview, layout: ObjectLayout) -> list[str]:
    """The digests of the tensors that stand in `view` (the whole file) already."""
    return [digest(view[entry.begin : entry.end]) for entry in layout.tensors]


def copy_bytes(
    view: memoryview, layout: ObjectLayout, raw_of: Callable[[str], memoryview]
) -> list[str]:
    """As `fill`, from the bytes of tensors that are stored already (`LoadedObject.raw`)."""
    zero_pads(view, layout)
    return [
        _digest_pieces(_copy_pieces(view[entry.begin : entry.end], raw_of(entry.spec.name)))
        for entry in layout.tensors
    ]


def _copy_pieces(target: memoryview, source: memoryview) -> Iterator[memoryview]:
    for begin in range(0, len(target), PIECE_BYTES):
        end = begin + PIECE_BYTES
        target[begin:end] = source[begin:end]
        yield target[begin:end]


def _digest_pieces(pieces: Iterator[memoryview]) -> str:
    state = xxhash.xxh3_128()
    for piece in pieces:
        state.update(piece)
    return state.hexdigest()


def _side(tensor: object, where: str) -> _Side:
    """The library that the tensor is from, judged by names: asking must not import it."""
    for base in type(tensor).__mro__:
        library = base.__module__.partition(".")[0]
        if library == "torch" and base.__name__ == "Tensor":
            import shardstore.torch as torch_side

            # The codec's part of that module is not among its public names.
            return cast(_Side, torch_side)
        if library == "numpy" and base.__name__ == "ndarray":
            import shardstore.codecs.numpy_side as numpy_side

            return numpy_side
    kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
    raise refusal(where, f"a {kind}", "pass a torch tensor or a numpy array (numpy.asarray)")
