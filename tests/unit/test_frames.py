"""Frames: records come back, and what an interrupted write leaves is told from damage.

The frame that is torn stands behind a good one, over zeros; the verdict is asked of `judge_tail`
as the reader does.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.format.digests import chain_hash
from shardstore.format.frames import (
    BLOCK,
    HEADER_MAGIC,
    RECORD_MAGIC,
    SECTOR,
    BadFrame,
    Frame,
    build_frame,
    frame_bytes,
    judge_tail,
    parse_frame,
)

SALT = "5a" * 8
CHAIN = "c0" * 16
ZEROS = bytes(2 * BLOCK)


def frame_of(record: bytes, *, log_synced: int = 6, salt: str = SALT) -> bytes:
    return build_frame(
        RECORD_MAGIC, salt=salt, predecessor=CHAIN, log_synced=log_synced, record=record
    )


def record_of(length: int, seq: int = 7) -> bytes:
    begin = b'{"seq":%d,"a":"' % seq
    text = "".join(random.Random(length).choices("abcdef ", k=length - len(begin) - 2))
    return begin + text.encode() + b'"}'


def judge(data: bytes, offset: int = 0, seq: int = 7) -> BadFrame | bool:
    bad = parse_frame(data, offset)
    assert isinstance(bad, BadFrame)
    return judge_tail(data, bad, salt=SALT, seq=seq)


@pytest.mark.req("S3")
@given(
    record=st.binary(min_size=1, max_size=9000).map(lambda raw: raw.replace(b"\0", b"~")),
    magic=st.sampled_from([RECORD_MAGIC, HEADER_MAGIC]),
    log_synced=st.integers(0, 2**64 - 1),
    lead=st.integers(0, 2),
)
def test_a_record_comes_back_from_its_frame(
    record: bytes, magic: bytes, log_synced: int, lead: int
) -> None:
    frame = build_frame(magic, salt=SALT, predecessor=CHAIN, log_synced=log_synced, record=record)
    assert 0 not in frame
    assert len(frame) == frame_bytes(len(record)) and len(frame) % BLOCK == 0
    found = parse_frame(b"x" * lead * BLOCK + frame + ZEROS, lead * BLOCK)
    assert found == Frame(
        magic=magic,
        offset=lead * BLOCK,
        end=lead * BLOCK + len(frame),
        salt=SALT,
        predecessor=CHAIN,
        log_synced=log_synced,
        record=record,
    )
    assert found.chain == chain_hash(CHAIN, record)


@pytest.mark.parametrize("length", [3971, 3972, 3973, 8067, 8068, 8069])
def test_a_record_that_just_fits_needs_no_fill(length: int) -> None:
    frame = frame_of(record_of(length))
    assert len(frame) == -(-(123 + length + 1) // BLOCK) * BLOCK
    found = parse_frame(frame, 0)
    assert isinstance(found, Frame) and found.record == record_of(length)


def test_a_record_with_a_zero_byte_is_a_programmers_mistake() -> None:
    with pytest.raises(AssertionError):
        frame_of(b'{"a":"\0"}')


def test_zeros_to_the_end_are_a_clean_end() -> None:
    assert judge(frame_of(record_of(50)) + ZEROS, BLOCK) is False
    assert judge(bytes(BLOCK)) is False


def _torn(frame: bytes, kept: tuple[bool, ...]) -> bytes:
    pieces = [frame[at : at + SECTOR] for at in range(0, len(frame), SECTOR)]
    return b"".join(
        piece if keep else bytes(SECTOR) for piece, keep in zip(pieces, kept, strict=True)
    )


@pytest.mark.req("S4")
def test_every_subset_of_the_sectors_of_one_block_is_a_torn_tail() -> None:
    frame, count = frame_of(record_of(3000)), BLOCK // SECTOR
    for kept in itertools.product([False, True], repeat=count):
        if any(kept) and not all(kept):
            assert judge(_torn(frame, kept) + ZEROS) is True, kept


@pytest.mark.req("S4")
@pytest.mark.parametrize("length", [9000, 20000])
def test_subsets_of_the_sectors_of_several_blocks_are_a_torn_tail(length: int) -> None:
    """Prefixes, suffixes, one sector out, one in, whole blocks in and out, and random ones."""
    frame = frame_of(record_of(length))
    count, blocks = len(frame) // SECTOR, len(frame) // BLOCK
    subsets = [tuple(i < cut for i in range(count)) for cut in range(1, count)]
    subsets += [tuple(i >= cut for i in range(count)) for cut in range(1, count)]
    subsets += [tuple((i == one) == keep for i in range(count))
                for one in range(count) for keep in (True, False)]  # fmt: skip
    for whole in itertools.product([False, True], repeat=blocks):
        if any(whole) and not all(whole):
            subsets.append(tuple(whole[i * SECTOR // BLOCK] for i in range(count)))
    choice = random.Random(length)
    subsets += [tuple(choice.random() < 0.5 for _ in range(count)) for _ in range(500)]
    for kept in subsets:
        for beyond in (ZEROS, b""):
            data = _torn(frame, kept) + beyond
            assert judge(data) is True, (kept, len(beyond))


@pytest.mark.req("S4")
@pytest.mark.parametrize("length", [60, 3000, 9000])
def test_a_flip_of_any_byte_of_a_complete_frame_is_corruption(length: int) -> None:
    """Whether the frame is the last or not."""
    frame = frame_of(record_of(length))
    later = frame_of(record_of(70), log_synced=7)
    choice = random.Random(length)
    for at in range(0, len(frame), 1 if length < BLOCK else 7):
        for flip in {choice.randrange(1, 256), frame[at]}:  # the second makes it zero
            data = bytearray(frame)
            data[at] ^= flip
            for beyond in (ZEROS, later + ZEROS):
                verdict = judge(bytes(data) + beyond)
                assert isinstance(verdict, BadFrame) and verdict.offset == 0, (at, flip)


@pytest.mark.req("S4")
def test_a_flip_in_unwritten_space_is_corruption_at_its_place() -> None:
    good = frame_of(record_of(50))
    for at in range(0, 3 * BLOCK, 7):
        data = bytearray(good + bytes(3 * BLOCK))
        data[BLOCK + at] = 1 + at % 255
        verdict = judge(bytes(data), BLOCK)
        assert isinstance(verdict, BadFrame)
        place = BLOCK + at if at >= BLOCK else BLOCK
        assert verdict.offset // 8 == place // 8


@pytest.mark.req("S4")
def test_a_synced_record_that_is_lost_is_never_a_tail() -> None:
    """Zeroed sectors look torn, but the frame behind says that this one was synced."""
    frame = frame_of(record_of(3000))
    later = frame_of(record_of(70), log_synced=7)
    for kept in ((False,) * 8, (True,) * 4 + (False,) * 4):
        verdict = judge(_torn(frame, kept) + later + ZEROS)
        assert isinstance(verdict, BadFrame) and verdict.offset == 0
        assert "synced" in verdict.what


@pytest.mark.req("S4")
def test_what_an_unsynced_record_is_followed_by_is_abandoned_with_it() -> None:
    frame = frame_of(record_of(3000))
    later = frame_of(record_of(70, seq=8), log_synced=6)
    assert judge(_torn(frame, (True,) * 4 + (False,) * 4) + later + ZEROS) is True
    assert judge(_torn(frame, (False,) * 8) + later + ZEROS) is True
    assert judge(_torn(frame, (True,) * 4 + (False,) * 4) + frame + ZEROS) is not True


@pytest.mark.req("S4")
@pytest.mark.parametrize("seq", [6, 7, 8])
def test_a_whole_frame_that_does_not_belong_where_it_stands_is_corruption(seq: int) -> None:
    """Its digest holds, its predecessor does not: no interrupted write leaves that."""
    bad = BadFrame(offset=0, what="chain hash", expected="one", found="another")
    data = frame_of(record_of(3000, seq=seq)) + ZEROS
    assert judge_tail(data, bad, salt=SALT, seq=7) == bad


def test_a_frame_of_another_segment_proves_nothing() -> None:
    later = frame_of(record_of(70), log_synced=7, salt="00" * 8)
    assert judge(bytes(BLOCK) + later + ZEROS) is True


def test_a_frame_that_is_cut_off_by_the_end_is_named() -> None:
    found = parse_frame(frame_of(record_of(9000))[: 2 * BLOCK], 0)
    assert isinstance(found, BadFrame) and found.what == "frame is cut off"
