"""One piece of an archived object, packed and unpacked: shuffle, difference, zstd.

Contract: pure functions over bytes, which let other threads run. Unpacking gives a frame's piece or
raises PackingError; room is made for as many bytes as the piece has and no more, whatever the frame
says. Imported late: numpy and zstandard are needed here only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard

from shardstore.format.archive_file import DELTA, PACKED, PIECE_BYTES, PLAIN
from shardstore.format.digests import Bytes

SAMPLE_BYTES = 128 << 10
"""So much of a piece is packed in both ways to see which pays."""
WINDOW_BYTES_MAX = 2 * PIECE_BYTES
DELTA_PAYS = 0.95
"""A difference has to be this much smaller: it costs reading two objects instead of one."""


PackingError = zstandard.ZstdError
"""A frame is not one of the piece that it should hold."""


def pack(
    piece: memoryview, base: memoryview | None, width: int, level: int
) -> tuple[int, memoryview]:
    """The method that was chosen, and the frame; `base` is as long as the piece."""
    method, source = PACKED, np.frombuffer(piece, np.uint8)
    if base is not None:
        other = np.frombuffer(base, np.uint8)
        if _delta_pays(source, other, width, level):
            method, source = DELTA, np.bitwise_xor(source, other)
    frame = _compress(source, width, level)
    if len(frame) >= len(piece):
        return PLAIN, piece
    return method, memoryview(frame)


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
    # Rows of elements, columns of their bytes: the transpose of what was packed.
    found.reshape(-1, width).T[:] = np.frombuffer(content, np.uint8).reshape(width, -1)
    if method == DELTA:
        assert base is not None
        np.bitwise_xor(found, np.frombuffer(base, np.uint8), out=found)


def _delta_pays(source: Any, other: Any, width: int, level: int) -> bool:
    """Judged by a stretch from the middle."""
    begin = max(0, (len(source) - SAMPLE_BYTES) // 2 // width * width)
    ours, theirs = (part[begin : begin + SAMPLE_BYTES] for part in (source, other))
    alone = min(len(_compress(ours, width, level)), len(ours))
    return len(_compress(np.bitwise_xor(ours, theirs), width, level)) < DELTA_PAYS * alone


def _compress(source: Any, width: int, level: int) -> bytes:
    shuffled = np.ascontiguousarray(source.reshape(-1, width).T)
    compressor = zstandard.ZstdCompressor(level=level, write_content_size=True)
    return compressor.compress(shuffled.reshape(-1).data)
