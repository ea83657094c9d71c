"""What a writer does for its old log beside the work: compress sealed segments, keep the catalog.

Contract: only a session that holds the writer's lock has one. Marks are written on the caller's
thread (a small file, no sync); the rest is a thread of its own, begun when enough is due at an
opening or a roll, and awaited by `finish` before the lock goes. No commit waits for it. Nothing
here is needed: what fails is left for the next time, and no failure reaches the caller.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from shardstore import catalog
from shardstore.errors import CorruptionError
from shardstore.format.names import CATALOG_DIRECTORY
from shardstore.fs.protocol import FileSystem
from shardstore.jobs import Once, start_thread
from shardstore.wal.compress import compress_segments, is_due
from shardstore.wal.reader import LogRecord, list_segments, read_segment, segment_header

INDEX_RECORDS_MIN = 256
INDEX_PART_MIN = 50
"""The index is renewed once that many records are missing, and a fiftieth of what it holds."""

_HARMLESS = (OSError, CorruptionError, catalog.CatalogError)


class Upkeep:
    """See the module's docstring."""

    def __init__(self, fs: FileSystem, root: str, uuid: str, mark: catalog.Mark | None) -> None:
        self._fs = fs
        self._root = root
        self._uuid = uuid
        self._index = mark.index if mark is not None else None
        self._position: tuple[int, str] | None = None
        self._mutex = threading.Lock()
        self._job: Once[None] | None = None
        self._process = fs.process()[0]

    def note(self, seq: int, chain: str) -> None:
        """Everything up to this record is durable. Begins what is due; in a forked child nothing,
        for its parent still writes."""
        if not catalog.is_possible(self._fs, self._root):
            return
        if self._fs.process()[0] != self._process:
            return
        with self._mutex:
            self._position = (seq, chain)
            self._write_mark()
        if (self._job is None or self._job.done()) and self._is_due():
            self._job = Once(self._work)
            start_thread(self._job, "shardstore-upkeep")

    def finish(self, seq: int, chain: str) -> None:
        """Wait for what was begun, do what is due by now, and leave the last mark."""
        self.wait()
        self.note(seq, chain)
        self.wait()

    def wait(self) -> None:
        if self._job is not None:
            self._job()  # where its thread has not begun yet
            self._job.give_up()
            self._job = None

    def _is_due(self) -> bool:
        try:
            return is_due(self._fs, self._root) or self._link() is not None
        except _HARMLESS:
            return False

    def _work(self) -> None:
        for task in (lambda: compress_segments(self._fs, self._root), self._renew_index):
            try:
                task()
            except _HARMLESS:
                continue

    def _link(self) -> tuple[int, int, int] | None:
        """Index, cut and last record of the newest sealed segment, if the index lags too far."""
        newest = list_segments(self._fs, self._root)[-1]
        before = segment_header(self._fs, self._root, newest)["predecessor"]
        if before is None:
            return None
        had = self._index.seq if self._index else 0
        missing = int(before["seq"]) - had
        if missing < max(INDEX_RECORDS_MIN, had // INDEX_PART_MIN) and missing >= 0:
            return None
        return int(before["index"]), int(before["cut"]), int(before["seq"])

    def _renew_index(self) -> None:
        link = self._link()
        if link is None:
            return
        base = self._index
        chain = [link[:2]]
        known = base is None
        while True:
            before = segment_header(self._fs, self._root, chain[-1][0])["predecessor"]
            if before is None:
                break
            if base is not None and (before["seq"], before["chain"]) == (base.seq, base.chain):
                known = True
                break
            chain.append((int(before["index"]), int(before["cut"])))
        try:
            if not known:
                raise catalog.CatalogError("the index is of another history")
            renewed = catalog.build_index(self._fs, self._root, base, self._segments(chain))
        except catalog.CatalogError:
            if base is None:
                raise
            with self._mutex:
                self._index = None
            self._renew_index()
            return
        with self._mutex:
            self._index = renewed
            self._write_mark()
        self._remove_others(renewed)

    def _segments(self, chain: list[tuple[int, int]]) -> Iterator[list[LogRecord]]:
        for index, cut in reversed(chain):
            yield read_segment(self._fs, self._root, index, cut=cut).records

    def _write_mark(self) -> None:
        assert self._position is not None
        seq, chain = self._position
        mark = catalog.Mark(uuid=self._uuid, seq=seq, chain=chain, index=self._index)
        try:
            catalog.write_mark(self._fs, self._root, mark)
        except OSError:
            return

    def _remove_others(self, index: catalog.IndexFile | None) -> None:
        directory = f"{self._root}/{CATALOG_DIRECTORY}"
        for name in self._fs.list_directory(directory):
            if name.endswith(".mdb") and (index is None or name != index.name):
                self._fs.unlink(f"{directory}/{name}")
