"""Ref records: snapshot, delete, rewind, undo. Each is one durable record; none copies data.

A snapshot also writes its commit's descriptor as a small object, so that it can be read without
the log. Callers hold the session's lock and have made sure that no transaction is open.
"""

from __future__ import annotations

import json
from typing import Any

from shardstore.errors import (
    NameTakenError,
    RefNotFoundError,
    ShardStoreError,
    UsageError,
)
from shardstore.format.digests import ZERO_DIGEST, canonical_json
from shardstore.format.layout import ObjectLabel, TensorSpec, plan_layout
from shardstore.format.manifest import CommitInfo, SnapshotInfo, UndoEntry, write_id
from shardstore.format.names import SNAPSHOT_SHARD, check_ref_name
from shardstore.refs import Target
from shardstore.retention import forgotten, unkept_after_move, unkept_by_forgetting
from shardstore.session import Session
from shardstore.staged import StagedObject

_TENSOR = "commit"


def open_commit(session: Session, target: Target) -> CommitInfo:
    """The full commit that a ref resolved to; reads a snapshot's manifest object."""
    if isinstance(target, CommitInfo):
        return target
    inline = session.state.commits.get(target.seq)
    if inline is not None:
        return inline
    key = (SNAPSHOT_SHARD, target.name)
    buffer, header = session.read_object(key, target.reference, target)
    try:
        entry = next(e for e in header.layout.tensors if e.spec.name == _TENSOR)
        return CommitInfo.from_json(json.loads(bytes(buffer.view[entry.begin : entry.end])))
    finally:
        buffer.release()


def snapshot(session: Session, name: str | None, target: Target) -> SnapshotInfo:
    """Give the commit a name that keeps it. Durable when this returns."""
    commit = open_commit(session, target)
    checked = check_ref_name(name if name is not None else f"step_{commit.step:08d}")
    _check_free(session, checked)
    written = _write_manifest(session, checked, commit)
    reference = written.known()
    slots = sorted(commit.slots() | {reference.slot})
    session.trace("snapshot", name=checked)
    _publish(
        session,
        {
            "type": "snapshot",
            "name": checked,
            "target": commit.seq,
            "chain": commit.chain,
            "line": commit.line,
            "step": commit.step,
            "reference": list(reference),
            "slots": slots,
        },
        [written],
    )
    return session.state.snapshots[checked]


def delete(session: Session, name: str) -> None:
    """Delete a snapshot. What only it kept stays until three more undoable changes were made."""
    state = session.state
    if name not in state.snapshots:
        if name in state.branches:
            raise UsageError(f"{name!r} is the current branch and cannot be deleted")
        raise RefNotFoundError(f"no snapshot is called {name!r}")
    info = state.snapshots[name]
    slots = sorted(open_commit(session, info).slots() | {info.reference.slot})
    forget = forgotten(state)
    session.trace("delete", name=name)
    _publish(
        session,
        {
            "type": "delete",
            "name": name,
            "slots": slots,
            "forget": forget,
            "unkeep": unkept_by_forgetting(state, forget),
        },
    )


def rewind(session: Session, target: Target) -> CommitInfo:
    """Move the current branch's head to a kept commit; what it left can be undone."""
    commit, state = open_commit(session, target), session.state
    assert state.head is not None
    forget = forgotten(state)
    session.trace("rewind", seq=commit.seq)
    _publish(
        session,
        {
            "type": "rewind",
            "branch": state.current,
            "commit": commit.to_json(),
            "forget": forget,
            "unkeep": unkept_after_move(state, commit.seq, forget=forget, keep=(state.head.seq,)),
            "new_line": [None, commit.line, commit.seq],
        },
    )
    return commit


def undo(session: Session) -> UndoEntry:
    """Revert the newest rewind or deletion that is not undone yet; returns its entry."""
    state = session.state
    open_entries = [entry for entry in state.undo if not entry.done]
    if not open_entries:
        raise UsageError(
            "nothing to undo: no rewind or deletion among the last three is left to revert"
        )
    entry = open_entries[-1]
    record: dict[str, Any] = {"type": "undo", "entry": entry.seq, "unkeep": [], "new_line": None}
    if entry.op == "delete":
        _check_free(session, entry.name)
    else:
        assert entry.commit is not None and state.head is not None
        commit = state.commits[entry.commit]
        record["new_line"] = [None, commit.line, commit.seq]
        record["unkeep"] = unkept_after_move(state, commit.seq, forget=[], keep=(state.head.seq,))
    session.trace("undo", entry=entry.seq)
    _publish(session, record)
    return entry


def _check_free(session: Session, name: str) -> None:
    if name in session.state.snapshots or name in session.state.branches:
        raise NameTakenError(f"the name {name!r} is taken; delete it first or choose another")


def _publish(
    session: Session, record: dict[str, Any], objects: list[StagedObject] | None = None
) -> None:
    def make(seq: int) -> dict[str, Any]:
        whole = {**record, "seq": seq, "time": session.fs.now()}
        if whole.get("new_line"):
            whole["new_line"] = [seq, *whole["new_line"][1:]]
        return whole

    try:
        session.publish(make, objects or [])
    except ShardStoreError:
        session.abandon(objects or [])
        raise


def _write_manifest(session: Session, name: str, commit: CommitInfo) -> StagedObject:
    content = canonical_json(commit.to_json())
    key = (SNAPSHOT_SHARD, name)
    layout = plan_layout([TensorSpec(name=_TENSOR, dtype="U8", shape=(len(content),))], *key)

    def label(write: tuple[int, int]) -> ObjectLabel:
        return ObjectLabel(
            store=session.uuid,
            shard=key[0],
            part=key[1],
            step=commit.step,
            txn=commit.txn,
            write=write_id(*write),
            expect=ZERO_DIGEST,
            parent=commit.chain,
        )

    buffer = session.cache.acquire(layout.total_bytes)
    entry = layout.tensors[0]
    buffer.view[:] = bytes(layout.total_bytes)
    buffer.view[entry.begin : entry.end] = content
    return session.staging.donate(key, layout, buffer, label, None)
