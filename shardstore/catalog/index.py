"""The index: an LMDB file with the small fields of every record of the sealed segments.

LMDB has no checksums, and a damaged page can give another value or kill the process that maps it.
So a published file is never written again and is opened only after its digest was found right by
plain reads; what is added goes into a copy. Each row also has a digest, and names its record's and
its predecessor's chain hash: rows that are read one after the other are known to follow each other,
and the first is compared with what the log says. LMDB does its own I/O, past the seam; a file
system that has no real paths has no index.

Keys: `r` + seq for a row, `s` + step + seq for a commit of a step, big-endian. A row: digest of key
and rest, predecessor's chain hash, chain hash (16 bytes each), JSON.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import xxhash

from shardstore.catalog.mark import IndexFile
from shardstore.format.digests import ZERO_DIGEST, canonical_json
from shardstore.format.names import CATALOG_DIRECTORY
from shardstore.fs.calls import unlink_quietly
from shardstore.fs.protocol import FileSystem
from shardstore.wal.reader import LogRecord

if TYPE_CHECKING:
    import lmdb

METADATA_BYTES_MAX = 8192
"""Of a commit's metadata as JSON; longer ones are read from the log."""
MAP_BYTES_MIN = 16 * 1024 * 1024
MAP_BYTES_MAX = sys.maxsize // 4
_PIECE = 4 * 1024 * 1024
_TEMPORARY = "tmp.mdb"
_INDEX = re.compile(r"[0-9a-f]{16}\.mdb\Z")
_LEFT_OUT = frozenset(
    ("put", "remove", "manifest_digest", "expect", "blobs", "state", "reference", "txn", "released")
)


class CatalogError(Exception):
    """The index does not have this, or not rightly: the log has to be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The small fields of one record."""

    seq: int
    chain: str
    body: Mapping[str, Any]


class Index:
    """An open index. Use it in a `with` block, on one thread."""

    def __init__(self, environment: lmdb.Environment, file: IndexFile) -> None:
        self.file = file
        self._environment = environment

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._environment.close()

    def rows(self, seq: int, chain: str) -> Iterator[Row]:
        """The record `seq`, whose chain hash the log says, and all before it, newest first.

        CatalogError at the first that is missing, wrong or too long to be here.
        """
        import lmdb

        try:
            with self._environment.begin() as transaction, transaction.cursor() as cursor:
                while seq > 0:
                    row, chain = _decode(seq, chain, cursor.get(_row_key(seq)))
                    yield row
                    seq = _seq_before(cursor, chain)
        except lmdb.Error as error:
            raise CatalogError(str(error)) from error

    def check(self, seq: int, chain: str) -> None:
        """CatalogError unless the record `seq` is here and has this chain hash."""
        import lmdb

        try:
            with self._environment.begin() as transaction:
                _verified(seq, chain, transaction.get(_row_key(seq)))
        except lmdb.Error as error:
            raise CatalogError(str(error)) from error

    def check_rows(self) -> None:
        """CatalogError if a row is missing or damaged, or does not follow the one before it."""
        import lmdb

        seq, chain = self.file.seq, self.file.chain
        try:
            with self._environment.begin() as transaction, transaction.cursor() as cursor:
                while seq > 0:
                    _, _, chain = _verified(seq, chain, cursor.get(_row_key(seq)))
                    seq = _seq_before(cursor, chain)
        except lmdb.Error as error:
            raise CatalogError(str(error)) from error

    def seqs_of_step(self, step: int) -> list[int]:
        """Sequence numbers of the commits of a step, newest first."""
        import lmdb

        prefix, found = b"s" + struct.pack(">Q", step), []
        try:
            with self._environment.begin() as transaction, transaction.cursor() as cursor:
                more = cursor.set_range(prefix)
                while more and cursor.key().startswith(prefix):
                    found.append(int.from_bytes(cursor.key()[9:], "big"))
                    more = cursor.next()
        except lmdb.Error as error:
            raise CatalogError(str(error)) from error
        return found[::-1]

    def row(self, seq: int) -> Row:
        """One row by itself: whole, but not compared with the log."""
        import lmdb

        try:
            with self._environment.begin() as transaction:
                return _decode(seq, None, transaction.get(_row_key(seq)))[0]
        except lmdb.Error as error:
            raise CatalogError(str(error)) from error


def open_index(fs: FileSystem, root: str, file: IndexFile) -> Index:
    """Open an index whose bytes are those that were written; CatalogError otherwise."""
    import lmdb

    path = f"{root}/{CATALOG_DIRECTORY}/{file.name}"
    host = fs.host_path(path)
    try:
        if host is None or _INDEX.match(file.name) is None or _digest(fs, path) != file.digest:
            raise CatalogError(f"{path} is not the index that was written")
        environment = lmdb.open(
            host, subdir=False, readonly=True, lock=False, create=False, max_spare_txns=1,
            map_size=file.size,
        )  # fmt: skip
    except (OSError, lmdb.Error) as error:
        raise CatalogError(f"{path}: {error}") from error
    return Index(environment, file)


def build_index(
    fs: FileSystem, root: str, base: IndexFile | None, segments: Iterable[list[LogRecord]]
) -> IndexFile | None:
    """A new index file: `base`, if its bytes are right, and the segments that follow it.

    Raises CatalogError or OSError; then nothing has changed but a temporary file.
    """
    directory = f"{root}/{CATALOG_DIRECTORY}"
    host = fs.host_path(f"{directory}/{_TEMPORARY}")
    assert host is not None
    if CATALOG_DIRECTORY not in fs.list_directory(root):
        fs.make_directory(directory)
    try:
        _start(fs, directory, base)
        last = _add(fs, directory, host, base.chain if base else ZERO_DIGEST, segments)
        return base if last is None else _publish(fs, directory, *last)
    except BaseException:
        unlink_quietly(fs, f"{directory}/{_TEMPORARY}")  # it may be what fills the disk
        raise


def _add(
    fs: FileSystem, directory: str, host: str, chain: str, segments: Iterable[list[LogRecord]]
) -> tuple[int, str] | None:
    """Put the segments' records behind what the temporary file has; the last of them."""
    import lmdb

    last: tuple[int, str] | None = None
    try:
        for records in segments:
            names = fs.list_directory(directory)
            size = fs.stat(f"{directory}/{_TEMPORARY}").size if _TEMPORARY in names else 0
            room = sum(len(record.frame.record) for record in records)
            environment = lmdb.open(
                host, subdir=False, lock=False, sync=False, readahead=False,
                map_size=min(MAP_BYTES_MAX, MAP_BYTES_MIN + size + 4 * room),
            )  # fmt: skip
            with environment, environment.begin(write=True) as transaction:
                for record in records:
                    _put(transaction, record, chain)
                    chain = record.chain
                    last = (record.seq, chain)
    except lmdb.Error as error:
        raise CatalogError(str(error)) from error
    return last


def _start(fs: FileSystem, directory: str, base: IndexFile | None) -> None:
    """The temporary file: a verified copy of the base, or nothing."""
    temporary = f"{directory}/{_TEMPORARY}"
    if _TEMPORARY in fs.list_directory(directory):
        fs.unlink(temporary)
    target = fs.open(temporary, "create")
    try:
        if base is not None:
            state, at = xxhash.xxh3_128(), 0
            for piece in _pieces(fs, f"{directory}/{base.name}"):
                target.pwrite(at, piece)
                state.update(piece)
                at += len(piece)
            if state.hexdigest() != base.digest:
                raise CatalogError("the index is damaged")
    finally:
        target.close()
    if base is None:
        fs.unlink(temporary)  # LMDB makes its own


def _publish(fs: FileSystem, directory: str, seq: int, chain: str) -> IndexFile:
    """Give the file its name: the number behind the newest that is there."""
    temporary = f"{directory}/{_TEMPORARY}"
    found, size = _digest(fs, temporary), fs.stat(temporary).size
    names = [name for name in fs.list_directory(directory) if _INDEX.match(name)]
    number = max([0, *(int(name[:16], 16) + 1 for name in names)])
    name = f"{number:016x}.mdb"
    fs.rename(temporary, f"{directory}/{name}")
    return IndexFile(name=name, size=size, digest=found, seq=seq, chain=chain)


def _put(transaction: lmdb.Transaction, record: LogRecord, before: str) -> None:
    key, body = _row_key(record.seq), small(record.body)
    if len(canonical_json(body.get("metadata"))) > METADATA_BYTES_MAX:
        del body["metadata"]
    rest = bytes.fromhex(before + record.chain) + canonical_json(body)
    transaction.put(key, xxhash.xxh3_128_digest(key + rest) + rest)
    if body["type"] == "commit":
        transaction.put(b"s" + struct.pack(">QQ", body["step"], record.seq), b"")


def small(body: Mapping[str, Any]) -> dict[str, Any]:
    """What history tells of a record, without what only the state needs."""
    kept = {key: value for key, value in body.items() if key not in _LEFT_OUT}
    if "commit" in body:  # a descriptor, with its manifest
        kept["commit"] = {key: body["commit"][key] for key in ("seq", "step")}
    return kept


def _decode(seq: int, chain: str | None, value: bytes | None) -> tuple[Row, str]:
    """The row and its predecessor's chain hash."""
    text, found, before = _verified(seq, chain, value)
    body = json.loads(text)
    if body["type"] == "commit" and "metadata" not in body:
        raise CatalogError(f"the metadata of record {seq} is in the log only")
    return Row(seq=seq, chain=found, body=body), before


def _verified(seq: int, chain: str | None, value: bytes | None) -> tuple[bytes, str, str]:
    """A row's JSON, its chain hash and its predecessor's."""
    if value is None:
        raise CatalogError(f"record {seq} is not in the index")
    found = value[32:48].hex()
    whole = xxhash.xxh3_128_digest(_row_key(seq) + value[16:]) == value[:16]
    if not whole or (chain is not None and chain != found):
        raise CatalogError(f"record {seq} is not in the index as the log has it")
    return value[48:], found, value[16:32].hex()


def _seq_before(cursor: lmdb.Cursor, chain: str) -> int:
    """Sequence number of the row before the cursor's, 0 before the first: publications pass over
    numbers. Whether it is the predecessor, with that chain hash, is for its own row to say."""
    if cursor.prev() and cursor.key()[:1] == b"r":
        return int.from_bytes(cursor.key()[1:], "big")
    if chain != ZERO_DIGEST:
        raise CatalogError("the rows end before the first record")
    return 0


def _row_key(seq: int) -> bytes:
    return b"r" + struct.pack(">Q", seq)


def _digest(fs: FileSystem, path: str) -> str:
    state = xxhash.xxh3_128()
    for piece in _pieces(fs, path):
        state.update(piece)
    return state.hexdigest()


def _pieces(fs: FileSystem, path: str) -> Iterator[memoryview]:
    """A file's bytes; each piece is gone with the next."""
    file = fs.open(path, "read")
    try:
        buffer, at = memoryview(bytearray(_PIECE)), 0
        while count := file.pread(at, buffer):
            yield buffer[:count]
            at += count
    finally:
        file.close()
