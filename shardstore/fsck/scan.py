"""Reads one segment of the log past its damage: every frame that is whole, every place that is not.

`wal.reader` stops at the first damage, as whoever wants the state must; a check goes on. Pure:
bytes in, values out. What the verdict on a bad frame is stands in `format.frames` for both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardstore.format.digests import ZERO_DIGEST
from shardstore.format.frames import (
    BLOCK,
    HEADER_MAGIC,
    RECORD_MAGIC,
    BadFrame,
    Frame,
    is_zero,
    judge_tail,
    parse_frame,
)
from shardstore.fsck.findings import LOG_ADVICE, Finding, damage, note
from shardstore.wal.reader import LogRecord


@dataclass(slots=True, kw_only=True)
class SegmentScan:
    """A segment as it was found."""

    file: str
    index: int
    size: int
    header: Mapping[str, Any] = field(default_factory=dict)
    """Empty where it is damaged."""
    header_frame: Frame | None = None
    records: list[LogRecord] = field(default_factory=list)
    whole_count: int = 0
    """How many of the records stand before the first damage."""
    end: int = 0
    """Offset behind the last whole frame."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        return any(finding.is_damage for finding in self.findings)


def scan_segment(data: bytes, file: str, index: int, *, cut: int | None = None) -> SegmentScan:
    """Every frame up to `cut` (where the successor took over), or to the end of the log."""
    scanner = _Scanner(data if cut is None else data[:cut], file, index, cut)
    scanner.scan.size = len(data)
    scanner.read_header()
    scanner.read_records()
    scanner.check_opening()
    return scanner.scan


class _Scanner:
    def __init__(self, data: bytes, file: str, index: int, cut: int | None) -> None:
        self.data = data
        self.cut = cut
        self.scan = SegmentScan(file=file, index=index, size=len(data))
        self.salt: str | None = None
        # What the next record must say; None after damage, when it is taken as it comes.
        self.seq: int | None = None
        self.chain: str | None = None

    def read_header(self) -> None:
        scan, frame = self.scan, parse_frame(self.data, 0)
        if isinstance(frame, Frame) and frame.magic != HEADER_MAGIC:
            frame = _wrong(frame, "magic", HEADER_MAGIC.decode(), frame.magic.decode())
        header = _decode(frame) if isinstance(frame, Frame) else None
        if isinstance(frame, BadFrame) or header is None or not _is_header(header):
            bad = frame if isinstance(frame, BadFrame) else _wrong(frame, "record", "a header", "?")
            scan.findings.append(_of(bad, scan.file, "segment header: "))
            return
        scan.header, scan.header_frame, scan.end = header, frame, frame.end
        self.salt, self.chain = str(header["salt"]), frame.predecessor
        self.seq = int(header["first_seq"])
        predecessor = header["predecessor"]
        chain = str(predecessor["chain"]) if predecessor else ZERO_DIGEST
        for what, expected, found in (
            ("index", scan.index, header["index"]),
            ("chain hash of the predecessor", chain, frame.predecessor),
        ):
            if expected != found:
                scan.findings.append(
                    damage(f"segment header: {what}", scan.file, 0, expected=expected, found=found,
                           advice=LOG_ADVICE)
                )  # fmt: skip

    def read_records(self) -> None:
        at: int | None = self.scan.end or self._next_frame(0)
        while at is not None and at < len(self.data):
            found = self._record(at)
            if isinstance(found, LogRecord):
                self._accept(found)
                at = found.frame.end
            else:
                at = self._past(found)
        scan = self.scan
        if self.cut is not None and scan.end < self.cut and not scan.damaged:
            self._add(damage("the segment ends early", scan.file, scan.end,
                             expected=self.cut, found=scan.end, advice=LOG_ADVICE))  # fmt: skip

    def check_opening(self) -> None:
        scan = self.scan
        if scan.damaged:
            return
        copies = int(scan.header["copies"])
        if len(scan.records) <= copies or scan.records[copies].body["type"] != "open":
            self._add(damage("the segment's opening is damaged", scan.file, scan.end,
                             expected="an open record", found="none",
                             advice=LOG_ADVICE))  # fmt: skip

    def _record(self, at: int) -> LogRecord | BadFrame:
        frame = parse_frame(self.data, at)
        if isinstance(frame, BadFrame):
            return frame
        body = _decode(frame)
        for what, expected, found in (
            ("magic", RECORD_MAGIC.decode(), frame.magic.decode()),
            ("salt", self.salt, frame.salt),
            ("chain hash of the predecessor", self.chain, frame.predecessor),
            ("record", "a JSON object with type and seq", None if body else "another thing"),
            ("sequence number", self.seq, body and body["seq"]),
        ):
            if expected is not None and found is not None and expected != found:
                return _wrong(frame, what, expected, found)
        assert body is not None
        return LogRecord(body=body, frame=frame, chain=frame.chain, segment=self.scan.index)

    def _accept(self, record: LogRecord) -> None:
        scan = self.scan
        self.salt, self.chain, self.seq = record.frame.salt, record.chain, record.seq + 1
        scan.records.append(record)
        scan.end = record.frame.end
        if not scan.damaged:
            scan.whole_count = len(scan.records)

    def _past(self, bad: BadFrame) -> int | None:
        """Note what the bad frame means; where to go on."""
        scan = self.scan
        verdict: BadFrame | bool = bad
        if self.cut is None:
            # After damage the expected number is unknown: nothing that follows can claim it.
            seq = self.seq if self.seq is not None else 2**64
            verdict = judge_tail(self.data, bad, salt=self.salt or "", seq=seq)
        if verdict is False:
            return None
        if verdict is True:
            self._add(note("an interrupted append: the next opening for writing cuts it off",
                           scan.file, bad.offset))  # fmt: skip
            return None
        self._add(_of(verdict if isinstance(verdict, BadFrame) else bad, scan.file, ""))
        following = self._next_frame(bad.offset + BLOCK)
        if following is not None:
            self._report_loss(bad.offset, following)
        elif self.cut is None and isinstance(verdict, BadFrame):
            self.seq = self.chain = None
            return self._next_zero_block(verdict.offset)
        return following

    def _next_zero_block(self, offset: int) -> int:
        """Where the written stretch around an offset ends; more damage may lie behind it."""
        at = offset // BLOCK * BLOCK
        while at < len(self.data) and not is_zero(self.data, at, at + BLOCK):
            at += BLOCK
        return at

    def _report_loss(self, offset: int, following: int) -> None:
        frame = parse_frame(self.data, following)
        body = _decode(frame) if isinstance(frame, Frame) else None
        if body is not None and self.seq is not None:
            last = int(body["seq"]) - 1
            names = f"record {last}" if last == self.seq else f"records {self.seq} to {last}"
            self._add(note(f"{names} cannot be read; whole frames follow at {following}",
                           self.scan.file, offset))  # fmt: skip
        self.seq = self.chain = None

    def _next_frame(self, begin: int) -> int | None:
        """Offset of the next whole frame of this segment."""
        for at in range(begin, len(self.data), BLOCK):
            if self.data[at : at + 4] != RECORD_MAGIC:
                continue
            frame = parse_frame(self.data, at)
            if isinstance(frame, Frame) and self.salt in (None, frame.salt) and _decode(frame):
                return at
        return None

    def _add(self, finding: Finding) -> None:
        self.scan.findings.append(finding)


def _of(bad: BadFrame, file: str, where: str) -> Finding:
    return damage(
        where + bad.what, file, bad.offset, expected=bad.expected, found=bad.found,
        advice=LOG_ADVICE,
    )  # fmt: skip


def _wrong(frame: Frame, what: str, expected: object, found: object) -> BadFrame:
    return BadFrame(
        offset=frame.offset, what=f"{what} of the frame", expected=str(expected), found=str(found)
    )


def _decode(frame: Frame) -> dict[str, Any] | None:
    """The record, if it is an object with a type; records have a sequence number too."""
    try:
        value = json.loads(frame.record)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return None
    return value if frame.magic == HEADER_MAGIC or isinstance(value.get("seq"), int) else None


def _is_header(value: Mapping[str, Any]) -> bool:
    keys = {"copies", "first_seq", "index", "predecessor", "salt", "type", "uuid", "version"}
    return value.keys() == keys and isinstance(value["salt"], str)
