"""A snapshot's manifest object made anew, where the log still has the commit, whole.

Contract: pure but for `write_renewed`. The new object goes into a slot that no file has, with a
write id of the salvage's own epoch, and before the opening record that names it: cut off in between
it is a file that nothing needs. What the damaged object held is in the log; chain hash and manifest
digest say that it is the same commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from shardstore.format.digests import digest
from shardstore.format.layout import build_header, head_digest, object_digest
from shardstore.format.manifest import CommitInfo, ObjectRef, SnapshotInfo, is_archived
from shardstore.format.names import RAW
from shardstore.fs.protocol import FileSystem
from shardstore.snapshot import manifest_label, manifest_layout


@dataclass(frozen=True, slots=True)
class Renewed:
    """A snapshot with another manifest object, and that object's file."""

    info: SnapshotInfo
    data: bytes


def renew(uuid: str, info: SnapshotInfo, commit: CommitInfo, write: ObjectRef) -> Renewed:
    """`write` says slot, epoch and counter. The commit's objects are those that the log names,
    archived or not."""
    layout, content = manifest_layout(info.name, commit)
    label = manifest_label(uuid, info.name, commit, (write.epoch, write.counter))
    region = build_header(layout, label, [digest(content)])
    entry, data = layout.tensors[0], bytearray(layout.total_bytes)
    data[: len(region)] = region
    data[entry.begin : entry.end] = content
    reference = write._replace(
        size=len(data),
        digest=object_digest(region),
        head=head_digest(data, layout.header_bytes),
        format=RAW,
    )
    info = replace(info, reference=reference, archived=is_archived(commit.manifest))
    return Renewed(info, bytes(data))


def write_renewed(fs: FileSystem, root: str, renewed: Iterable[Renewed]) -> None:
    """The files. Not durable yet: the salvage syncs every slot that its state needs."""
    for one in renewed:
        file = fs.open(f"{root}/{one.info.reference.file}", "create")
        try:
            file.pwrite(0, one.data)
        finally:
            file.close()
