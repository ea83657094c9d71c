"""Snapshots: names that keep a commit for ever. Making and deleting one copies no data.

A snapshot writes its commit's descriptor as a small object, so that it can be read without the
log. Callers hold the session's lock and have made sure that no transaction is open.
"""

from __future__ import annotations

import json

from shardstore.errors import RefNotFoundError
from shardstore.format.digests import ZERO_DIGEST, canonical_json
from shardstore.format.layout import ObjectLabel, ObjectLayout, TensorSpec, plan_layout
from shardstore.format.manifest import CommitInfo, SnapshotInfo, is_archived, write_id
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
    if inline is not None and not target.archived and not is_archived(inline.manifest):
        return inline
    return read_manifest(session, target)


def standing_commit(session: Session, target: Target) -> CommitInfo:
    """The commit for a head to stand on: as it stands in the log, if it does, since there a
    sequence number has one manifest."""
    return session.state.commits.get(target.seq) or open_commit(session, target)


def read_manifest(session: Session, target: SnapshotInfo) -> CommitInfo:
    """The commit as a snapshot's manifest object has it."""
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
            "reference": reference.to_json(),
            "slots": slots,
            "archived": is_archived(commit.manifest),
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
    layout, content = manifest_layout(name, commit)
    buffer = session.cache.acquire(layout.total_bytes)
    entry = layout.tensors[0]
    buffer.view[:] = bytes(layout.total_bytes)
    buffer.view[entry.begin : entry.end] = content
    return session.staging.donate(
        (SNAPSHOT_SHARD, name),
        layout,
        buffer,
        lambda write: manifest_label(session.uuid, name, commit, write),
        None,
    )


def manifest_layout(name: str, commit: CommitInfo) -> tuple[ObjectLayout, bytes]:
    """Of a snapshot's manifest object, and the bytes of its only tensor."""
    content = canonical_json(commit.to_json())
    spec = TensorSpec(name=_TENSOR, dtype="U8", shape=(len(content),))
    return plan_layout([spec], SNAPSHOT_SHARD, name), content


def manifest_label(uuid: str, name: str, commit: CommitInfo, write: tuple[int, int]) -> ObjectLabel:
    """Who a snapshot's manifest object is."""
    return ObjectLabel(
        store=uuid,
        shard=SNAPSHOT_SHARD,
        part=name,
        step=commit.step,
        txn=commit.txn,
        write=write_id(*write),
        expect=ZERO_DIGEST,
        parent=commit.chain,
    )
