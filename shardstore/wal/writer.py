"""Makes segments and appends frames to the one it made.

Invariants: a writer never appends to a segment that it found; a segment becomes visible only after
its header, copies and opening record are durable; frames go over zeros written in advance. One
thread at a time.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardstore.format.digests import ZERO_DIGEST, canonical_json, chain_hash
from shardstore.format.frames import BLOCK, HEADER_MAGIC, RECORD_MAGIC, build_frame, frame_bytes
from shardstore.format.names import (
    FORMAT_VERSION,
    SEGMENT_TEMPORARY,
    WAL_DIRECTORY,
    segment_file,
)
from shardstore.fs.calls import unlink_quietly
from shardstore.fs.protocol import File, FileSystem
from shardstore.wal.reader import LogView, read_bytes

PREWRITE_BYTES = 4 * 1024 * 1024
COMMITS_PER_SEGMENT = 500
SEGMENT_BYTES = 16 * 1024 * 1024
ZEROS = bytes(1024 * 1024)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """Where a new segment takes over."""

    index: int
    cut: int
    """Offset behind the last record that is proven durable where it stands."""
    seq: int
    chain: str
    copies: Sequence[bytes] = ()
    """Accepted records beyond the cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRecord:
    """A record whose place in the chain is fixed."""

    seq: int
    encoded: bytes
    predecessor: str
    chain: str
    is_commit: bool
    durable: bool


def encode(record: Mapping[str, Any], predecessor: str) -> EncodedRecord:
    """Encode the record that follows the one with that chain hash."""
    encoded = canonical_json(record)
    return EncodedRecord(
        seq=int(record["seq"]),
        encoded=encoded,
        predecessor=predecessor,
        chain=chain_hash(predecessor, encoded),
        is_commit=record["type"] == "commit",
        durable=bool(record["durable"]),
    )


class SegmentWriter:
    """The open end of the log."""

    def __init__(
        self,
        file: File,
        *,
        index: int,
        salt: str,
        offset: int,
        zeros_end: int,
        seq: int,
        chain: str,
        prewrite: int,
    ) -> None:
        self.index = index
        self.seq = seq
        """Of the last record."""
        self.chain = chain
        self.offset = offset
        """Where the next frame goes."""
        self.log_synced = seq
        self.commits = 0
        self.proven = (seq, chain)
        """The newest record, with its chain hash, that no power cut can take any more."""
        self._whole = self.proven
        self._file = file
        self._salt = salt
        self._zeros_end = zeros_end
        self._prewrite = prewrite

    @property
    def path(self) -> str:
        return self._file.path

    def make_room(self, record: EncodedRecord) -> None:
        """Write zeros ahead where the record needs them. Failing here changes nothing."""
        end = self.offset + frame_bytes(len(record.encoded))
        if end < self._zeros_end:
            return
        grown = _zeros_ahead(self._file, self._zeros_end, end + self._prewrite - self._zeros_end)
        if grown <= end:  # no room for all of it: this record alone
            write_zeros(self._file, self._zeros_end, end + BLOCK)
            grown = end + BLOCK
        self._zeros_end = grown

    def append(self, record: EncodedRecord) -> None:
        """Write the next record, for which there is room. Not durable before `sync`."""
        assert record.seq == self.seq + 1 and record.predecessor == self.chain
        frame = _frame(RECORD_MAGIC, self._salt, self.chain, self.log_synced, record.encoded)
        self._file.pwrite(self.offset, frame)
        self.chain = record.chain
        self.seq = record.seq
        self.offset += len(frame)
        self.commits += record.is_commit
        if record.durable:
            self._whole = (record.seq, record.chain)

    def sync(self) -> None:
        """The commit point: every appended record is durable once this returned."""
        self._file.datasync()
        self.log_synced = self.seq
        self.proven = self._whole

    def close(self) -> None:
        self._file.close()


def predecessor_of(view: LogView) -> Predecessor:
    """The cut behind what is proven synced, and the accepted records beyond it."""
    proven = [record for record in view.records if record.seq <= view.segment.log_synced]
    last = proven[-1]
    return Predecessor(
        index=view.segment.index,
        cut=last.frame.end,
        seq=last.seq,
        chain=last.chain,
        copies=[record.frame.record for record in view.records[len(proven) :]],
    )


def make_segment(
    fs: FileSystem,
    root: str,
    *,
    uuid: str,
    predecessor: Predecessor | None,
    opening: Mapping[str, Any],
    prewrite: int = PREWRITE_BYTES,
    first_seq: int | None = None,
    index: int | None = None,
) -> SegmentWriter:
    """Make the next segment durable and visible (rule 1), or the first one of a new store.

    `opening` is the opening record but for its seq. A publication passes over sequence numbers, a
    salvage over segments too.
    """
    before = predecessor or Predecessor(index=-1, cut=0, seq=0, chain=ZERO_DIGEST)
    salt, index = fs.random_bytes(8).hex(), before.index + 1 if index is None else index
    first = before.seq + 1 if first_seq is None else first_seq
    header = {
        "type": "segment",
        "version": FORMAT_VERSION,
        "uuid": uuid,
        "salt": salt,
        "index": index,
        "first_seq": first,
        "copies": len(before.copies),
        "predecessor": predecessor
        and {"index": before.index, "cut": before.cut, "seq": before.seq, "chain": before.chain},
    }
    seq = first + len(before.copies)
    records = [(copy, 0) for copy in before.copies]
    records.append((canonical_json({**opening, "seq": seq}), seq - 1))
    chain = before.chain
    frames = [_frame(HEADER_MAGIC, salt, chain, 0, canonical_json(header))]
    for record, log_synced in records:
        frames.append(_frame(RECORD_MAGIC, salt, chain, log_synced, record))
        chain = chain_hash(chain, record)
    content = b"".join(frames)
    file, zeros_end = _publish(fs, root, index, content, prewrite)
    return SegmentWriter(
        file,
        index=index,
        salt=salt,
        offset=len(content),
        zeros_end=zeros_end,
        seq=seq,
        chain=chain,
        prewrite=prewrite,
    )


def write_zeros(file: File, begin: int, end: int) -> None:
    for at in range(begin, end, len(ZEROS)):
        file.pwrite(at, memoryview(ZEROS)[: min(len(ZEROS), end - at)])


def cut_zeros(fs: FileSystem, root: str, index: int, end: int | None = None) -> None:
    """Cut a sealed segment to its length: `end` where only zeros are known to lie behind it, else
    whatever holds all that is not zero, since what an interrupted write left there stays."""
    path = f"{root}/{segment_file(index)}"
    length = len(read_bytes(fs, path).rstrip(b"\0")) if end is None else end
    file = fs.open(path, "write")
    try:
        file.truncate(-(-length // BLOCK) * BLOCK)
    finally:
        file.close()


def _frame(magic: bytes, salt: str, predecessor: str, log_synced: int, record: bytes) -> bytes:
    return build_frame(
        magic, salt=salt, predecessor=predecessor, log_synced=log_synced, record=record
    )


def _publish(
    fs: FileSystem, root: str, index: int, content: bytes, prewrite: int
) -> tuple[File, int]:
    """Write under a temporary name, sync, rename without replacing, sync the directory. The file,
    and where its zeros end: without room for them there are none, so that a full disk does not
    keep out who wants to delete."""
    directory = f"{root}/{WAL_DIRECTORY}"
    temporary, target = f"{directory}/{SEGMENT_TEMPORARY}", f"{root}/{segment_file(index)}"
    # A crash may have left it as a second name of a visible segment: never write through it.
    if SEGMENT_TEMPORARY in fs.list_directory(directory):
        fs.unlink(temporary)
    try:
        file = fs.open(temporary, "create")
        try:
            file.pwrite(0, content)
            zeros_end = _zeros_ahead(file, len(content), prewrite)
            file.datasync()
        finally:
            file.close()
    except OSError:
        unlink_quietly(fs, temporary)  # it may be what fills the disk
        raise
    fs.rename(temporary, target)
    fs.sync_directory(directory)
    return fs.open(target, "write"), zeros_end


def _zeros_ahead(file: File, begin: int, count: int) -> int:
    try:
        write_zeros(file, begin, begin + count)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        file.truncate(begin)
        return begin
    return begin + count
