"""Frames of the log: FORMAT.md section 3.1 and the verdict of 3.3. Bytes in, bytes out.

Invariants kept here: a frame fills whole blocks, holds no zero byte, and a bad frame is called a
torn tail only if it looks as an interrupted write over zeros leaves it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from shardstore.format.digests import chain_hash, digest

BLOCK = 4096
SECTOR = 512
WORD = 8
RECORD_MAGIC = b"SSFR"
HEADER_MAGIC = b"SSWH"

_DIGEST_AT, _RECORD_AT = 90, 123
_ZEROS = bytes(64 * 1024)
_ENVELOPE = re.compile(
    rb"(SSFR|SSWH) ([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{16}) ([0-9a-f]{32})"
    rb" ([0-9a-f]{16}) ([0-9a-f]{32})\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame whose length check, digest and fill agree."""

    magic: bytes
    offset: int
    end: int
    salt: str
    predecessor: str
    log_synced: int
    record: bytes

    @property
    def chain(self) -> str:
        """Chain hash of the record; what the next frame names as its predecessor."""
        return chain_hash(self.predecessor, self.record)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFrame:
    """Why no frame starts at an offset."""

    offset: int
    what: str
    expected: str
    found: str


def frame_bytes(record_length: int) -> int:
    """Bytes that a frame with a record of this length occupies, a multiple of BLOCK."""
    return -(-(_RECORD_AT + record_length + 1) // BLOCK) * BLOCK


def build_frame(
    magic: bytes, *, salt: str, predecessor: str, log_synced: int, record: bytes
) -> bytes:
    """The frame's bytes, a multiple of BLOCK, without a zero byte."""
    length = b"%s %08x" % (magic, len(record))
    before = b"%s %08x %s %s %016x " % (
        length,
        _length_check(length),
        salt.encode("ascii"),
        predecessor.encode("ascii"),
        log_synced,
    )
    fill = frame_bytes(len(record)) - _RECORD_AT - len(record) - 1
    after = b"\n" + record + b"\n" + (b" " * (fill - 1) + b"\n" if fill else b"")
    frame = before + digest(before, after).encode("ascii") + after
    assert 0 not in frame, "a record holds a zero byte"
    return frame


def parse_frame(data: bytes, offset: int) -> Frame | BadFrame:
    """The frame at `offset` of a segment's bytes, or why there is none."""
    match = _ENVELOPE.match(data, offset)
    if match is None:
        shown = data[offset : offset + 48]
        return BadFrame(
            offset=offset, what="no frame starts here", expected="a frame", found=repr(shown)
        )
    magic, length_field, check, salt, predecessor, log_synced, found = match.groups()
    expected_check = b"%08x" % _length_check(data[offset : offset + 13])
    if check != expected_check:
        return _bad(offset, "length check of the frame", expected_check, check)
    length = int(length_field, 16)
    end = offset + frame_bytes(length)
    if end > len(data):
        return BadFrame(
            offset=offset, what="frame is cut off", expected=f"{end} bytes", found=f"{len(data)}"
        )
    expected = digest(
        data[offset : offset + _DIGEST_AT], data[offset + _DIGEST_AT + len(found) : end]
    ).encode("ascii")
    if found != expected:
        return _bad(offset, "digest of the frame", expected, found)
    begin = offset + _RECORD_AT
    return Frame(
        magic=magic,
        offset=offset,
        end=end,
        salt=salt.decode("ascii"),
        predecessor=predecessor.decode("ascii"),
        log_synced=int(log_synced, 16),
        record=data[begin : begin + length],
    )


def judge_tail(data: bytes, bad: BadFrame, *, salt: str, seq: int) -> BadFrame | bool:
    """What the first bad frame of a segment means (FORMAT.md 3.3).

    `seq` is the sequence number expected at the bad offset. Returns False for a clean end, True
    for a torn tail, and otherwise the damage.
    """
    offset = bad.offset
    if is_zero(data, offset, len(data)):
        return False
    for later in _later_frames(data, offset):
        if later.salt == salt and later.log_synced >= seq:
            return BadFrame(
                offset=offset,
                what=f"{bad.what}, yet the frame at {later.offset} says it was synced",
                expected=f"a frame with sequence number {seq}",
                found=bad.found,
            )
    for begin, end, follows_zeros in _regions(data, offset, salt, seq):
        damage = _untorn(data, begin, end, follows_zeros=follows_zeros)
        if damage is not None:
            return bad if begin == offset else damage
    return True


def is_zero(data: bytes, begin: int, end: int) -> bool:
    """Whether the bytes from begin to end are all zero."""
    end = min(end, len(data))
    for at in range(begin, end, len(_ZEROS)):
        piece = data[at : min(end, at + len(_ZEROS))]
        if piece != _ZEROS[: len(piece)]:
            return False
    return True


def _bad(offset: int, what: str, expected: bytes, found: bytes) -> BadFrame:
    return BadFrame(offset=offset, what=what, expected=expected.decode(), found=found.decode())


def _length_check(length_field: bytes) -> int:
    return xxhash.xxh3_64_intdigest(length_field) & 0xFFFFFFFF


def _later_frames(data: bytes, offset: int) -> Iterator[Frame]:
    for at in range(offset + BLOCK, len(data), BLOCK):
        if data[at : at + 4] == RECORD_MAGIC:
            frame = parse_frame(data, at)
            if isinstance(frame, Frame):
                yield frame


def _regions(data: bytes, offset: int, salt: str, seq: int) -> Iterator[tuple[int, int, bool]]:
    """The bad stretches from offset to the end of the segment, in whole blocks; each with whether
    zero blocks lie before it, which may be the lost beginning of its frame."""
    at = before = offset
    while at < len(data):
        if is_zero(data, at, at + BLOCK):
            at += BLOCK
            continue
        frame = parse_frame(data, at) if at > offset else None
        if isinstance(frame, Frame) and _was_appended_later(frame, salt, seq):
            at = before = frame.end
            continue
        end = at + _claimed_bytes(data, at)
        yield at, end, at > before
        at = before = end


def _was_appended_later(frame: Frame, salt: str, seq: int) -> bool:
    """Whether the frame may follow, unsynced, on the lost one with number `seq`."""
    if frame.magic != RECORD_MAGIC or frame.salt != salt:
        return False
    try:
        return int(json.loads(frame.record)["seq"]) > seq
    except (ValueError, KeyError, TypeError):
        return False


def _claimed_bytes(data: bytes, offset: int) -> int:
    """How far the bad frame at offset reaches: by its length where that can be trusted."""
    field, check = data[offset : offset + 13], data[offset + 14 : offset + 22]
    if re.fullmatch(rb"SS(?:FR|WH) [0-9a-f]{8}", field) and check == b"%08x" % _length_check(field):
        return frame_bytes(int(field[5:], 16))
    end = offset + BLOCK
    while end < len(data) and not is_zero(data, end, end + BLOCK):
        end += BLOCK
    return end - offset


def _untorn(data: bytes, begin: int, end: int, *, follows_zeros: bool) -> BadFrame | None:
    """None if the region may be an interrupted write over zeros, else what speaks against it."""
    region = data[begin:end].ljust(end - begin, b"\0")
    for at in range(0, len(region), WORD):
        word = region[at : at + WORD]
        if 0 in word and word != bytes(WORD):
            return BadFrame(
                offset=begin + at,
                what="damaged bytes in the log",
                expected="eight bytes that are all zero or all non-zero",
                found=word.hex(),
            )
    sector_missing = follows_zeros or any(
        is_zero(region, at, at + SECTOR) for at in range(0, len(region), SECTOR)
    )
    if sector_missing or is_zero(region, len(region) - WORD, len(region)):
        return None
    return BadFrame(
        offset=begin, what="damaged frame", expected="a valid frame", found="a complete, wrong one"
    )
