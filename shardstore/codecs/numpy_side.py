"""Numpy's side of the raw codec: what can be stored, copying, views. Imported late.

Contract: bytes are little-endian, in C order, and bit for bit those of the array.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from shardstore.codecs import PIECE_BYTES, refusal

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
    "C64": np.dtype("<c8"),
}
_NAMES = {
    ordered: name for name, dtype in DTYPES.items() for ordered in (dtype, dtype.newbyteorder(">"))
}
# Bits are copied as integers: no conversion can touch them.
_CARRIERS: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("u2"),
    4: np.dtype("u4"),
    8: np.dtype("u8"),
}
# A transposed tensor is read in tiles of so many rows and columns: several times faster than rows,
# since every cache line that is fetched is used up before it has to go.
_TILE = (64, 512)
_KINDS = {
    "O": ("objects", "store numbers, or put JSON into the commit's metadata"),
    "S": ("byte strings", "store them as a U8 array, or as a blob of the commit"),
    "U": ("strings", "put them into the commit's metadata"),
    "T": ("strings", "put them into the commit's metadata"),
    "M": ("dates", "store .view('i8')"),
    "m": ("time spans", "store .view('i8')"),
    "V": ("structured or foreign elements", "store each field by itself, or pass a torch tensor"),
    "c": ("complex numbers wider than C64", "store .real and .imag"),
    "f": ("floats wider than F64", "convert with .astype('f8')"),
}


def describe(array: Any, where: str) -> tuple[str, tuple[int, ...]]:
    """Dtype name and shape of an array, or InvalidTensorError."""
    if type(array) not in (np.ndarray, np.memmap):
        kind = f"the array subclass {type(array).__module__}.{type(array).__qualname__}"
        raise refusal(where, kind, "what it adds would be lost: pass a plain numpy.ndarray")
    dtype = array.dtype
    name = _NAMES.get(dtype)
    if name is None:
        words, advice = _KINDS.get(dtype.kind, ("elements of an unknown kind", "convert it"))
        raise refusal(where, f"an array of dtype {dtype} ({words})", advice)
    return name, tuple(array.shape)


def begin_copy(array: Any, memory: memoryview) -> Iterator[memoryview]:
    """Copies piece by piece as the iterator is advanced; yields each piece of `memory` filled."""
    source = np.asarray(array)
    if source.size == 0:
        return iter(())
    if source.dtype.isnative == (sys.byteorder == "little"):
        source = source.view(_CARRIERS[source.itemsize])
    target = np.frombuffer(memory, source.dtype.newbyteorder("<")).reshape(source.shape)
    return _copy_rows(target, source, memory)


def view(memory: memoryview, dtype: str, shape: tuple[int, ...], *, writable: bool) -> Any:
    """An array over `memory`, which it keeps alive."""
    flat: Any = np.empty(0, DTYPES[dtype])
    if memory.nbytes:
        # Not ndarray(buffer=...): that looks through a read-only view at the memory behind it.
        flat = np.frombuffer(memory if writable else memory.toreadonly(), DTYPES[dtype])
    return flat.reshape(shape)


def _copy_rows(target: Any, source: Any, memory: memoryview) -> Iterator[memoryview]:
    rows_min = 1
    columns = None
    if source.flags.c_contiguous:
        source, target = source.reshape(-1), target.reshape(-1)
    elif source.ndim > 1 and source.strides[-1] > source.itemsize:
        rows_min, columns = _TILE
    row_bytes = target[0].nbytes
    rows = max(rows_min, PIECE_BYTES // row_bytes)
    for begin in range(0, len(target), rows):
        end = min(begin + rows, len(target))
        _copy_tiles(target[begin:end], source[begin:end], columns)
        yield memory[begin * row_bytes : end * row_bytes]


def _copy_tiles(target: Any, source: Any, columns: int | None) -> None:
    if columns is None:
        np.copyto(target, source)
        return
    for begin in range(0, target.shape[-1], columns):
        tile = (..., slice(begin, begin + columns))
        np.copyto(target[tile], source[tile])
