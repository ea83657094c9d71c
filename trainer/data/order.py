"""Which row comes when: a pure function of (seed, epoch, index).

Contract: the files of an epoch come in an order drawn from (seed, epoch), the rows of a file
one after the other, every row once an epoch; the global row g is row g % rows of epoch g //
rows, so batches run over the ends of epochs. The draw sorts the files by a keyed blake2b of
(seed, epoch, file index): the same on every platform and Python version. Nothing here touches a
file. Neighbours: `dataset` turns places into rows, the trainer keeps a `DataCursor` per commit.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.data.errors import DataError

_EPOCHS_CACHED = 2


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a global row lies."""

    epoch: int
    index: int
    file: int
    row: int


class RowRun(NamedTuple):
    """Consecutive rows of one file."""

    file: int
    first: int
    rows: int


def file_order(files: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of range(files) that depends on nothing but its arguments."""
    key = seed.to_bytes(16, "little", signed=True) + epoch.to_bytes(8, "little")

    def rank(index: int) -> bytes:
        return hashlib.blake2b(index.to_bytes(8, "little"), digest_size=16, key=key).digest()

    return np.array(sorted(range(files), key=rank), np.int64)


class RowOrder:
    """The order over files with the given row counts. Not thread-safe: it caches epochs."""

    def __init__(self, row_counts: Sequence[int], *, seed: int, shuffle: bool) -> None:
        self._counts = np.asarray(row_counts, np.int64)
        self.rows = int(self._counts.sum())
        if self.rows < 1:
            raise DataError("a row order needs at least one row")
        if not -(1 << 127) <= seed < 1 << 127:
            raise DataError(f"seed {seed}: expected a number of at most 127 bits")
        self.seed = seed
        self.shuffle = shuffle
        self._epochs: OrderedDict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = OrderedDict()

    def _epoch(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Files in their order, and the index of the first row of each."""
        key = epoch if self.shuffle else 0
        if key not in self._epochs:
            count = len(self._counts)
            order = file_order(count, self.seed, key) if self.shuffle else np.arange(count)
            ends = np.cumsum(self._counts[order])
            self._epochs[key] = order, ends - self._counts[order]
            if len(self._epochs) > _EPOCHS_CACHED:
                self._epochs.popitem(last=False)
        self._epochs.move_to_end(key)
        return self._epochs[key]

    def place(self, global_row: int) -> RowPlace:
        """Epoch, index within it, file and row of a global row."""
        if global_row < 0:
            raise DataError(f"row {global_row}: rows count from 0")
        epoch, index = divmod(global_row, self.rows)
        order, starts = self._epoch(epoch)
        # side="right" steps over files without rows, which share their start with the next file.
        position = int(np.searchsorted(starts, index, side="right")) - 1
        return RowPlace(epoch, index, int(order[position]), index - int(starts[position]))

    def runs(self, start: int, count: int) -> Iterator[RowRun]:
        """The rows [start, start + count) as runs, in order, across files and epochs."""
        while count > 0:
            place = self.place(start)
            take = min(count, int(self._counts[place.file]) - place.row)
            yield RowRun(place.file, place.row, take)
            start += take
            count -= take


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCursor:
    """How far a run has read; small enough for every commit."""

    row: int
    """Global rows consumed since the first."""
    rows_per_epoch: int
    seed: int
    shuffle: bool

    @property
    def epoch(self) -> int:
        return self.row // self.rows_per_epoch

    @property
    def index(self) -> int:
        return self.row % self.rows_per_epoch

    def advance(self, rows: int) -> DataCursor:
        return DataCursor(
            row=self.row + rows, rows_per_epoch=self.rows_per_epoch, seed=self.seed,
            shuffle=self.shuffle,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DataCursor:
        """The cursor that `to_json` wrote; anything else is refused with what is wrong."""
        names = {"row": int, "rows_per_epoch": int, "seed": int, "shuffle": bool}
        wrong = [n for n, kind in names.items() if type(value.get(n)) is not kind]
        if wrong or set(value) != set(names):
            raise DataError(f"data cursor {dict(value)!r}: expected exactly {', '.join(names)}")
        if value["row"] < 0 or value["rows_per_epoch"] < 1:
            raise DataError(f"data cursor {dict(value)!r}: negative row or empty epoch")
        return cls(**value)
