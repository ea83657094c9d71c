"""The row order is a pure function of (seed, epoch, index), and each row comes once an epoch.

Method: random file sizes and seeds; the order is listed row by row and by runs, from fresh
objects.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data import DataCursor, DataError, RowOrder
from trainer.data.order import file_order

counts_lists = st.lists(st.integers(0, 7), min_size=1, max_size=12).filter(any)
seeds = st.integers(-(2**64), 2**64)
pytestmark = pytest.mark.req("T24", "T21")


def listed(order: RowOrder, start: int, count: int) -> list[tuple[int, int]]:
    places = [order.place(row) for row in range(start, start + count)]
    return [(place.file, place.row) for place in places]


@given(counts=counts_lists, seed=seeds, shuffle=st.booleans(), epoch=st.integers(0, 2**40))
def test_each_row_comes_once_in_every_epoch(
    counts: list[int], seed: int, shuffle: bool, epoch: int
) -> None:
    order = RowOrder(counts, seed=seed, shuffle=shuffle)
    rows = listed(order, epoch * order.rows, order.rows)
    assert sorted(rows) == [(f, r) for f, count in enumerate(counts) for r in range(count)]
    for (file, row), (next_file, next_row) in pairwise(rows):
        assert (next_file == file and next_row == row + 1) or next_row == 0
    if not shuffle:
        assert rows == sorted(rows)


@given(
    counts=counts_lists, seed=seeds, asked=st.lists(st.integers(0, 10**6), min_size=1, max_size=20)
)
def test_a_place_depends_on_nothing_that_was_asked_before(
    counts: list[int], seed: int, asked: list[int]
) -> None:
    busy = RowOrder(counts, seed=seed, shuffle=True)
    for row in asked:
        fresh = RowOrder(counts, seed=seed, shuffle=True)
        assert busy.place(row) == fresh.place(row)


@given(
    counts=counts_lists,
    seed=seeds,
    shuffle=st.booleans(),
    start=st.integers(0, 100),
    count=st.integers(1, 100),
)
def test_runs_are_the_places_of_their_rows_across_epochs(
    counts: list[int], seed: int, shuffle: bool, start: int, count: int
) -> None:
    order = RowOrder(counts, seed=seed, shuffle=shuffle)
    runs = [(f, first + n) for f, first, rows in order.runs(start, count) for n in range(rows)]
    assert runs == listed(order, start, count)


def test_the_permutation_is_the_same_on_every_machine_and_for_ever() -> None:
    assert file_order(10, seed=7, epoch=0).tolist() == [5, 7, 9, 1, 8, 2, 4, 0, 6, 3]
    assert file_order(10, seed=7, epoch=1).tolist() != file_order(10, seed=7, epoch=0).tolist()
    assert file_order(10, seed=8, epoch=0).tolist() != file_order(10, seed=7, epoch=0).tolist()


def test_every_epoch_of_many_files_is_shuffled_anew() -> None:
    order = RowOrder([1] * 50, seed=1, shuffle=True)
    assert len({tuple(listed(order, 50 * epoch, 50)) for epoch in range(100)}) == 100


@given(row=st.integers(0, 2**60), rows=st.integers(1, 2**40), seed=seeds, shuffle=st.booleans())
def test_a_cursor_survives_json(row: int, rows: int, seed: int, shuffle: bool) -> None:
    cursor = DataCursor(row=row, rows_per_epoch=rows, seed=seed, shuffle=shuffle)
    text = json.dumps(cursor.to_json())
    assert DataCursor.from_json(json.loads(text)) == cursor
    assert cursor.epoch * rows + cursor.index == row and 0 <= cursor.index < rows
    assert cursor.advance(5).row == row + 5
    assert len(text) < 200


@pytest.mark.parametrize(
    "change",
    [
        {"row": -1},
        {"row": "3"},
        {"rows_per_epoch": 0},
        {"shuffle": 1},
        {"extra": 1},
        {"seed": None},
    ],
)
def test_a_damaged_cursor_is_refused(change: dict[str, object]) -> None:
    good = DataCursor(row=1, rows_per_epoch=9, seed=0, shuffle=True).to_json()
    with pytest.raises(DataError, match="data cursor"):
        DataCursor.from_json(good | change)


def test_no_rows_and_negative_rows_are_refused() -> None:
    with pytest.raises(DataError, match="at least one row"):
        RowOrder([0, 0], seed=0, shuffle=True)
    with pytest.raises(DataError, match="count from 0"):
        RowOrder([3], seed=0, shuffle=True).place(-1)
