"""Safetensors files that somebody else wrote.

Contract: a header is believed only as far as the file bears it out: known types, sizes that agree
with shapes, places that neither overlap nor leave holes nor end before or behind the file. Runs of
padding that a store's own raw objects declare as tensors are left out.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

from shardstore.format.placement import (
    DTYPE_SIZES,
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    METADATA_KEY,
    OBJECT_BYTES_MAX,
    TensorSpec,
)
from shardstore.importing.contents import Contents, ForeignTensor, stretch
from shardstore.importing.files import ForeignFile, shown

_PADDING = re.compile(r"__pad_[0-9]+__", re.ASCII)
_DIMENSIONS_MAX = 64
_KEYS = {"data_offsets", "dtype", "shape"}


def is_safetensors(head: bytes) -> bool:
    """Whether a file begins like one: a length, then an object of JSON."""
    return head[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{"


def read(file: ForeignFile) -> Contents:
    """The tensors of a file, in the order of its header."""
    first = file.read(0, LENGTH_BYTES)
    length = int.from_bytes(first, "little")
    most = min(HEADER_BYTES_MAX, file.size - LENGTH_BYTES)
    if length > most:
        raise file.wrong("the header's length is impossible", f"{most} bytes at most", length)
    members = _members(file, file.read(LENGTH_BYTES, length))
    metadata = _metadata(file, members.pop(METADATA_KEY, {}))
    base = LENGTH_BYTES + length
    places: list[tuple[int, int, str]] = []
    tensors: list[ForeignTensor] = []
    for name, value in members.items():
        spec, begin, end = _declared(file, name, value)
        places.append((begin, end, name))
        if not (_PADDING.fullmatch(name) and spec.dtype == "U8"):
            tensors.append(stretch(file, spec, base + begin))
    _check_places(file, sorted(places), file.size - base)
    return Contents(file=file, kind="safetensors", tensors=tuple(tensors), metadata=metadata)


def _members(file: ForeignFile, text: bytes) -> dict[str, Any]:
    twice: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = sorted(name for name, _ in pairs)
            twice.extend(a for a, b in pairwise(names) if a == b)
        return found

    try:
        members = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise file.wrong("the header is not JSON", "one JSON object", str(error)) from None
    if twice:
        raise file.wrong(f"the header names {twice[0][:200]!r} twice")
    if not isinstance(members, dict):
        raise file.wrong("the header is not JSON", "one object", type(members).__name__)
    return members


def _metadata(file: ForeignFile, value: Any) -> dict[str, str]:
    strings = isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    if not strings:
        raise file.wrong(f"{METADATA_KEY} is wrong", "strings by name", shown(value))
    return dict(value)


def _declared(file: ForeignFile, name: str, value: Any) -> tuple[TensorSpec, int, int]:
    what = f"tensor {name[:200]!r}"
    if not isinstance(value, dict) or value.keys() != _KEYS:
        raise file.wrong(f"{what} is declared wrongly", sorted(_KEYS), shown(value))
    dtype, shape, place = value["dtype"], value["shape"], value["data_offsets"]
    if dtype not in DTYPE_SIZES if isinstance(dtype, str) else True:
        raise file.wrong(
            f"{what} has a type that cannot be stored", " ".join(DTYPE_SIZES), shown(dtype)
        )
    for kind, numbers in (("shape", shape), ("place", place)):
        if not isinstance(numbers, list) or not all(map(_is_count, numbers)):
            raise file.wrong(f"{what} has a bad {kind}", "a list of counts", shown(numbers))
    if len(shape) > _DIMENSIONS_MAX:
        most = f"{_DIMENSIONS_MAX} at most"
        raise file.wrong(f"{what} has too many dimensions", most, len(shape))
    if len(place) != 2:
        raise file.wrong(f"{what} has a bad place", "2 offsets", shown(place))
    spec = TensorSpec(name=name, dtype=dtype, shape=tuple(shape))
    begin, end = place
    if end - begin != spec.nbytes:
        raise file.wrong(
            f"{what} has the wrong number of bytes for {dtype} {shape}", spec.nbytes, end - begin
        )
    return spec, begin, end


def _check_places(file: ForeignFile, places: list[tuple[int, int, str]], size: int) -> None:
    """Together the tensors have to be the file's data, once each."""
    at = 0
    for begin, end, name in places:
        if begin != at:
            what = "overlaps another one" if begin < at else "leaves a hole before it"
            raise file.wrong(f"tensor {name[:200]!r} {what}", f"a begin at {at}", begin)
        at = end
    if at != size:
        what = "bytes stand behind the last tensor" if at < size else "the file is cut off"
        raise file.wrong(what, f"{at} bytes of data", size)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= OBJECT_BYTES_MAX
