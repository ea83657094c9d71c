"""The history: every record of every segment, and which commits the current line stands on.

Contract: reads only, one segment at a time, so that asking for the newest few costs the newest
segment; older ones come from the catalog where it has them (`records`). History stays across
rewinds: a commit that a rewind left behind is still here, marked as not effective, and so are those
of other branches. Of several commits of one step on the current line the newest is the effective
one. Damage raises CorruptionError where it is reached; records newer than it have been given by
then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from shardstore.catalog import Row
from shardstore.fs.protocol import FileSystem
from shardstore.records import Record, all_records, commits_of_step
from shardstore.wal.reader import read_log
from shardstore.wal.state import State

EFFECTIVE, REPEATED, REWOUND, BRANCHED = "effective", "repeated", "rewound", "branched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record of the log, as history tells it."""

    seq: int
    type: str
    time: float
    id: str
    """Chain hash of the record; of a commit its identity."""
    step: int | None
    """Of the commit that the record makes, names or moves to; None for the others."""
    status: str | None
    """Of a commit: effective, repeated (a newer commit of its step follows on the current line),
    branched (on another branch only) or rewound (on no line that leads to a head). None for other
    records."""
    kept: bool
    """Whether the commit can still be named."""
    body: Mapping[str, Any]
    """The record; of an old one perhaps without what only the state needs."""

    @property
    def effective(self) -> bool:
        return self.status == EFFECTIVE

    def to_json(self) -> dict[str, Any]:
        """What `log` exports: small fields, metadata in full, no manifests and no blobs."""
        value: dict[str, Any] = {"seq": self.seq, "type": self.type, "time": self.time}
        value |= {"id": self.id, "step": self.step}
        if self.type == "commit":
            value |= {"status": self.status, "effective": self.effective, "kept": self.kept}
        return value | {
            key: self.body[key] for key in _FIELDS.get(self.type, ()) if key in self.body
        }


_FIELDS: Mapping[str, tuple[str, ...]] = {
    "open": ("reason", "pid", "host", "abandoned", "salvage"),
    "commit": ("branch", "line", "parent", "metadata"),
    "snapshot": ("name", "target"),
    "archive": ("name",),
    "branch": ("name", "new_line"),
    "switch": ("name",),
    "delete": ("name",),
    "rewind": ("branch", "new_line"),
    "undo": ("entry", "new_line"),
    "retention": ("retention",),
    "unkeep": ("unkeep",),
}


def read_history(
    fs: FileSystem,
    root: str,
    *,
    commits_only: bool = True,
    limit: int | None = None,
    oldest_first: bool = False,
) -> Iterator[Entry]:
    """Records, newest first; `limit` counts from the newest in either order."""
    entries = islice(_newest_first(fs, root, commits_only), limit)
    return iter(list(entries)[::-1]) if oldest_first else entries


def read_step(fs: FileSystem, root: str, step: int) -> list[Entry]:
    """The commits of a step on any line, newest first."""
    view = read_log(fs, root)
    steps: set[int] = set()
    records: Iterable[Record] = commits_of_step(fs, root, view, step)
    if view.state.origin is not None:  # what was published stands inside of other records
        told = _with_published(all_records(fs, root, view))
        records = (r for r in told if r.body["type"] == "commit" and r.body["step"] == step)
    return [_entry(record, view.state, steps) for record in records]


def _newest_first(fs: FileSystem, root: str, commits_only: bool) -> Iterator[Entry]:
    view = read_log(fs, root)
    steps: set[int] = set()
    for record in _with_published(all_records(fs, root, view)):
        if not commits_only or record.body["type"] == "commit":
            yield _entry(record, view.state, steps)


def _with_published(records: Iterable[Record]) -> Iterator[Record]:
    """Behind each publication the active store's records that it tells of, newest first."""
    for record in records:
        yield record
        for chain, body in reversed(record.body.get("history", ())):
            yield Row(seq=body["seq"], chain=chain, body=body)


def _entry(record: Record, state: State, steps: set[int]) -> Entry:
    body = record.body
    kind = str(body["type"])
    status: str | None = None
    if kind == "commit":
        status = _status(body, state, steps)
    return Entry(
        seq=record.seq,
        type=kind,
        time=body["time"],
        id=record.chain,
        step=_step(body),
        status=status,
        kept=record.seq in state.commits
        or any(snapshot.seq == record.seq for snapshot in state.snapshots.values()),
        body=body,
    )


def _status(body: Mapping[str, Any], state: State, steps: set[int]) -> str:
    if not state.on_line(state.line, body["line"], body["seq"]):
        lines = [line for _, line in state.branches.values()]
        elsewhere = any(state.on_line(line, body["line"], body["seq"]) for line in lines)
        return BRANCHED if elsewhere else REWOUND
    if body["step"] in steps:
        return REPEATED
    steps.add(body["step"])
    return EFFECTIVE


def _step(body: Mapping[str, Any]) -> int | None:
    commit = body.get("commit")
    step = body.get("step") if commit is None else commit["step"]
    return None if step is None else int(step)
