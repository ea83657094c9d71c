"""The quarantine: files that a salvage sets aside, each with the reason; nothing is ever deleted.

Contract (rule 13 of docs/design.md): the list stands in the salvage's opening record, and nothing
is moved before that is durable. A salvage appends nothing to its segment: while that record is the
newest of the log nothing else was written, so moving goes on from wherever a crash cut it off. The
next opening for writing does that too, before it writes anything; then the numbers of moved slots
may be used again. No content is replaced or left out: a name that something else has is passed over
for a free one, and a salvage takes no number that a directory here has. Whoever calls holds the
writer's lock; `pending`, `highest_number` and `check_place` only look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from shardstore.errors import StorageError
from shardstore.format.names import (
    OBJECTS_DIRECTORY,
    QUARANTINE_DIRECTORY,
    STORE_FILE,
    WAL_DIRECTORY,
)
from shardstore.fs.calls import close_quietly, is_loss, sync_file
from shardstore.fs.protocol import File, FileSystem
from shardstore.store_file import store_text
from shardstore.wal.reader import Segment, read_bytes

SALVAGE = "salvage"
"""The reason of an opening record by which a salvage took over."""
MOVE, COPY = "move", "copy"
REASON_FILE = "REASON"
NOT_COPIED = "not-copied"
_TEMPORARY = "tmp"
_NUMBER_DIGITS = 16
_PIECE_BYTES = 1024 * 1024
_NO_DIRECTORY = (
    "{} is not a directory, and damaged files have to be set aside there; move it out of the store "
    "and do it again"
)


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


def highest_number(fs: FileSystem, root: str) -> int:
    """Of any directory in quarantine/: the epoch of a salvage that was there, which no other takes,
    whatever the log still knows of it."""
    numbers = (name[:_NUMBER_DIGITS] for name in _names(fs, f"{root}/{QUARANTINE_DIRECTORY}"))
    return max((int(text, 16) for text in numbers if _is_number(text)), default=0)


def check_place(fs: FileSystem, root: str) -> None:
    """Refuse where nothing can be set aside; asked before a salvage writes anything."""
    path = f"{root}/{QUARANTINE_DIRECTORY}"
    if QUARANTINE_DIRECTORY in fs.list_directory(root) and not _is_directory(fs, path):
        raise StorageError(_NO_DIRECTORY.format(path))


def pending(fs: FileSystem, root: str, newest: Segment) -> list[str]:
    """Files that the salvage which wrote last has not set aside yet."""
    last = newest.records[-1].body
    if last.get("reason") != SALVAGE:
        return []
    aside = _names(fs, f"{root}/{directory_of(last['epoch'])}")
    there = {
        f"{above}{name}"
        for above in ("", f"{OBJECTS_DIRECTORY}/", f"{WAL_DIRECTORY}/")
        for name in _names(fs, f"{root}/{above}".rstrip("/"))
    }
    return [row.file for row in _rows(last) if row.file in there and not _is_done(row, aside)]


def _is_done(row: Aside, aside: list[str]) -> bool:
    """What was copied stays where it is, or stands there anew."""
    return row.how == COPY and not {row.name, f"{row.name}.{NOT_COPIED}"}.isdisjoint(aside)


def finish_pending(fs: FileSystem, root: str, newest: Segment) -> list[str]:
    """Go on with what a salvage began, if it was the last to write; the files that were left.
    STORE, which it may have written anew, was perhaps not synced before it died."""
    last = newest.records[-1].body
    if last.get("reason") != SALVAGE:
        return []
    left = pending(fs, root, newest)
    set_aside(fs, root, last, str(newest.header["uuid"]))
    with suppress(FileNotFoundError):
        sync_file(fs, f"{root}/{STORE_FILE}")
    return left


def set_aside(fs: FileSystem, root: str, opening: Mapping[str, Any], uuid: str) -> None:
    """Move and copy what the opening record of a salvage lists, durably. What was done before is
    found done."""
    rows = _rows(opening)
    if not rows:
        return
    directory = f"{root}/{directory_of(opening['epoch'])}"
    for path, above in ((f"{root}/{QUARANTINE_DIRECTORY}", root),
                        (directory, f"{root}/{QUARANTINE_DIRECTORY}")):  # fmt: skip
        _make_directory(fs, path)
        fs.sync_directory(above)
    _put(fs, directory, REASON_FILE, _reasons(opening, rows))
    for row in rows:
        if row.how == COPY:
            _copy(fs, root, directory, row, uuid)
        else:
            _move(fs, f"{root}/{row.file}", directory, row.name)
    for path in (directory, f"{root}/{OBJECTS_DIRECTORY}", f"{root}/{WAL_DIRECTORY}"):
        fs.sync_directory(path)


def _rows(opening: Mapping[str, Any]) -> list[Aside]:
    return [Aside(*row) for row in opening["salvage"]["quarantine"]]


def _is_number(text: str) -> bool:
    return len(text) == _NUMBER_DIGITS and set(text) <= set("0123456789abcdef")


def _names(fs: FileSystem, path: str) -> list[str]:
    try:
        return fs.list_directory(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_directory(fs: FileSystem, path: str) -> bool:
    try:
        return fs.stat(path).is_directory
    except OSError as error:  # a link that leads nowhere
        if not is_loss(error):
            raise
        return False


def _make_directory(fs: FileSystem, path: str) -> None:
    try:
        fs.make_directory(path)
    except FileExistsError:
        if not _is_directory(fs, path):
            raise StorageError(_NO_DIRECTORY.format(path)) from None


def _targets(name: str) -> Iterator[str]:
    """The name, then others for as long as something else has the one before."""
    yield name
    yield from (f"{name}.{number}" for number in count(1))


def _move(fs: FileSystem, source: str, directory: str, name: str) -> None:
    """Rename; a power cut may have left the file where it was, or under both names."""
    for target in _targets(name):
        try:
            fs.rename(source, f"{directory}/{target}")
        except FileExistsError:
            if not _is_same(fs, source, f"{directory}/{target}"):
                continue
            sync_file(fs, f"{directory}/{target}")
            fs.sync_directory(directory)
            fs.unlink(source)
        except FileNotFoundError:
            pass  # moved before
        return


def _copy(fs: FileSystem, root: str, directory: str, row: Aside, uuid: str) -> None:
    """Put a copy there. Where the disk does not give out the bytes any more it is a note of that;
    STORE, which is made anew then, goes there itself."""
    try:
        name, content = row.name, read_bytes(fs, f"{root}/{row.file}")
        if content == store_text(uuid):  # it was copied, and written anew since
            return
    except FileNotFoundError:
        return
    except OSError as error:
        if not is_loss(error):
            raise
        if row.file == STORE_FILE:
            _move(fs, f"{root}/{row.file}", directory, row.name)
            return
        text = f"{row.file} could not be copied: {error.strerror}\n"
        name, content = f"{row.name}.{NOT_COPIED}", text.encode()
    _put(fs, directory, name, content)


def _put(fs: FileSystem, directory: str, name: str, content: bytes) -> None:
    """A new whole file, unless one is there that holds this."""
    names = fs.list_directory(directory)
    for target in _targets(name):
        if target not in names:
            break
        if _holds(fs, f"{directory}/{target}", content):
            return
    if _TEMPORARY in names:  # after a power cut it may be another name of a file put before
        fs.unlink(f"{directory}/{_TEMPORARY}")
    file = fs.open(f"{directory}/{_TEMPORARY}", "create")
    try:
        file.pwrite(0, content)
        file.datasync()
    finally:
        file.close()
    fs.rename(f"{directory}/{_TEMPORARY}", f"{directory}/{target}")


def _holds(fs: FileSystem, path: str, content: bytes) -> bool:
    try:
        return read_bytes(fs, path) == content
    except OSError as error:
        if not is_loss(error):
            raise
        return False


def _is_same(fs: FileSystem, one: str, other: str) -> bool:
    """One file under two names, or the same bytes; not where that cannot be told."""
    try:
        first, second = fs.stat(one), fs.stat(other)
        if (first.device, first.inode) == (second.device, second.inode):
            return not first.is_directory
        if first.is_directory or second.is_directory or first.size != second.size:
            return False
        return _have_same_bytes(fs, one, other)
    except OSError as error:
        if not is_loss(error):
            raise
        return False


def _have_same_bytes(fs: FileSystem, one: str, other: str) -> bool:
    files: list[File] = []
    try:
        files = [fs.open(path, "read") for path in (one, other)]
        pieces = [bytearray(_PIECE_BYTES) for _ in files]
        for at in range(0, max(file.size() for file in files), _PIECE_BYTES):
            counts = [file.pread(at, piece) for file, piece in zip(files, pieces, strict=True)]
            if counts[0] != counts[1] or pieces[0] != pieces[1]:
                return False
        return True
    finally:
        for file in files:
            close_quietly(file)


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
