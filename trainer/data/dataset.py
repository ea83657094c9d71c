"""Batches of tokens out of a directory of `.npy` files.

Contract: a global row counter names every row a run will ever see (`order`); `batch` returns
the rows from there on as int64 inputs t[:-1] and labels t[1:], each [count, seq_len]. Rows may
be longer than seq_len + 1; the rest is left unread. Every id served is checked against the
vocabulary, whatever was known at opening. Memory and descriptors are bounded: one file entry of
some 300 bytes per file, and at most `open_files_max` descriptors. Any thread may call; calls
take turns. After a fork the child opens its own descriptors. Neighbours: `manifest` decides
what opening reads, `validation` serves held-out rows, torch begins outside this package.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trainer.data.errors import BadDataFile, DataChanged, DataError
from trainer.data.fingerprint import DataFingerprint
from trainer.data.manifest import Progress, no_progress, survey
from trainer.data.npyfile import Tokens, check_ids, read_rows, scan_file
from trainer.data.order import DataCursor, RowOrder

OPEN_FILES_MAX = 8
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


class TokenDataset:
    """Rows of one directory in the order of one seed."""

    def __init__(
        self, directory: Path, fingerprint: DataFingerprint, *, seq_len: int, vocab_size: int,
        order: RowOrder, warnings: tuple[str, ...], open_files_max: int,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.fingerprint = fingerprint
        self.seq_len = seq_len
        self.vocab_size = vocab_size
        self.order = order
        self.warnings = warnings
        """For the caller to show; nothing here prints."""
        self._open_files_max = open_files_max
        self._open: OrderedDict[int, FileIO] = OrderedDict()
        self._owner = os.getpid()
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls, directory: str | os.PathLike[str], *, seq_len: int, vocab_size: int, seed: int = 0,
        shuffle: bool = True, progress: Progress = no_progress,
        open_files_max: int = OPEN_FILES_MAX,
    ) -> Self:  # fmt: skip
        """Checks every file's form, and its ids as `manifest` says; a bad one is named."""
        path = Path(directory)
        if seq_len < 1 or vocab_size < 1 or open_files_max < 1:
            raise DataError("seq_len, vocab_size and open_files_max must be at least 1")
        fingerprint, warnings = survey(path, vocab_size=vocab_size, progress=progress)
        entries = fingerprint.entries
        if entries[0].width < seq_len + 1:
            raise BadDataFile(
                f"{path / entries[0].name}: rows of {entries[0].width} tokens: --seq-len {seq_len} "
                f"needs {seq_len + 1}; pack the text again or lower --seq-len"
            )
        if fingerprint.rows == 0:
            raise DataError(f"{path}: its {len(entries)} files hold no row")
        warnings += _check_vocabulary(path, fingerprint, vocab_size)
        order = RowOrder([entry.rows for entry in entries], seed=seed, shuffle=shuffle)
        return cls(
            path, fingerprint, seq_len=seq_len, vocab_size=vocab_size, order=order,
            warnings=tuple(warnings), open_files_max=open_files_max,
        )  # fmt: skip

    @property
    def rows(self) -> int:
        """Rows of one epoch."""
        return self.order.rows

    def cursor(self, row: int = 0) -> DataCursor:
        """The place of a global row, to be kept with a commit."""
        return DataCursor(
            row=row, rows_per_epoch=self.rows, seed=self.order.seed, shuffle=self.order.shuffle
        )

    def resume(self, cursor: DataCursor) -> int:
        """The global row to go on from; a cursor of another order is refused."""
        mine = self.cursor(cursor.row)
        if mine != cursor:
            raise DataChanged(
                f"{self.directory}: the run stopped in another order of rows: {cursor.to_json()}, "
                f"opened as {mine.to_json()}; resume with the same data, --seed and --shuffle-train"
            )
        return cursor.row

    def batch(self, start_row: int, count: int) -> Batch:
        """Inputs and labels of the global rows [start_row, start_row + count): fresh arrays."""
        if count < 1:
            raise DataError(f"a batch of {count} rows: expected at least 1")
        tokens = np.empty((count, self.seq_len + 1), np.int64)
        filled = 0
        with self._lock:
            for file, first, run in self.order.runs(start_row, count):
                tokens[filled : filled + run] = self._read(file, first, run)
                filled += run
        return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])

    def chunks(self, *, rows_max: int | None = None, chunk_rows: int = 1024) -> Iterator[Tokens]:
        """The rows of one epoch in directory order, [n, seq_len + 1] as stored, once through."""
        left = self.rows if rows_max is None else min(rows_max, self.rows)
        for file, entry in enumerate(self.fingerprint.entries):
            for first in range(0, min(entry.rows, left), chunk_rows):
                count = min(chunk_rows, entry.rows - first, left - first)
                with self._lock:
                    rows = self._read(file, first, count)
                yield rows
            left -= min(entry.rows, left)

    def _read(self, file: int, first: int, count: int) -> Tokens:
        entry = self.fingerprint.entries[file]
        path = self.directory / entry.name
        rows = read_rows(self._handle(file, path), path, entry, first, count)[:, : self.seq_len + 1]
        check_ids(path, rows, first, self.vocab_size)
        return rows

    def _handle(self, file: int, path: Path) -> FileIO:
        """The open file, most recently used last."""
        if self._owner != os.getpid():
            # A descriptor shared with the parent shares its position too.
            self._open, self._owner = OrderedDict(), os.getpid()
        if file not in self._open:
            if len(self._open) >= self._open_files_max:
                self._open.popitem(last=False)[1].close()
            try:
                self._open[file] = FileIO(path)
            except OSError as error:
                raise BadDataFile(f"{path}: cannot be opened: {error.strerror}") from error
            if os.fstat(self._open[file].fileno()).st_size != self.fingerprint.entries[file].size:
                self._open.pop(file).close()
                raise BadDataFile(f"{path}: changed its size since the directory was opened")
        self._open.move_to_end(file)
        return self._open[file]

    def close(self) -> None:
        """Closes the descriptors; a later call opens them again."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _check_vocabulary(path: Path, fingerprint: DataFingerprint, vocab_size: int) -> list[str]:
    """Refuses ids recorded as too large; warns where the vocabulary is far too large."""
    for entry in fingerprint.entries:
        if entry.max_id is not None and entry.max_id >= vocab_size:
            scan_file(path / entry.name, entry, vocab_size)  # names the row
            raise DataChanged(f"{path / entry.name}: holds no id {entry.max_id}, as recorded")
    largest = fingerprint.max_id
    if largest is None or 2 * (largest + 1) > vocab_size:
        return []
    return [
        f"{path}: no token id is above {largest}, but the vocabulary has {vocab_size}: the loss "
        f"starts at ln {vocab_size} = {math.log(vocab_size):.4f} where ln {largest + 1} = "
        f"{math.log(largest + 1):.4f} would do, and embedding rows above {largest} stay unused"
    ]
