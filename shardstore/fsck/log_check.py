"""Checks the whole log: each segment, what links them, and the fold of the newest one.

Contract: reads only. A writer may be at work: the newest segment is read again before it is called
damaged, and a segment that appears meanwhile starts the check afresh.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardstore.errors import CorruptionError
from shardstore.format.names import (
    FORMAT_VERSION,
    PACKED_TEMPORARY,
    SEGMENT_TEMPORARY,
    WAL_DIRECTORY,
    packed_index,
    segment_file,
    segment_index,
)
from shardstore.fs.protocol import FileSystem
from shardstore.fsck.findings import LOG_ADVICE, Finding, damage, from_error, note, unreadable
from shardstore.fsck.scan import SegmentScan, scan_segment
from shardstore.quarantine import SALVAGE
from shardstore.wal.reader import (
    REREADS,
    LogView,
    fold,
    list_segments,
    read_log,
    read_segment_bytes,
)
from shardstore.wal.state import State


@dataclass(slots=True, kw_only=True)
class LogCheck:
    """What the log said."""

    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    records: int = 0
    newest: SegmentScan | None = None
    uuids: set[str] = field(default_factory=set)
    """Stores that the headers of segments name."""
    view: LogView | None = None
    """The state, where the newest segment is sound."""
    state: State | None = None
    """`view.state`, or what the records before the damage add up to."""

    @property
    def position(self) -> tuple[int, int]:
        """Grows whenever the store changes."""
        newest = self.newest
        if newest is None or not newest.records:
            return (self.segments, 0)
        return (newest.index, newest.records[-1].seq)


def check_log(fs: FileSystem, root: str, uuid: str | None) -> LogCheck:
    """Everything about the log. `uuid` is None where STORE is damaged."""
    for _ in range(REREADS):
        try:
            indices = list_segments(fs, root)
        except OSError as error:
            return LogCheck(findings=[unreadable(f"{root}/{WAL_DIRECTORY}", error)])
        check = _check_segments(fs, root, indices, uuid)
        if not any(finding.is_damage for finding in check.findings):
            break
        if list_segments(fs, root) == indices and not _grew(fs, root, check):
            break
    _check_directory(fs, root, check)
    return check


def _check_segments(fs: FileSystem, root: str, indices: list[int], uuid: str | None) -> LogCheck:
    check = LogCheck(segments=len(indices))
    directory = f"{root}/{WAL_DIRECTORY}"
    if not indices:
        check.findings.append(
            damage("the log has no segment", directory, expected="one", found="none",
                   advice=LOG_ADVICE)
        )  # fmt: skip
        return check
    present = set(indices)
    successor: SegmentScan | None = None
    for index in reversed(range(indices[-1] + 1)):
        passed_over = successor is not None and _is_passed_over(successor, index)
        if passed_over or index not in present:
            path = f"{root}/{segment_file(index)}"
            check.findings[:0] = _not_read(path, passed_over, index in present)
            successor = successor if passed_over else None
            continue
        scan = _read(fs, root, index, successor, newest=index == indices[-1])
        _check_header(scan, uuid)
        if successor is not None:
            check.findings += _link_findings(successor, scan)
        check.findings = scan.findings + check.findings
        check.records += len(scan.records)
        check.uuids |= {str(scan.header["uuid"])} if scan.header else set()
        successor = scan
        if index == indices[-1]:
            check.newest = scan
    _fold_newest(fs, root, check)
    return check


def _not_read(path: str, is_passed_over: bool, is_there: bool) -> list[Finding]:
    """About a segment that is missing, or that a salvage passed over."""
    if not is_passed_over:
        return [damage("a segment of the log is missing", path, expected="a file", found="none",
                       advice=LOG_ADVICE)]  # fmt: skip
    if not is_there:
        return []
    what = "a salvage passed over this segment; the next opening for writing sets it aside"
    return [note(what, path)]


def _read(
    fs: FileSystem, root: str, index: int, successor: SegmentScan | None, *, newest: bool
) -> SegmentScan:
    path = f"{root}/{segment_file(index)}"
    cut = None
    link = successor.header.get("predecessor") if successor is not None else None
    if link and link["index"] == index:
        cut = int(link["cut"])
    scan = SegmentScan(file=path, index=index, size=0)
    for _ in range(REREADS if newest else 1):
        try:
            path, data = read_segment_bytes(fs, root, index)
            scan = scan_segment(data, path, index, cut=cut)
        except OSError as error:
            scan.findings.append(unreadable(path, error))
            return scan
        except CorruptionError as error:
            scan.findings.append(from_error(error, advice=LOG_ADVICE))
            return scan
        if not scan.damaged:
            break
    return scan


def _check_header(scan: SegmentScan, uuid: str | None) -> None:
    header = scan.header
    if not header:
        return
    has_link = header["predecessor"] is not None or (scan.index > 0 and _is_salvage(scan))
    for what, expected, found in (
        ("store", uuid or header["uuid"], header["uuid"]),
        ("version", FORMAT_VERSION, header["version"]),
        ("predecessor", scan.index > 0, has_link),
    ):
        if expected != found:
            scan.findings.append(
                damage(f"segment header: {what}", scan.file, 0, expected=expected, found=found,
                       advice=LOG_ADVICE)
            )  # fmt: skip


def _is_salvage(scan: SegmentScan) -> bool:
    return bool(scan.records) and scan.records[0].body.get("reason") == SALVAGE


def _is_passed_over(successor: SegmentScan, index: int) -> bool:
    """Whether a salvage took over from an older segment than the one before its own, or none."""
    if not successor.header or not _is_salvage(successor):
        return False
    link = successor.header["predecessor"]
    return index > (int(link["index"]) if link else -1)


def _link_findings(successor: SegmentScan, scan: SegmentScan) -> list[Finding]:
    """Whether a segment says of its predecessor what is there."""
    link = successor.header.get("predecessor")
    if not link or scan.damaged or not scan.records:
        return []
    last = scan.records[-1]
    found = {"index": scan.index, "cut": scan.end, "seq": last.seq, "chain": last.chain}
    return [
        damage(f"segment header: the predecessor's {key}", successor.file, 0,
               expected=found[key], found=link[key], advice=LOG_ADVICE)
        for key in found
        if link[key] != found[key]
    ]  # fmt: skip


def _fold_newest(fs: FileSystem, root: str, check: LogCheck) -> None:
    scan = check.newest
    assert scan is not None
    try:
        if not scan.damaged:
            check.view = read_log(fs, root)
            check.state = check.view.state
            fold(scan.records, int(scan.header["copies"]), root)  # with every `put` parsed
            return
        copies = int(scan.header.get("copies", 0)) if scan.header else 0
        whole = scan.records[: scan.whole_count]
        if len(whole) > copies and whole[copies].body["type"] == "open":
            check.state = fold(whole, copies, root)
    except CorruptionError as error:
        check.findings.append(from_error(error, advice=LOG_ADVICE))


def _grew(fs: FileSystem, root: str, check: LogCheck) -> bool:
    """Whether a writer added records since the check read the newest segment."""
    if check.newest is None:
        return False
    fresh = _read(fs, root, check.newest.index, None, newest=True)
    return len(fresh.records) != len(check.newest.records)


def _check_directory(fs: FileSystem, root: str, check: LogCheck) -> None:
    directory = f"{root}/{WAL_DIRECTORY}"
    names = fs.list_directory(directory)
    for name in names:
        if name in (SEGMENT_TEMPORARY, PACKED_TEMPORARY):
            doing = "made" if name == SEGMENT_TEMPORARY else "compressed"
            check.findings.append(
                note(f"a segment that was being {doing}; the next one replaces it",
                     f"{directory}/{name}")
            )  # fmt: skip
        elif packed_index(name) is not None:
            if segment_file(packed_index(name) or 0).rpartition("/")[2] in names:
                what = "a compressed segment beside the plain one, which counts"
                check.findings.append(note(what, f"{directory}/{name}"))
        elif segment_index(name) is None:
            check.findings.append(note("not a file of the store", f"{directory}/{name}"))
