"""Two readers judge every damaged log alike: torn tail, corruption, or nothing at all.

Goal: FORMAT.md 3.3 says what a log means, whatever was done to it, and the store does what it says.
Method: the newest segment of a store is damaged at random, as crashes and disks do it, with
sectors, words and bytes changed, lost or copied; the reader that was written from the page alone
and the store must find the same head, or both refuse.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardstore import Store
from shardstore.context import Settings
from shardstore.errors import CorruptionError
from tests.format.independent_log import BLOCK, SECTOR, WORD, Damaged, Segment
from tests.format.independent_reader import IndependentReader

SETTINGS = Settings(prewrite_bytes=3 * BLOCK)
LOST, FLIP, NOISE, COPY, WORDS, CUT, SWAP = range(7)
Damage = tuple[int, int, int]
"""(kind, place, amount); a place counts sectors from the end of the opening."""


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """Records of 1, 3 and 2 blocks behind the opening."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run"
        with Store.open(path, "a", settings=SETTINGS) as store:
            for step, length in enumerate((0, 9000, 5000)):
                with store.begin(step=step) as txn:
                    txn.stage("s", "p", {"x": np.arange(step)})
                    txn.commit(metadata={"long": "x" * length})
        shutil.rmtree(path / "catalog")  # its mark knows more than the log: here the log is judged
        yield path


def damaged(content: bytes, begin: int, damages: list[Damage]) -> bytes:
    data = bytearray(content)
    for kind, place, amount in damages:
        at = begin + place * SECTOR
        if kind == LOST:
            data[at : at + SECTOR] = bytes(len(data[at : at + SECTOR]))
        elif kind == FLIP and at + amount < len(data):
            data[at + amount] ^= 1 << amount % 8
        elif kind == NOISE:
            data[at : at + SECTOR] = b"\xa5" * len(data[at : at + SECTOR])
        elif kind == COPY:
            source = begin + amount * SECTOR // BLOCK * BLOCK
            block = data[source : source + BLOCK]
            data[at // BLOCK * BLOCK : at // BLOCK * BLOCK + len(block)] = block
        elif kind == WORDS:
            at += amount * WORD % SECTOR
            data[at : at + WORD] = bytes(len(data[at : at + WORD]))
        elif kind == CUT:
            del data[at + amount :]
        elif kind == SWAP:
            one, two = at // BLOCK * BLOCK, begin + amount * SECTOR // BLOCK * BLOCK
            if max(one, two) + BLOCK <= len(data):
                data[one : one + BLOCK], data[two : two + BLOCK] = (
                    data[two : two + BLOCK], data[one : one + BLOCK],
                )  # fmt: skip
    return bytes(data)


def verdicts(root: Path) -> tuple[object, object]:
    try:
        commit = IndependentReader(root).commit()
        page: object = commit and commit["seq"]
    except Damaged:
        page = "refused"
    try:
        with Store.open(root) as store:
            ours: object = store.head and store.head.seq
    except CorruptionError:
        ours = "refused"
    return page, ours


places = st.integers(0, 6 * BLOCK // SECTOR)
damages = st.lists(
    st.tuples(st.sampled_from([LOST, LOST, LOST, *range(1, 7)]), places, st.integers(0, 511)),
    min_size=1,
    max_size=8,
)


@pytest.mark.req("S3", "S12")
@given(damages)
@example([(LOST, sector, 0) for sector in range(32, 40)])
@example([(LOST, sector, 0) for sector in (32, *range(40, 48))])
@example([(FLIP, 0, 30), (LOST, 7, 0)])
@example([(LOST, 15, 0), (LOST, 39, 0)])
@example([(CUT, 24, 0)])
def test_the_page_and_the_store_judge_a_damaged_log_alike(root: Path, found: list[Damage]) -> None:
    path = max(root.glob("wal/*.wal"))
    whole = path.read_bytes()
    segment = Segment(path)
    begin = segment.frames[segment.header.record["copies"]].end
    path.write_bytes(damaged(whole, begin, found))
    try:
        page, ours = verdicts(root)
    finally:
        path.write_bytes(whole)
    assert page == ours
