"""Snapshots: names that keep a commit for ever. Making and deleting one copies no data.

A snapshot writes its commit's descriptor as a small object, so that it can be read without the
log. Callers hold the session's lock and have made sure that no transaction is open.
"""

from __future__ import annotations

import json

from shardstore.errors import RefNotFoundError
from shardstore.format.digests import ZERO_DIGEST, canonical_json
from shardstore.format.layout import ObjectLabel, TensorSpec, plan_layout
from shardstore.format.manifest import CommitInfo, SnapshotInfo, write_id
from shardstore.format.names import SNAPSHOT_SHARD, check_ref_name
from shardstore.ref_records import check_free, publish
from shardstore.refs import Target
from shardstore.retention import forgotten
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
    check_free(session, checked)
    written = write_manifest(session, checked, commit)
    reference = written.known()
    slots = sorted(commit.slots() | {reference.slot})
    session.trace("snapshot", name=checked)
    publish(
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
        raise RefNotFoundError(f"no snapshot or branch is called {name!r}")
    info = state.snapshots[name]
    slots = sorted(open_commit(session, info).slots() | {info.reference.slot})
    session.trace("delete", name=name)
    publish(
        session,
        {
            "type": "delete",
            "name": name,
            "slots": slots,
            "forget": forgotten(state),
            "unkeep": [],
        },
    )


def write_manifest(session: Session, name: str, commit: CommitInfo) -> StagedObject:
    """Stage the object that holds a snapshot's commit."""
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
