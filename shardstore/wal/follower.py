"""Follows the log of a live store: what came after the last look, instead of all of it again.

Contract: `state` is what `read_log` would give now. Records are taken over only where they continue
the segment that was read last, frame by frame, with the same checks; whatever is unusual (another
segment, bad bytes, a copy, another boot) is left to `read_log`. States that were given out are not
changed any more. Any thread may call.
"""

from __future__ import annotations

import threading

from shardstore.errors import CorruptionError
from shardstore.format.frames import BLOCK, RECORD_MAGIC, BadFrame, Frame, is_zero, parse_frame
from shardstore.format.names import segment_file
from shardstore.fs.protocol import FileSystem
from shardstore.wal.reader import (
    LogRecord,
    LogView,
    check_manifest,
    decode,
    list_segments,
    read_log,
)
from shardstore.wal.state import FoldError, State

PIECE_BYTES = 64 * 1024


_NOT_WHAT_FOLLOWS = (CorruptionError, FoldError, KeyError, TypeError, ValueError, StopIteration)


class LogFollower:
    """See the module's docstring."""

    def __init__(self, fs: FileSystem, root: str, uuid: str, view: LogView) -> None:
        self._fs = fs
        self._root = root
        self._uuid = uuid
        self._mutex = threading.Lock()
        self._start(view)

    def state(self) -> State:
        """The state at the end of the log."""
        with self._mutex:
            if not self._follow():
                self._start(read_log(self._fs, self._root, uuid=self._uuid))
            return self._state

    def _start(self, view: LogView) -> None:
        last = view.last
        self._state, self._index = view.state, view.segment.index
        self._offset, self._seq, self._chain = last.frame.end, last.seq, last.chain
        self._salt = str(view.segment.header["salt"])
        self._inode = self._fs.stat(self._path()).inode
        self._usual = view.same_boot and not view.copied and not view.abandoned

    def _path(self) -> str:
        return f"{self._root}/{segment_file(self._index)}"

    def _follow(self) -> bool:
        """Take over what is new; False where the whole log has to be read, which then tells why."""
        if not self._usual or list_segments(self._fs, self._root)[-1:] != [self._index]:
            return False
        if self._fs.stat(self._path()).inode != self._inode:
            return False
        try:
            news = self._news()
            if news:
                self._take_over(news)
        except _NOT_WHAT_FOLLOWS:
            return False
        return news is not None

    def _take_over(self, news: list[LogRecord]) -> None:
        state = self._state.copy()
        for record in news:
            state.apply(record.body, record.chain)
        state.resolve()
        for record in news:
            kept = state.commits.get(record.seq)
            if kept is not None and record.body["type"] == "commit":
                check_manifest(kept, record, self._root)
        last = news[-1]
        self._offset += last.frame.end
        self._state, self._seq, self._chain = state, last.seq, last.chain

    def _news(self) -> list[LogRecord] | None:
        """Records after the last one known (their offsets count from there), None where there is
        anything else."""
        data = self._tail()
        records: list[LogRecord] = []
        offset, seq, chain = 0, self._seq, self._chain
        while offset < len(data) and not is_zero(data, offset, offset + BLOCK):
            frame = parse_frame(data, offset)
            if isinstance(frame, BadFrame) or not self._continues(frame, chain):
                return None
            body = decode(self._path(), frame)
            seq, offset, chain = seq + 1, frame.end, frame.chain
            if body["seq"] != seq or body["type"] == "open":
                return None
            records.append(LogRecord(body=body, frame=frame, chain=chain, segment=self._index))
        return records

    def _continues(self, frame: Frame, chain: str) -> bool:
        expected = (RECORD_MAGIC, self._salt, chain)
        return (frame.magic, frame.salt, frame.predecessor) == expected

    def _tail(self) -> bytes:
        """Bytes from the last record on, up to zeros that were written in advance or the end."""
        file = self._fs.open(self._path(), "read")
        try:
            size = PIECE_BYTES
            while True:
                piece = bytearray(size)
                count = file.pread(self._offset, piece)
                if count < size or is_zero(bytes(piece), size - BLOCK, size):
                    return bytes(piece[:count])
                size *= 4
        finally:
            file.close()
