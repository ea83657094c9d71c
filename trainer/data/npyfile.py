"""One `.npy` file of token rows: its header, its rows, and how it is written.

Contract: a file holds a C-ordered two-dimensional array of little-endian int32 or uint16, every
row the same length. Anything else is refused with the file's name, and nothing here ever
unpickles. Rows are read with plain positioned reads and never mapped, so memory stays flat and
a file that shrinks under a reader is an error and not a SIGBUS. Neighbours: `manifest` walks
directories of such files, `dataset` serves batches, `pack` and `repack` write them.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from trainer.data.errors import BadDataFile, DataError

Tokens = NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {"int32": np.dtype("<i4"), "uint16": np.dtype("<u2")}
SAMPLE_BYTES = 4096
SCAN_BYTES = 4 << 20
_MAGIC = b"\x93NUMPY"
_HEADER_BYTES_MAX = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """What is known about one file; `digest` and `max_id` only after a full reading."""

    name: str
    size: int
    rows: int
    width: int
    dtype: str
    sample: str
    """xxh3_128 of the first and last page and the size."""
    mtime_ns: int
    digest: str | None = None
    """xxh3_128 of every byte of the file."""
    max_id: int | None = None

    @property
    def row_bytes(self) -> int:
        return self.width * DTYPES[self.dtype].itemsize

    @property
    def data_offset(self) -> int:
        return self.size - self.rows * self.row_bytes


def dtype_for(vocab_size: int) -> str:
    """The narrowest allowed type that holds every id of the vocabulary."""
    return "uint16" if vocab_size <= 1 << 16 else "int32"


def inspect_file(path: Path) -> FileEntry:
    """Reads header and sample, checks form and size; the rows themselves are not looked at."""
    try:
        with open(path, "rb", buffering=SAMPLE_BYTES) as file:
            status = os.fstat(file.fileno())
            shape, dtype, offset = _read_header(file, path)
            file.seek(0)
            first = file.read(SAMPLE_BYTES)
            file.seek(max(0, status.st_size - SAMPLE_BYTES))
            last = file.read(SAMPLE_BYTES)
    except OSError as error:
        raise BadDataFile(f"{path}: cannot be read: {error.strerror}") from error
    expected = offset + shape[0] * shape[1] * DTYPES[dtype].itemsize
    if status.st_size != expected:
        state = "truncated" if status.st_size < expected else "longer than its header says"
        raise BadDataFile(
            f"{path}: {state}: expected {expected} bytes for {shape[0]} rows of {shape[1]}, "
            f"found {status.st_size}; write the file again"
        )
    sample = xxhash.xxh3_128(first)
    sample.update(last)
    sample.update(status.st_size.to_bytes(8, "little"))
    return FileEntry(
        name=path.name, size=status.st_size, rows=shape[0], width=shape[1], dtype=dtype,
        sample=sample.hexdigest(), mtime_ns=status.st_mtime_ns,
    )  # fmt: skip


def _read_header(file: BinaryIO, path: Path) -> tuple[tuple[int, int], str, int]:
    start = file.read(12)
    if start[:6] != _MAGIC or len(start) < 12:
        raise BadDataFile(f"{path}: not an .npy file: expected it to begin with {_MAGIC!r}")
    if start[6] not in (1, 2):
        raise BadDataFile(f"{path}: .npy version {start[6]}: expected 1 or 2; save a plain array")
    prefix = 10 if start[6] == 1 else 12
    length = int.from_bytes(start[8:prefix], "little")
    if length > _HEADER_BYTES_MAX:
        raise BadDataFile(f"{path}: header of {length} bytes: at most {_HEADER_BYTES_MAX} expected")
    header = start[prefix:] + file.read(length - (12 - prefix))
    if len(header) != length:
        raise BadDataFile(f"{path}: truncated inside its header; write the file again")
    try:
        shape, fortran, descr = _parse_header(header)
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise BadDataFile(f"{path}: unreadable .npy header: {error}") from error
    return *_check_form(path, shape, fortran, descr), prefix + length


@lru_cache(maxsize=256)
def _parse_header(header: bytes) -> tuple[Any, bool, str]:
    """Files of one set share a handful of headers, so 35,000 of them parse only a few."""
    fields = ast.literal_eval(header.decode("latin-1").strip())
    return fields["shape"], bool(fields["fortran_order"]), str(fields["descr"])


def _check_form(path: Path, shape: Any, fortran: bool, descr: str) -> tuple[tuple[int, int], str]:
    if "O" in descr:
        raise BadDataFile(
            f"{path}: holds pickled Python objects, which are never loaded; save plain int32 rows"
        )
    names = {dtype.str: name for name, dtype in DTYPES.items()}
    if descr not in names:
        raise BadDataFile(f"{path}: dtype {descr}: expected int32 (<i4) or uint16 (<u2)")
    plain = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
    if not plain or len(shape) != 2 or shape[1] < 2:
        raise BadDataFile(f"{path}: shape {shape}: expected (rows, seq_len + 1)")
    if fortran and min(shape) > 1:
        raise BadDataFile(
            f"{path}: stored column by column; save it in C order (np.ascontiguousarray)"
        )
    return (shape[0], shape[1]), names[descr]


def read_rows(file: FileIO, path: Path, entry: FileEntry, first: int, count: int) -> Tokens:
    """Rows [first, first + count) as stored; moves the file's position."""
    rows = np.empty((count, entry.width), DTYPES[entry.dtype])
    view = rows.data.cast("B") if count else memoryview(b"")
    try:
        file.seek(entry.data_offset + first * entry.row_bytes)
        filled = 0
        while filled < len(view):
            got = file.readinto(view[filled:])
            if not got:
                row = first + filled // entry.row_bytes
                raise BadDataFile(
                    f"{path}: ends at row {row} of {entry.rows}: changed while in use"
                )
            filled += got
    except OSError as error:
        raise BadDataFile(f"{path}: row {first}: cannot be read: {error.strerror}") from error
    return rows


def check_ids(path: Path, rows: Tokens, first_row: int, vocab_size: int | None) -> int:
    """The largest id of the rows; an id outside the vocabulary is refused with file and row."""
    if not rows.size:
        return -1
    largest = int(rows.max())
    if int(rows.min()) < 0 or (vocab_size is not None and largest >= vocab_size):
        bad = rows < 0 if vocab_size is None else (rows < 0) | (rows >= vocab_size)
        row, column = (int(x) for x in np.argwhere(bad)[0])
        limit = "at least 0" if vocab_size is None else f"0 to {vocab_size - 1}"
        raise BadDataFile(
            f"{path}: row {first_row + row}, column {column}: token id {int(rows[row, column])}: "
            f"expected {limit}; use the vocabulary the data was packed with"
        )
    return largest


def scan_file(path: Path, entry: FileEntry, vocab_size: int | None) -> FileEntry:
    """Reads every byte once, in bounded pieces: the entry with digest and largest id."""
    hasher = xxhash.xxh3_128()
    largest = -1
    step = max(1, SCAN_BYTES // entry.row_bytes)
    try:
        with open(path, "rb", buffering=0) as file:
            hasher.update(file.read(entry.data_offset))
            for first in range(0, entry.rows, step):
                rows = read_rows(file, path, entry, first, min(step, entry.rows - first))
                hasher.update(rows.data.cast("B"))
                largest = max(largest, check_ids(path, rows, first, vocab_size))
    except OSError as error:
        raise BadDataFile(f"{path}: cannot be read: {error.strerror}") from error
    return FileEntry(
        name=entry.name, size=entry.size, rows=entry.rows, width=entry.width, dtype=entry.dtype,
        sample=entry.sample, mtime_ns=entry.mtime_ns, digest=hasher.hexdigest(), max_id=largest,
    )  # fmt: skip


def write_npy(path: Path, rows: Tokens) -> None:
    """Writes the file whole or not at all; it is on the disk when the call returns."""

    def write(file: BinaryIO) -> None:
        np.lib.format.write_array(
            file, np.ascontiguousarray(rows), version=(1, 0), allow_pickle=False
        )

    write_atomically(path, write)


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Temporary name, sync, rename, sync of the directory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error


def sync_directory(directory: Path) -> None:
    """Makes renames in the directory durable; other systems have no such call."""
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
