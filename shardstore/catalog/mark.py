"""The mark: how far the log was known to be durable, and which file is the index.

Invariants: a mark is written only after the log's sync returned, of a record whose whole state is
durable, so no crash leaves it ahead of the log; it is never synced itself, so a crash may lose it.
A file is never written twice: the newest whole one counts, what is damaged is passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardstore.errors import CorruptionError
from shardstore.format.digests import canonical_json, digest
from shardstore.format.names import CATALOG_DIRECTORY, FORMAT_VERSION, WAL_DIRECTORY
from shardstore.fs.calls import is_loss
from shardstore.fs.protocol import FileSystem
from shardstore.wal.reader import LogView, read_bytes

_MARK = re.compile(r"([0-9a-f]{16})\.mark\Z")
_TEMPORARY = "tmp.mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """An index and how to tell that it is the one."""

    name: str
    size: int
    digest: str
    """Of the whole file."""
    seq: int
    """The newest record in it, and its chain hash."""
    chain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A record that the log must hold."""

    uuid: str
    seq: int
    chain: str
    index: IndexFile | None = None

    def encode(self) -> bytes:
        body = canonical_json({"type": "mark", "version": FORMAT_VERSION, **asdict(self)}) + b"\n"
        return body + digest(body).encode("ascii") + b"\n"


def is_possible(fs: FileSystem, root: str) -> bool:
    """Whether other libraries can open the store's files; elsewhere there is no catalog."""
    return fs.host_path(root) is not None


def find_mark(fs: FileSystem, root: str, uuid: str) -> tuple[Mark | None, list[str]]:
    """The newest whole mark of this store, and the names of damaged and foreign ones."""
    bad: list[str] = []
    for name in _mark_names(fs, root):
        mark = _read(fs, f"{root}/{CATALOG_DIRECTORY}/{name}")
        if mark is not None and mark.uuid == uuid:
            return mark, bad
        bad.append(name)
    return None, bad


def write_mark(fs: FileSystem, root: str, mark: Mark) -> None:
    """Write the next mark and remove the older ones. Raises OSError; an old one counts then."""
    directory = f"{root}/{CATALOG_DIRECTORY}"
    if CATALOG_DIRECTORY not in fs.list_directory(root):
        fs.make_directory(directory)
    names = _mark_names(fs, root)
    number = int(names[0][:16], 16) + 1 if names else 0
    file = fs.open(f"{directory}/{_TEMPORARY}", "replace")
    try:
        file.pwrite(0, mark.encode())
    finally:
        file.close()
    fs.rename(f"{directory}/{_TEMPORARY}", f"{directory}/{number:016x}.mark")
    for name in names:
        fs.unlink(f"{directory}/{name}")


def check_not_ahead(root: str, mark: Mark | None, view: LogView) -> None:
    """CorruptionError where the log ends before a record that was durable in it.

    The mark has to be read before the log. A copy of a store is not asked: its files need not be
    of one moment.
    """
    if mark is None or view.copied or mark.seq <= view.last.seq:
        return
    raise CorruptionError(
        f"the log has lost its end: record {mark.seq} was durable in it. Its newest segment was "
        f"cut off, is missing or is an old copy; bring it back, or remove {root}/"
        f"{CATALOG_DIRECTORY} to accept what is left",
        file=f"{root}/{WAL_DIRECTORY}",
        expected=f"record {mark.seq} (catalog/)",
        found=f"record {view.last.seq} as the last",
    )


def _mark_names(fs: FileSystem, root: str) -> list[str]:
    """File names, newest first."""
    try:
        names = fs.list_directory(f"{root}/{CATALOG_DIRECTORY}")
    except OSError as error:
        if not is_loss(error):
            raise
        return []
    return sorted((name for name in names if _MARK.match(name)), reverse=True)


def _read(fs: FileSystem, path: str) -> Mark | None:
    try:
        text = read_bytes(fs, path)
    except OSError as error:
        if not is_loss(error):
            raise
        return None
    body = text[: text.find(b"\n") + 1]
    if text != body + digest(body).encode("ascii") + b"\n":
        return None
    value: Mapping[str, Any] = json.loads(body)
    if value["version"] != FORMAT_VERSION:
        return None
    index = value["index"]
    return Mark(
        uuid=value["uuid"],
        seq=value["seq"],
        chain=value["chain"],
        index=None if index is None else IndexFile(**index),
    )
