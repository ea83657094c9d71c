"""What the log still says, read past its damage; changes no byte.

Contract: a sound log gives the state that every opening would take. Of a damaged one every whole
record is used: those that follow each other as always; behind a gap a commit only if its manifest
adds up to the digest in its record, and a ref only if it fits what is known. The result may name
objects that were written again since, so `choice` verifies all of them.

The *anchor* is where the next segment takes over: the newest record up to which a segment of the
log is whole from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardstore.catalog import Mark, check_not_ahead, find_mark
from shardstore.errors import CorruptionError
from shardstore.format.manifest import CommitInfo, ObjectRef, manifest_digest
from shardstore.format.names import (
    STORE_FILE,
    WAL_DIRECTORY,
    packed_index,
    segment_file,
    segment_index,
)
from shardstore.fs.calls import is_loss
from shardstore.fs.protocol import FileSystem
from shardstore.fsck.findings import damage, from_error, unreadable
from shardstore.fsck.scan import SegmentScan, scan_segment
from shardstore.quarantine import COPY, MOVE, Aside
from shardstore.wal.reader import (
    LogRecord,
    list_segments,
    read_log,
    read_segment,
    read_segment_bytes,
)
from shardstore.wal.state import FoldError, State
from shardstore.wal.writer import Predecessor

_MISFITS = (FoldError, KeyError, TypeError, ValueError, StopIteration, AttributeError)


@dataclass(slots=True, kw_only=True)
class Evidence:
    """What is known, and what became of the rest."""

    uuid: str | None = None
    """Of the store, as STORE or the log has it."""
    store: str = ""
    """What is wrong with STORE: `damaged`, `unreadable`, `missing` or `another store's`."""
    state: State | None = None
    """None where no opening record can be read: the log is of no use."""
    anchor: Predecessor | None = None
    newest: int = -1
    """The highest index that a segment has."""
    top: int = 0
    """No number above it was seen anywhere in the log."""
    is_sound: bool = True
    """The log needs nothing."""
    lost: list[str] = field(default_factory=list)
    aside: list[Aside] = field(default_factory=list)
    """Segments to set aside."""


def read_evidence(fs: FileSystem, root: str, uuid: str | None) -> Evidence:
    """`uuid` is None where STORE does not say it."""
    found = Evidence(uuid=uuid)
    try:
        indices = list_segments(fs, root)
    except FileNotFoundError:
        indices = []
        found.lost.append(f"the directory {WAL_DIRECTORY}/ is missing, and the log with it")
    found.newest = max(indices, default=-1)
    trouble = _read_sound(fs, root, found) if indices else "the log has no segment"
    if trouble is not None:
        _read_damaged(fs, root, found, indices)
        if not (found.lost or found.aside) and trouble:
            found.lost.append(f"the log is damaged: {trouble}")
        found.is_sound = not found.lost and found.state is not None
    mark = _mark(fs, root, found)
    found.top = max(found.top, 0 if mark is None else mark.seq)
    return found


def _mark(fs: FileSystem, root: str, found: Evidence) -> Mark | None:
    return None if found.uuid is None else find_mark(fs, root, found.uuid)[0]


def _read_sound(fs: FileSystem, root: str, found: Evidence) -> str | None:
    """The state, where the newest segment is what it should be; else what is wrong with it."""
    mark = _mark(fs, root, found)  # before the log: a writer may be at work
    try:
        view = read_log(fs, root, uuid=found.uuid)
    except CorruptionError as error:
        return f"{error.file}: {error.what}"
    except OSError as error:
        lost = unreadable(str(error.filename), error)
        return "" if lost.file == f"{root}/{STORE_FILE}" else f"{lost.file}: {lost.what}"
    if found.uuid is None:
        found.uuid = str(view.segment.header["uuid"])
        mark = _mark(fs, root, found)
    found.state = view.state
    last = view.last
    found.anchor = Predecessor(
        index=view.segment.index, cut=last.frame.end, seq=last.seq, chain=last.chain
    )
    found.top = max(found.top, view.segment.records[-1].seq)
    try:
        check_not_ahead(root, mark, view)
    except CorruptionError:
        assert mark is not None
        found.is_sound = False
        found.lost.append(
            f"the log has lost its end: records {last.seq + 1} to {mark.seq} were durable, and "
            "what they did is unknown"
        )
    return None


def _read_damaged(fs: FileSystem, root: str, found: Evidence, indices: list[int]) -> None:
    """Every whole record from the newest backwards, until a state and an anchor are there."""
    records: dict[int, LogRecord] = {}
    reasons: dict[int, str] = {}
    successor: SegmentScan | None = None
    for index in reversed(indices):
        scan = _scan(fs, root, index, successor, found.uuid)
        successor = scan
        if scan.damaged:
            reasons[index] = next(f for f in scan.findings if f.is_damage).line()
        if scan.header:
            found.uuid = found.uuid or str(scan.header["uuid"])
        for record in scan.records:
            records.setdefault(record.seq, record)
            found.top = max(found.top, record.seq, record.frame.log_synced)
        if found.anchor is None:
            found.anchor = _anchor(fs, root, scan)
        has_state = any(record.body["type"] == "open" for record in records.values())
        if found.anchor is not None and has_state:
            break
    found.lost += [f"the log is damaged: {reasons[index]}" for index in sorted(reasons)]
    _fold(found, [records[seq] for seq in sorted(records)])
    found.aside += _segments_aside(fs, root, found.anchor, reasons)


def _scan(
    fs: FileSystem, root: str, index: int, successor: SegmentScan | None, uuid: str | None
) -> SegmentScan:
    cut: int | None = None
    link = successor.header.get("predecessor") if successor is not None else None
    if link and link["index"] == index:
        cut = int(link["cut"])
    path = f"{root}/{segment_file(index)}"
    try:
        path, data = read_segment_bytes(fs, root, index)
    except OSError as error:
        return SegmentScan(file=path, index=index, size=0, findings=[unreadable(path, error)])
    except CorruptionError as error:
        return SegmentScan(file=path, index=index, size=0, findings=[from_error(error)])
    scan = scan_segment(data, path, index, cut=cut)
    header = scan.header
    if header and (header["index"] != index or header["uuid"] != (uuid or header["uuid"])):
        what = damage("a segment of another place or store", path, 0)
        scan = SegmentScan(file=path, index=index, size=len(data), findings=[what])
    return scan


def _anchor(fs: FileSystem, root: str, scan: SegmentScan) -> Predecessor | None:
    """The end of the segment's whole beginning, if reading it as a sealed one succeeds."""
    if not scan.header or not scan.whole_count:
        return None
    last = scan.records[scan.whole_count - 1]
    cut = last.frame.end
    try:
        read_segment(fs, root, scan.index, cut=cut)
    except OSError as error:
        if not is_loss(error):
            raise
        return None
    except (CorruptionError, KeyError, TypeError, ValueError):
        return None
    return Predecessor(index=scan.index, cut=cut, seq=last.seq, chain=last.chain)


def _segments_aside(
    fs: FileSystem, root: str, anchor: Predecessor | None, reasons: Mapping[int, str]
) -> list[Aside]:
    """Segments that the next one passes over, and a copy of the damaged one that it cuts."""
    rows: list[Aside] = []
    kept = -1 if anchor is None else anchor.index
    try:
        names = fs.list_directory(f"{root}/{WAL_DIRECTORY}")
    except FileNotFoundError:
        return rows
    for name in names:
        index = segment_index(name)
        index = packed_index(name) if index is None else index
        if index is None:
            continue
        why = reasons.get(index, "no segment that is whole leads to it")
        if index > kept:
            rows.append(Aside(MOVE, f"{WAL_DIRECTORY}/{name}", why))
        elif index == kept and index in reasons:
            rows.append(Aside(COPY, f"{WAL_DIRECTORY}/{name}", why))
    return rows


# ---------------------------------------------------------------------- the fold past gaps


def _fold(found: Evidence, records: list[LogRecord]) -> None:
    """The state after all readable records from the newest opening on."""
    opening = max((r.seq for r in records if r.body["type"] == "open"), default=None)
    if opening is None:
        return
    state, before = State(), opening - 1
    for record in records:
        if record.seq < opening:
            continue
        if record.seq != before + 1:
            found.lost.append(_range(before + 1, record.seq - 1) + " of the log cannot be read")
        before = record.seq
        after = _applied(state, record)
        if after is None:
            found.lost.append(_unfit(record))
        else:
            state = after
    found.state = state


def _applied(state: State, record: LogRecord) -> State | None:
    """The state after a record, or None where what is missing before it cannot be done without."""
    after = state.copy()
    try:
        after.apply(record.body, record.chain)
        if record.body["type"] == "commit":
            _check(after.commits[record.seq], record.body)
        return after
    except _MISFITS:
        if record.body["type"] != "commit":
            return None
    try:
        return _with_commit(state.copy(), record)
    except _MISFITS:
        return None


def _with_commit(state: State, record: LogRecord) -> State:
    """A commit whose parent is lost: whole if the objects it puts, over those that are known, are
    the manifest whose digest it names."""
    body, branch = record.body, str(record.body["branch"])
    head, _ = state.branches.get(branch, (None, 0))
    known = state.commits.get(head) if head is not None else None
    manifest = {} if known is None else dict(known.manifest)
    for shard, part in body["remove"]:
        manifest.pop((shard, part), None)
    manifest |= {(shard, part): ObjectRef.from_json(ref) for shard, part, ref in body["put"]}
    plain = ("branch", "line", "step", "time", "parent", "txn", "metadata", "blobs")
    commit = CommitInfo(
        seq=record.seq,
        chain=record.chain,
        manifest=manifest,
        **{name: body[name] for name in plain},
    )
    _check(commit, body)
    state.commits[record.seq] = commit
    state.branches[branch] = (record.seq, commit.line)
    for seq in body["unkeep"]:
        state.commits.pop(seq, None)
    state.seq = record.seq
    return state


def _check(commit: CommitInfo, body: Mapping[str, Any]) -> None:
    if manifest_digest(commit.manifest) != body["manifest_digest"]:
        raise FoldError("the manifest does not add up")


def _unfit(record: LogRecord) -> str:
    body = record.body
    if body["type"] == "commit":
        return (
            f"step {body.get('step')} (record {record.seq}) cannot be put together: it keeps "
            "objects that only lost records name"
        )
    name = body.get("name") or body.get("branch") or ""
    return f"record {record.seq} ({body['type']} {name}".rstrip() + ") does not fit what is left"


def _range(first: int, last: int) -> str:
    return f"record {first}" if first == last else f"records {first} to {last}"


def newest_first(commits: Iterable[CommitInfo], *, proven: bool) -> list[CommitInfo]:
    """By sequence number, or, where those were made up, by the transactions' write ids."""
    return sorted(commits, key=lambda c: (c.seq if proven else 0, c.txn, c.seq), reverse=True)
