"""One piece of an archived object, packed and unpacked: shuffle, difference, zstd.

Contract: pure functions over bytes, which let other threads run. Unpacking gives a frame's piece or
raises PackingError; room is made for as many bytes as the piece has and no more, whatever the frame
says. Imported late: numpy and zstandard are needed here only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import zstandard

from shardstore.format.archive_file import DELTA, PACKED, PIECE_BYTES, PLAIN
from shardstore.format.digests import Bytes

SAMPLE_BYTES = 128 << 10
"""So much of a piece is packed in both ways to see which pays."""
DELTA_PAYS = 0.95
"""A piece's difference, and then the whole object with its differences, has to be this much
smaller: a base costs reading two objects instead of one."""
WINDOW_BYTES_MAX = 2 * PIECE_BYTES

PackingError = zstandard.ZstdError
"""A frame is not one of the piece that it should hold."""


class Packed(NamedTuple):
    """What became of a piece."""

    method: int
    frame: memoryview
    alone_bytes: float
    """What the frame would take without the base; of a difference by the sample."""


def pack(piece: memoryview, base: memoryview | None, width: int, level: int) -> Packed:
    """Pack one piece; `base` is as long as it is."""
    method, gain, source = PACKED, 1.0, np.frombuffer(piece, np.uint8)
    if base is not None:
        other = np.frombuffer(base, np.uint8)
        gain = _gain(source, other, width, level)
        if gain < DELTA_PAYS:
            method, source = DELTA, np.bitwise_xor(source, other)
    frame = _compress(source, width, level)
    if len(frame) >= len(piece):
        return Packed(PLAIN, piece, len(piece))
    alone = len(frame) / gain if method == DELTA else len(frame)
    return Packed(method, memoryview(frame), min(alone, len(piece)))


def base_pays(packed: Iterable[Packed]) -> bool:
    """Whether the object with all its pieces is worth a base."""
    found = list(packed)
    whole = sum(one.alone_bytes for one in found)
    return sum(len(one.frame) for one in found) < DELTA_PAYS * whole


def check(frame: Bytes, method: int, size: int) -> None:
    """What can be said before anything is unpacked: the frame is of a piece of `size` bytes."""
    plain = method == PLAIN
    found = len(frame) if plain else zstandard.get_frame_parameters(frame).content_size
    if found != size:
        raise PackingError(f"a frame of {found} bytes")


def unpack(
    frame: Bytes, method: int, base: memoryview | None, width: int, target: memoryview
) -> None:
    """Fill `target` with the frame's piece."""
    check(frame, method, len(target))
    if method == PLAIN:
        target[:] = frame
        return
    # In one go: never more than the size that was just looked at.
    decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
    content = decompressor.decompress(frame, allow_extra_data=False)
    found = np.frombuffer(target, np.uint8)
    elements = found.reshape(-1, width)
    for index, plane in enumerate(np.frombuffer(content, np.uint8).reshape(width, -1)):
        elements[:, index] = plane  # one after the other: several times faster than a transpose
    if method == DELTA:
        assert base is not None
        np.bitwise_xor(found, np.frombuffer(base, np.uint8), out=found)


def _gain(source: Any, other: Any, width: int, level: int) -> float:
    """Size of the difference in sizes of the piece alone, by a stretch from the middle."""
    begin = max(0, (len(source) - SAMPLE_BYTES) // 2 // width * width)
    ours, theirs = (part[begin : begin + SAMPLE_BYTES] for part in (source, other))
    alone = min(len(_compress(ours, width, level)), len(ours))
    return len(_compress(np.bitwise_xor(ours, theirs), width, level)) / alone


def _compress(source: Any, width: int, level: int) -> bytes:
    shuffled = np.ascontiguousarray(source.reshape(-1, width).T)
    compressor = zstandard.ZstdCompressor(level=level, write_content_size=True)
    return compressor.compress(shuffled.reshape(-1).data)
