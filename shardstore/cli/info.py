"""`shardstore info`: where a store stands, how large it is, whether opening has to recover.

This is the command whose start counts most: the log is read once, and nothing is imported that
reading does not need.
"""

from __future__ import annotations

import math
from typing import Any

from shardstore.cli.common import command, json_option, path_argument, reading
from shardstore.cli.output import echo_json, facts, size_text, time_text
from shardstore.context import Settings
from shardstore.errors import StepMovedOnError
from shardstore.format.digests import StateRow, state_digest
from shardstore.format.manifest import CommitInfo
from shardstore.format.names import FORMAT_VERSION, OBJECTS_DIRECTORY, WAL_DIRECTORY, slot_of
from shardstore.format.policy import Retention
from shardstore.fs.protocol import FileSystem
from shardstore.fs.system import local_file_system
from shardstore.recovery import reading_session
from shardstore.store_file import read_store_file
from shardstore.wal.reader import LogView, read_log

_TRIES = 5


@command("info", example="shardstore info run\nshardstore info run --json")
@path_argument
@json_option
def info(path: str, as_json: bool) -> None:
    """Show where the store at PATH stands.

    The state digest of two stores is equal exactly when their heads hold the same tensors.
    """
    with reading(path) as root:
        values = gather(local_file_system(), root)
    if as_json:
        echo_json(values)
    else:
        _show(values)


def gather(fs: FileSystem, root: str) -> dict[str, Any]:
    """All that is shown, as `--json` prints it."""
    for attempt in range(_TRIES):
        try:
            return _gather(fs, root)
        except StepMovedOnError:  # a writer went on while its head was being read
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _gather(fs: FileSystem, root: str) -> dict[str, Any]:
    uuid = read_store_file(fs, root)
    view = read_log(fs, root, uuid=uuid)
    state, head = view.state, view.state.head
    return {
        "path": root,
        "uuid": uuid,
        "version": FORMAT_VERSION,
        "branch": state.current,
        "branches": len(state.branches),
        "head": None if head is None else _head(head),
        "state_digest": None,
        "shards": 0,
        "parts": 0,
        "tensors": 0,
        "elements": 0,
        "tensor_bytes": 0,
        **({} if head is None else _content(fs, root, uuid, view, head)),
        "snapshots": len(state.snapshots),
        "kept_commits": len({*state.commits, *(s.seq for s in state.snapshots.values())}),
        "retention": state.retention.to_json(),
        "disk_bytes": _disk_bytes(fs, root, state.needed()),
        "recovery": _recovery(view),
    }


def _head(head: CommitInfo) -> dict[str, Any]:
    return {"step": head.step, "seq": head.seq, "time": head.time, "id": head.chain}


def _content(
    fs: FileSystem, root: str, uuid: str, view: LogView, head: CommitInfo
) -> dict[str, Any]:
    """What the head holds, from the verified headers of its objects."""
    session = reading_session(fs, root, uuid, view, Settings())
    rows: list[StateRow] = []
    elements = size = 0
    for part, reference in head.manifest.items():
        header = session.read_header(part, reference, head)
        for spec, digest in zip(header.layout.specs, header.digests, strict=True):
            rows.append((*part, spec.name, spec.dtype, spec.shape, digest))
            elements += math.prod(spec.shape)
            size += spec.nbytes
    return {
        "state_digest": state_digest(rows),
        "shards": len({shard for shard, _ in head.manifest}),
        "parts": len(head.manifest),
        "tensors": len(rows),
        "elements": elements,
        "tensor_bytes": size,
    }


def _disk_bytes(fs: FileSystem, root: str, needed: set[int]) -> dict[str, int]:
    """Bytes of object files that are needed and that wait to be written again, and of the log."""
    sizes = {"needed": 0, "reusable": 0, "log": 0}
    for directory in (OBJECTS_DIRECTORY, WAL_DIRECTORY):
        for name in fs.list_directory(f"{root}/{directory}"):
            place = slot_of(name)
            kind = "log" if directory == WAL_DIRECTORY else "needed"
            if kind == "needed" and (place is None or place[0] not in needed):
                kind = "reusable"
            sizes[kind] += fs.stat(f"{root}/{directory}/{name}").size
    return sizes


def _recovery(view: LogView) -> dict[str, Any]:
    """What `recover` would correct, as in `recovery.Plan.needed`."""
    left = {
        "torn": view.segment.torn,
        "abandoned": [record.seq for record in view.abandoned],
        "copied": view.copied,
    }
    return {"needed": any(left.values()), **left}


def _show(values: dict[str, Any]) -> None:
    head, disk, recovery = values["head"], values["disk_bytes"], values["recovery"]
    branches = values["branches"]
    where = "no commit yet"
    if head:
        where = f"step {head['step']} (seq {head['seq']}), {time_text(head['time'])}"
    holds = f"{values['shards']} shards, {values['parts']} parts, {values['tensors']} tensors, "
    holds += f"{values['elements']} elements, {size_text(values['tensor_bytes'])}"
    disk_text = ", ".join(f"{size_text(size)} {kind}" for kind, size in disk.items())
    advice = "needed; 'shardstore recover --dry-run' shows what it would do"
    facts(
        [
            ("store", values["path"]),
            ("uuid", values["uuid"]),
            ("format", f"version {values['version']}"),
            ("branch", values["branch"] + (f" of {branches}" if branches > 1 else "")),
            ("head", where),
            ("state digest", values["state_digest"] or "none"),
            ("holds", holds),
            ("kept", f"{values['kept_commits']} commits, {values['snapshots']} snapshots"),
            ("retention", str(Retention.from_json(values["retention"]))),
            ("on disk", disk_text),
            ("recovery", advice if recovery["needed"] else "not needed"),
        ]
    )
