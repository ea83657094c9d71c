"""The log's records from the newest backwards, the older ones from the catalog where it has them.

Contract: reads only. The newest segment always comes from the log; further back the index takes
over at the first segment boundary whose record and chain hash it holds, and wherever it lacks
something, or has it wrongly, the log is read instead. Either way the same records come, each once;
from the index without what only the state needs. Damage of the log raises CorruptionError where it
is reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from shardstore.catalog import CatalogError, Index, Row, find_mark, open_index
from shardstore.errors import CorruptionError
from shardstore.format.names import segment_file
from shardstore.fs.protocol import FileSystem
from shardstore.wal.reader import LogRecord, LogView, Segment, read_segment

Record = LogRecord | Row
Link = Mapping[str, Any] | None
"""A header's `predecessor`."""


def all_records(fs: FileSystem, root: str, view: LogView) -> Iterator[Record]:
    """Every record that counts: copies stand in the segment that took over."""
    yield from reversed(view.records)
    link: Link = view.segment.header["predecessor"]
    if link is None:
        return
    with ExitStack() as stack:
        index = _open(fs, root, view, stack)
        below, wrong = int(link["seq"]) + 1, int(link["seq"]) + 1
        while link is not None:
            if index is not None and link["seq"] <= min(index.file.seq, wrong - 1):
                try:
                    wrong = int(link["seq"])
                    for row in index.rows(link["seq"], link["chain"]):
                        wrong = row.seq - 1
                        if row.seq < below:
                            below = row.seq
                            yield row
                    return
                except CatalogError:
                    pass  # the log has it
            segment = _segment(fs, root, link)
            for record in reversed(segment.records):
                if record.seq < below:
                    below = record.seq
                    yield record
            link = segment.header["predecessor"]


def commits_of_step(fs: FileSystem, root: str, view: LogView, step: int) -> list[Record]:
    """The commits of a step, newest first, without reading all that the index covers."""
    found: list[Record] = []
    with ExitStack() as stack:
        index = _open(fs, root, view, stack)
        link: Link = view.segment.header["predecessor"]
        found += _of_step(reversed(view.records), step)
        while link is not None:
            if index is not None and link["seq"] <= index.file.seq:
                try:
                    return found + _rows_of_step(index, link, step)
                except CatalogError:
                    index = None
            segment = _segment(fs, root, link)
            found += _of_step(reversed(segment.records), step)
            link = segment.header["predecessor"]
    return found


def _rows_of_step(index: Index, link: Mapping[str, Any], step: int) -> list[Record]:
    index.check(link["seq"], link["chain"])  # it is of this history
    return [index.row(seq) for seq in index.seqs_of_step(step) if seq <= link["seq"]]


def _of_step(records: Iterator[LogRecord], step: int) -> Iterator[LogRecord]:
    return (r for r in records if r.body["type"] == "commit" and r.body["step"] == step)


def _open(fs: FileSystem, root: str, view: LogView, stack: ExitStack) -> Index | None:
    mark, _ = find_mark(fs, root, str(view.segment.header["uuid"]))
    if mark is None or mark.index is None:
        return None
    try:
        return stack.enter_context(open_index(fs, root, mark.index))
    except CatalogError:
        return None


def _segment(fs: FileSystem, root: str, link: Mapping[str, Any]) -> Segment:
    index = int(link["index"])
    try:
        return read_segment(fs, root, index, cut=int(link["cut"]))
    except FileNotFoundError as error:
        path = f"{root}/{segment_file(index)}"
        raise CorruptionError("a segment of the log is missing", file=path) from error
