"""Directories of rows for the tests of the data side, written without the code under test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

VOCAB = 50
SEQ_LEN = 4


def numbered_rows(first: int, count: int, width: int = SEQ_LEN + 1) -> NDArray[np.int32]:
    """Rows that tell their number: row r is r, then r + 1 and so on, modulo the vocabulary."""
    start = np.arange(first, first + count, dtype=np.int32)[:, None]
    return ((start + np.arange(width)) % VOCAB).astype(np.int32)


def make_directory(path: Path, counts: list[int], dtype: str = "int32") -> Path:
    """Files with the given numbers of rows, numbered through."""
    path.mkdir(parents=True)
    first = 0
    for number, count in enumerate(counts):
        np.save(path / f"part_{number:05d}.npy", numbered_rows(first, count).astype(dtype))
        first += count
    return path
