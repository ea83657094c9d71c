"""Looking over a data directory, and the `manifest.json` that saves looking at every byte each
time.

What is read at each opening of a directory:
- always: header, first and last page of every file, one open descriptor at a time;
- with a manifest: nothing more, as long as size, sample and modification time of each file
  agree with it. A file with another time (copied, touched) is read in full and must have the
  recorded digest. What differs is refused by name;
- without one: every byte where the directory is at most 1 GiB (ids, digests); beyond that only
  the samples, the fingerprint is then *sampled*, and ids are checked as rows are served.
  `trainer data info DIR --write-manifest` records a directory made elsewhere.
A change that keeps size, time, first and last page is not noticed until `trainer data info DIR
--verify`. Opening never writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import xxhash

from trainer.data.errors import BadDataFile, DataChanged, DataError
from trainer.data.fingerprint import DataFingerprint
from trainer.data.npyfile import FileEntry, inspect_file, scan_file, write_atomically

MANIFEST = "manifest.json"
SCAN_LIMIT_BYTES = 1 << 30
_FORMAT = 1

Progress = Callable[[str, int, int | None], None]
"""Called with (what is being done, how much is done, of how much or None)."""

Scan = Literal["auto", "full"]


def no_progress(what: str, done: int, total: int | None) -> None:
    """The default: tells nobody."""


def list_files(directory: Path) -> list[str]:
    """Names of the `.npy` files in byte order, which is the order of the files."""
    try:
        with os.scandir(directory) as found:
            names = [e.name for e in found if e.name.endswith(".npy") and e.name[0] != "."]
    except OSError as error:
        raise DataError(f"{directory}: no readable data directory: {error.strerror}") from error
    if not names:
        inner = [n for n in ("train", "val") if (directory / n).is_dir()]
        hint = f"; did you mean {directory / inner[0]}?" if inner else "; `trainer data` makes them"
        raise DataError(f"{directory}: no .npy files{hint}")
    return sorted(names, key=os.fsencode)


def survey(
    directory: Path, *, scan: Scan = "auto", vocab_size: int | None = None,
    progress: Progress = no_progress,
) -> tuple[DataFingerprint, list[str]]:  # fmt: skip
    """Fingerprint and warnings; `scan="full"` reads every byte whatever is recorded."""
    entries = _inspect_all(directory, progress)
    recorded = read_manifest(directory)
    if recorded is None:
        warnings = _limit_warnings(directory, entries) if scan == "auto" else []
        if not warnings:
            entries = _scan_all(directory, entries, vocab_size, progress)
        return DataFingerprint(tuple(entries)), warnings
    _check_against(directory, entries, recorded)
    if scan == "auto":
        entries = [_adopt(entry, recorded[entry.name]) for entry in entries]
    reread = sum(entry.digest is None for entry in entries) if scan == "auto" else 0
    entries = _scan_all(directory, entries, vocab_size, progress)
    for entry in entries:
        if entry.digest != recorded[entry.name].digest:
            raise DataChanged(_changed(directory, entry.name, "its content changed"))
    return DataFingerprint(tuple(entries)), _reread_warnings(directory, reread)


def _inspect_all(directory: Path, progress: Progress) -> list[FileEntry]:
    names = list_files(directory)
    entries = []
    for done, name in enumerate(names):
        progress("headers", done, len(names))
        entries.append(inspect_file(directory / name))
    progress("headers", len(names), len(names))
    _check_widths(directory, entries)
    return entries


def _limit_warnings(directory: Path, entries: list[FileEntry]) -> list[str]:
    if sum(entry.size for entry in entries) <= SCAN_LIMIT_BYTES:
        return []
    return [
        f"{directory}: no {MANIFEST} and more than {SCAN_LIMIT_BYTES} bytes: only the first and "
        "last page of each file were looked at; "
        f"`trainer data info {directory} --write-manifest` reads and records all"
    ]


def _reread_warnings(directory: Path, files: int) -> list[str]:
    if not files:
        return []
    return [
        f"{directory}: {files} files have other times than {MANIFEST} says and were read in full; "
        f"`trainer data info {directory} --write-manifest` makes the next start quick"
    ]


def _check_widths(directory: Path, entries: list[FileEntry]) -> None:
    first = entries[0]
    for entry in entries:
        if entry.width != first.width:
            raise BadDataFile(
                f"{directory / entry.name}: rows of {entry.width} tokens: expected {first.width} "
                f"as in {first.name}; all files of a directory have one row length"
            )


def _check_against(
    directory: Path, entries: list[FileEntry], recorded: dict[str, FileEntry]
) -> None:
    present = {entry.name for entry in entries}
    for name in recorded:
        if name not in present:
            raise DataChanged(_changed(directory, name, "the file is gone"))
    for entry in entries:
        known = recorded.get(entry.name)
        if known is None:
            raise DataChanged(_changed(directory, entry.name, "the file is not listed"))
        for what in ("size", "rows", "dtype", "sample"):
            if getattr(known, what) != getattr(entry, what):
                detail = f"{what} {getattr(known, what)} recorded, {getattr(entry, what)} found"
                raise DataChanged(_changed(directory, entry.name, detail))


def _changed(directory: Path, name: str, detail: str) -> str:
    return (
        f"{directory / name}: not what {MANIFEST} says: {detail}; put the file back, or record the "
        f"directory anew with `trainer data info {directory} --write-manifest`"
    )


def _adopt(entry: FileEntry, known: FileEntry) -> FileEntry:
    if entry.mtime_ns != known.mtime_ns:
        return entry
    return replace(entry, digest=known.digest, max_id=known.max_id)


def _scan_all(
    directory: Path, entries: list[FileEntry], vocab_size: int | None, progress: Progress
) -> list[FileEntry]:
    total = sum(entry.size for entry in entries if entry.digest is None)
    done = 0
    scanned = []
    for entry in entries:
        if entry.digest is None:
            progress("reading", done, total)
            done += entry.size
            entry = scan_file(directory / entry.name, entry, vocab_size)
        scanned.append(entry)
    if total:
        progress("reading", total, total)
    return scanned


def read_manifest(directory: Path) -> dict[str, FileEntry] | None:
    """The recorded entries, None without a manifest; a damaged one is an error, never ignored."""
    path = directory / MANIFEST
    try:
        value = json.loads(path.read_bytes())
        if value["format"] != _FORMAT:
            raise DataError(f"{path}: format {value['format']}: expected {_FORMAT}")
        if value["digest"] != _digest(value["entries"]):
            raise DataError(f"{path}: damaged: its entries do not have the digest it states")
        return {fields["name"]: FileEntry(**fields) for fields in value["entries"]}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not a readable manifest ({error}); "
            f"`trainer data info {directory} --write-manifest` records the directory anew"
        ) from error


def write_manifest(directory: Path, *, progress: Progress = no_progress) -> DataFingerprint:
    """Reads every byte of the directory and records it, in place of what was recorded before."""
    entries = _inspect_all(directory, progress)
    entries = _scan_all(directory, entries, None, progress)
    rows = [asdict(entry) for entry in entries]
    value = {"format": _FORMAT, "digest": _digest(rows), "entries": rows}
    text = json.dumps(value, indent=0)
    write_atomically(directory / MANIFEST, lambda file: file.write(text.encode()))
    return DataFingerprint(tuple(entries))


def _digest(entries: Any) -> str:
    canonical = json.dumps(entries, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(canonical.encode())
