"""Reads segments of the log and folds the newest one; changes no byte.

`read_log` is what writers, readers and fsck share: the state that it returns depends on the disk
and the boot id only (rule 4 of docs/design.md). Errors are CorruptionError with file and offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardstore.errors import CorruptionError
from shardstore.format.frames import (
    BLOCK,
    HEADER_MAGIC,
    RECORD_MAGIC,
    BadFrame,
    Frame,
    judge_tail,
    parse_frame,
)
from shardstore.format.manifest import CommitInfo, is_archived, manifest_digest
from shardstore.format.names import (
    FORMAT_VERSION,
    STORE_FILE,
    WAL_DIRECTORY,
    packed_file,
    packed_index,
    segment_file,
    segment_index,
)
from shardstore.format.packed import unpack_segment
from shardstore.fs.calls import is_loss
from shardstore.fs.protocol import FileSystem
from shardstore.wal.deferred import decode_record
from shardstore.wal.state import FoldError, State

REREADS = 8
"""A live writer may be in the middle of an append: read again before complaining."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One accepted record and where it stands."""

    body: Mapping[str, Any]
    frame: Frame
    chain: str
    segment: int

    @property
    def seq(self) -> int:
        return int(self.body["seq"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment's header and accepted records."""

    index: int
    header: Mapping[str, Any]
    records: list[LogRecord]
    end: int
    """Offset behind the last accepted record."""
    torn: bool
    """Whether an interrupted write lies beyond `end`."""
    size: int
    log_synced: int
    """Highest sequence number that is proven to be synced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """What the log says: the newest segment, its last opening and the chosen state."""

    segment: Segment
    opening: Mapping[str, Any]
    """The newest `open` record."""
    records: list[LogRecord]
    """Accepted records of the newest segment up to the chosen one."""
    state: State
    abandoned: list[LogRecord]
    """Valid records that the choice of rule 4 leaves out."""
    copied: bool
    """STORE is not the file that the last writer knew: this directory is a copy."""
    same_boot: bool

    @property
    def last(self) -> LogRecord:
        return self.records[-1]


def list_segments(fs: FileSystem, root: str) -> list[int]:
    """Indices of the visible segments, compressed or not, ascending."""
    return _indices(fs.list_directory(f"{root}/{WAL_DIRECTORY}"))


def _indices(names: list[str]) -> list[int]:
    found = {segment_index(name) for name in names} | {packed_index(name) for name in names}
    return sorted(index for index in found if index is not None)


def read_segment_bytes(fs: FileSystem, root: str, index: int) -> tuple[str, bytes]:
    """A segment's path and bytes; of one that is there in both forms the plain one counts."""
    path = f"{root}/{segment_file(index)}"
    try:
        return path, read_bytes(fs, path)
    except FileNotFoundError as error:
        packed = f"{root}/{packed_file(index)}"
        try:
            data = read_bytes(fs, packed)
        except FileNotFoundError:
            raise error from None
        return packed, unpack_segment(data, packed)


def read_segment(fs: FileSystem, root: str, index: int, *, cut: int | None = None) -> Segment:
    """Read and check one segment; with `cut` only what lies before that offset counts."""
    for attempt in range(REREADS):
        try:
            return _scan(read_segment_bytes(fs, root, index), index, cut)
        except CorruptionError:
            if attempt == REREADS - 1:
                raise
    raise AssertionError("unreachable")


def segment_header(fs: FileSystem, root: str, index: int) -> Mapping[str, Any]:
    """A segment's header alone, checked by itself."""
    path = f"{root}/{segment_file(index)}"
    try:
        data = read_bytes(fs, path, limit=BLOCK)
    except FileNotFoundError:
        path, data = read_segment_bytes(fs, root, index)
    frame = parse_frame(data, 0)
    if isinstance(frame, BadFrame):
        raise _corruption(path, frame)
    return decode(path, frame)


def read_log(
    fs: FileSystem, root: str, *, uuid: str | None = None, assume_power_cut: bool = False
) -> LogView:
    """The newest segment folded to the state that rule 4 chooses.

    With `uuid`, what STORE says, a segment of another store is refused.
    """
    segment = read_segment(fs, root, _newest(fs, root))
    if uuid is not None and segment.header["uuid"] != uuid:
        raise CorruptionError(
            "this segment belongs to another store",
            file=f"{root}/{segment_file(segment.index)}",
            offset=0,
            expected=uuid,
            found=segment.header["uuid"],
        )
    opening = next(r.body for r in reversed(segment.records) if r.body["type"] == "open")
    same_boot = opening["boot"] == fs.boot_id()
    copied = _is_copied(fs, f"{root}/{STORE_FILE}", opening, same_boot=same_boot)
    count = len(segment.records)
    if copied or not same_boot or assume_power_cut:
        count = 1 + max(i for i, r in enumerate(segment.records) if r.body["durable"])
    records = segment.records[:count]
    return LogView(
        segment=segment,
        opening=opening,
        records=records,
        state=fold(records, int(segment.header["copies"]), root),
        abandoned=segment.records[count:],
        copied=copied,
        same_boot=same_boot,
    )


def _is_copied(fs: FileSystem, store: str, opening: Mapping[str, Any], *, same_boot: bool) -> bool:
    """Whether STORE, at path `store`, is another file than the one that the last writer knew."""
    try:
        stat = fs.stat(store)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or not is_loss(error):
            raise
        return True
    return stat.inode != opening["store_inode"] or (
        same_boot and stat.device != opening["store_device"]
    )


def durable_state(view: LogView, root: str) -> State:
    """What of the view's state survives a power cut."""
    if view.last.body["durable"]:
        return view.state
    count = 1 + max(i for i, record in enumerate(view.records) if record.body["durable"])
    return fold(view.records[:count], int(view.segment.header["copies"]), root)


def _newest(fs: FileSystem, root: str) -> int:
    """Index of the newest segment; a compressed one has two successors, so it never is that."""
    names = fs.list_directory(f"{root}/{WAL_DIRECTORY}")
    indices = _indices(names)
    if not indices:
        raise CorruptionError(
            "the log has no segment", file=f"{root}/{WAL_DIRECTORY}", expected="one", found="none"
        )
    index = indices[-1]
    if segment_file(index).rpartition("/")[2] not in names:
        raise CorruptionError(
            "the newest segments of the log are missing: the newest that is there is compressed, "
            "and one is compressed only when two follow it", file=f"{root}/{packed_file(index)}",
            expected="two segments behind it", found="none",
        )  # fmt: skip
    return index


def fold(records: list[LogRecord], copies: int, root: str) -> State:
    """The state after a segment's records; copies come before the opening that includes them."""
    state = State()
    for record in records[copies:]:
        try:
            state.apply(record.body, record.chain)
        except (FoldError, KeyError, TypeError, ValueError, StopIteration) as error:
            raise CorruptionError(
                f"record {record.seq} does not fit the state before it: {error}",
                file=f"{root}/{segment_file(record.segment)}",
                offset=record.frame.offset,
            ) from error
    try:
        state.resolve()
    except (TypeError, ValueError) as error:
        raise CorruptionError(
            f"a record's references are not readable: {error}",
            file=f"{root}/{segment_file(records[-1].segment)}",
        ) from error
    for record in records:
        kept = state.commits.get(record.seq)
        if kept is not None and record.body["type"] == "commit":
            check_manifest(kept, record, root)
    return state


def read_bytes(fs: FileSystem, path: str, *, limit: int | None = None) -> bytes:
    """The whole of a small file, or its beginning."""
    file = fs.open(path, "read")
    try:
        size = file.size()
        buffer = bytearray(size if limit is None else min(size, limit))
        count = file.pread(0, buffer)
        return bytes(memoryview(buffer)[:count])
    finally:
        file.close()


def _scan(source: tuple[str, bytes], index: int, cut: int | None) -> Segment:
    path, whole = source
    data = whole if cut is None else whole[:cut]
    frame = parse_frame(data, 0)
    if isinstance(frame, BadFrame):
        raise _corruption(path, frame)
    header = decode(path, frame)
    if frame.magic != HEADER_MAGIC or header.get("index") != index:
        raise CorruptionError("not this segment's header", file=path, offset=0)
    if header.get("version") != FORMAT_VERSION:
        raise CorruptionError(
            "the segment is of another version of the format", file=path, offset=0,
            expected=FORMAT_VERSION, found=header.get("version"),
        )  # fmt: skip
    salt, chain = str(header["salt"]), frame.predecessor
    seq, offset = int(header["first_seq"]), frame.end
    records: list[LogRecord] = []
    torn = False
    while offset < len(data):
        found = parse_frame(data, offset)
        if isinstance(found, Frame):
            found = _expected(found, salt, chain)
        body = decode(path, found) if isinstance(found, Frame) else None
        if isinstance(found, BadFrame) or body is None or body.get("seq") != seq:
            bad = found if isinstance(found, BadFrame) else _wrong(found, "sequence", seq)
            torn = _end_of_log(path, data, bad, salt=salt, seq=seq)
            break
        chain = found.chain
        records.append(LogRecord(body=body, frame=found, chain=chain, segment=index))
        seq, offset = seq + 1, found.end
    copies = int(header["copies"])
    if len(records) <= copies or records[copies].body["type"] != "open":
        raise CorruptionError(
            "the segment's opening is damaged", file=path, offset=offset, expected="an open record",
            found="none",
        )  # fmt: skip
    if cut is not None and (offset != cut or torn):
        raise CorruptionError("the segment ends early", file=path, offset=offset, expected=cut,
                              found=offset)  # fmt: skip
    proven = [records[copies].seq, *(record.frame.log_synced for record in records)]
    return Segment(
        index=index,
        header=header,
        records=records,
        end=offset,
        torn=torn,
        size=len(whole),
        log_synced=max(proven),
    )


def check_manifest(commit: CommitInfo, record: LogRecord, root: str) -> None:
    """What survives the fold must add up; what is un-kept again is not asked, nor what came back
    from an archived snapshot, with other objects of the same tensors."""
    if is_archived(commit.manifest):
        return
    expected, found = record.body["manifest_digest"], manifest_digest(commit.manifest)
    if found != expected:
        raise CorruptionError(
            f"commit {commit.seq} does not add up to its manifest's digest",
            file=f"{root}/{segment_file(record.segment)}",
            offset=record.frame.offset,
            expected=expected,
            found=found,
        )


def _expected(frame: Frame, salt: str, chain: str) -> Frame | BadFrame:
    if frame.magic != RECORD_MAGIC:
        return _wrong(frame, "magic", RECORD_MAGIC.decode())
    if frame.salt != salt:
        return _wrong(frame, "salt", salt)
    if frame.predecessor != chain:
        return _wrong(frame, "chain hash of the predecessor", chain)
    return frame


def _wrong(frame: Frame, what: str, expected: object) -> BadFrame:
    return BadFrame(
        offset=frame.offset,
        what=f"{what} of the frame",
        expected=str(expected),
        found="another",
    )


def _end_of_log(path: str, data: bytes, bad: BadFrame, *, salt: str, seq: int) -> bool:
    verdict = judge_tail(data, bad, salt=salt, seq=seq)
    if isinstance(verdict, BadFrame):
        raise _corruption(path, verdict)
    return verdict


def decode(path: str, frame: Frame) -> dict[str, Any]:
    """A frame's record."""
    try:
        value = decode_record(frame.record)
    except ValueError as error:
        what = f"a record is not JSON: {error}"
        raise CorruptionError(what, file=path, offset=frame.offset) from error
    if not isinstance(value, dict):
        raise CorruptionError("a record is not a JSON object", file=path, offset=frame.offset)
    return value


def _corruption(path: str, bad: BadFrame) -> CorruptionError:
    return CorruptionError(
        bad.what, file=path, offset=bad.offset, expected=bad.expected, found=bad.found
    )
