"""The quarantine: files that a salvage sets aside, each with the reason; nothing is ever deleted.

Contract (rule 13 of docs/design.md): the list stands in the salvage's opening record, and nothing
is moved before that is durable. A salvage appends nothing to its segment: while that record is the
newest of the log nothing else was written, so moving goes on from wherever a crash cut it off. The
next opening for writing does that too, before it writes anything; then the numbers of moved slots
may be used again. Whoever calls holds the writer's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shardstore.format.names import (
    OBJECTS_DIRECTORY,
    QUARANTINE_DIRECTORY,
    STORE_FILE,
    WAL_DIRECTORY,
)
from shardstore.fs.protocol import FileSystem
from shardstore.wal.reader import Segment, read_bytes

SALVAGE = "salvage"
"""The reason of an opening record by which a salvage took over."""
MOVE, COPY = "move", "copy"
REASON_FILE = "REASON"
_TEMPORARY = "tmp"


@dataclass(frozen=True, slots=True)
class Aside:
    """A file of the store that goes into quarantine."""

    how: str
    """`move`, or `copy` where the store goes on with the file."""
    file: str
    """Its path inside the store."""
    why: str

    @property
    def name(self) -> str:
        return self.file.rpartition("/")[2]

    def to_json(self) -> list[str]:
        return [self.how, self.file, self.why]


def directory_of(epoch: int) -> str:
    """Where the salvage of that epoch puts things: a path inside the store."""
    return f"{QUARANTINE_DIRECTORY}/{epoch:016x}"


def finish_pending(fs: FileSystem, root: str, newest: Segment) -> None:
    """Go on with what a salvage began, if it was the last to write. STORE, which it may have
    written anew, was perhaps not synced before it died."""
    last = newest.records[-1].body
    if last.get("reason") == SALVAGE:
        set_aside(fs, root, last)
        with suppress(FileNotFoundError):
            _sync(fs, f"{root}/{STORE_FILE}")


def set_aside(fs: FileSystem, root: str, opening: Mapping[str, Any]) -> None:
    """Move and copy what the opening record of a salvage lists, durably. What was done before is
    found done."""
    rows = [Aside(*row) for row in opening["salvage"]["quarantine"]]
    if not rows:
        return
    directory = f"{root}/{directory_of(opening['epoch'])}"
    for path, above in ((f"{root}/{QUARANTINE_DIRECTORY}", root),
                        (directory, f"{root}/{QUARANTINE_DIRECTORY}")):  # fmt: skip
        with suppress(FileExistsError):
            fs.make_directory(path)
        fs.sync_directory(above)
    _put(fs, directory, REASON_FILE, _reasons(opening, rows))
    for row in rows:
        if row.how == COPY:
            with suppress(FileNotFoundError):
                _put(fs, directory, row.name, read_bytes(fs, f"{root}/{row.file}"))
        else:
            _move(fs, f"{root}/{row.file}", f"{directory}/{row.name}")
    for path in (directory, f"{root}/{OBJECTS_DIRECTORY}", f"{root}/{WAL_DIRECTORY}"):
        fs.sync_directory(path)


def _sync(fs: FileSystem, path: str) -> None:
    file = fs.open(path, "write")
    try:
        file.datasync()
    finally:
        file.close()


def _move(fs: FileSystem, source: str, target: str) -> None:
    """Rename; a power cut may have left the file where it was, or under both names."""
    try:
        fs.rename(source, target)
    except FileNotFoundError:
        return  # moved before
    except FileExistsError:
        fs.unlink(source)


def _put(fs: FileSystem, directory: str, name: str, content: bytes) -> None:
    """A new whole file; one that is there stays."""
    names = fs.list_directory(directory)
    if name in names:
        return
    if _TEMPORARY in names:  # after a power cut it may be another name of a file put before
        fs.unlink(f"{directory}/{_TEMPORARY}")
    file = fs.open(f"{directory}/{_TEMPORARY}", "create")
    try:
        file.pwrite(0, content)
        file.datasync()
    finally:
        file.close()
    fs.rename(f"{directory}/{_TEMPORARY}", f"{directory}/{name}")


def _reasons(opening: Mapping[str, Any], rows: list[Aside]) -> bytes:
    """The text beside the files: for people, UTF-8, a line each."""
    said = opening["salvage"]
    lines = ["set aside by 'shardstore recover --salvage', record "
             f"{opening['epoch']} of the log; nothing needs these files any more", ""]  # fmt: skip
    lines += [f"{row.file}: {row.why}" for row in rows]
    lines += ["", "what was lost:", *said["lost"]]
    if said["unproven"]:
        lines += ["", "the log was of no use: the state is unproven, made of objects alone"]
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")
