"""Many small files of rows into few large ones.

Contract: the destination holds the rows of the source in directory order, and a manifest.
Opening 35,000 files costs every start; opening ten costs nothing. The order of rows in training
changes with the files, so a run cannot go on from one to the other: its fingerprint says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trainer.data.errors import DataError
from trainer.data.manifest import (
    MANIFEST,
    Progress,
    list_files,
    no_progress,
    survey,
    write_manifest,
)
from trainer.data.npyfile import FileEntry, read_rows
from trainer.data.pack import ROWS_PER_FILE, RowWriter
from trainer.data.staging import staged_directory

_CHUNK_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackReport:
    """Files before and after; the rows are the same."""

    rows: int
    files_before: int
    files: int


def repack(
    src_dir: str | os.PathLike[str], dst_dir: str | os.PathLike[str],
    rows_per_file: int = ROWS_PER_FILE, *, overwrite: bool = False,
    progress: Progress = no_progress,
) -> RepackReport:  # fmt: skip
    """Copies the rows; int32 anywhere makes int32 everywhere."""
    source, target = Path(src_dir), Path(dst_dir)
    if target.exists() and os.path.samefile(source, target):
        raise DataError(f"{target}: is the source; repack into another directory")
    fingerprint, _ = survey(source, progress=progress)
    entries = fingerprint.entries
    wide = any(entry.dtype == "int32" for entry in entries)
    with staged_directory(target, overwrite=overwrite, owned=_is_repacked) as partial:
        writer = RowWriter(
            partial / "rows", width=entries[0].width, dtype="int32" if wide else "uint16",
            rows_per_file=min(rows_per_file, max(1, fingerprint.rows)),
        )  # fmt: skip
        for done, entry in enumerate(entries):
            progress("repacking", done, len(entries))
            _copy(source / entry.name, entry, writer)
        writer.finish()
        for name in list_files(partial / "rows"):
            os.rename(partial / "rows" / name, partial / name)
        (partial / "rows").rmdir()
        write_manifest(partial, progress=progress)
    return RepackReport(rows=writer.rows, files_before=len(entries), files=writer.files)


def _copy(path: Path, entry: FileEntry, writer: RowWriter) -> None:
    try:
        with open(path, "rb", buffering=0) as file:
            for first in range(0, entry.rows, _CHUNK_ROWS):
                count = min(_CHUNK_ROWS, entry.rows - first)
                writer.add(read_rows(file, path, entry, first, count).ravel())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _is_repacked(directory: Path) -> bool:
    names = {path.name for path in directory.iterdir()}
    return MANIFEST in names and all(n == MANIFEST or n.endswith(".npy") for n in names)
