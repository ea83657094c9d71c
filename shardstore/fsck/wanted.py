"""Which objects a state needs and for whom: kept commits, snapshots, what undo may bring back.

Snapshots' manifests are read here, since only they name their objects; whether their bytes are
sound is for `object_check` to say, whether they fit the log is said here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shardstore.errors import CorruptionError
from shardstore.format.manifest import CommitInfo, ObjectRef, Part, SnapshotInfo
from shardstore.format.names import SNAPSHOT_SHARD, WAL_DIRECTORY
from shardstore.fs.calls import is_loss
from shardstore.fs.protocol import FileSystem
from shardstore.fsck.findings import Finding, Wanted, damage
from shardstore.objects import check_object
from shardstore.wal.reader import read_bytes
from shardstore.wal.state import State

Key = tuple[Part, ObjectRef]


@dataclass(slots=True, kw_only=True)
class Wants:
    """What a state needs, ordered by slot."""

    objects: list[Wanted] = field(default_factory=list)
    findings: list[tuple[Wanted | None, Finding]] = field(default_factory=list)
    """With the object that a finding is about, where it is about one."""

    def keys(self) -> set[Key]:
        return {(wanted.part, wanted.reference) for wanted in self.objects}


def wanted_objects(fs: FileSystem, root: str, state: State) -> Wants:
    """Everything that must be on disk for this state."""
    found: dict[Key, Wanted] = {}
    wants = Wants()
    for commit in state.commits.values():
        _add(found, commit, ())
    counted: Counter[int] = Counter()
    complete = True
    for info in state.all_snapshots():
        part = (SNAPSHOT_SHARD, info.name)
        manifest = Wanted(
            part=part, reference=info.reference, step=info.step, snapshots=(info.name,), whole=True
        )
        found[part, info.reference] = manifest
        held = read_manifest(fs, root, manifest)
        if held is None:
            complete = False
            held = state.commits.get(info.seq)
        elif (held.seq, held.chain, held.step) != (info.seq, info.chain, info.step):
            wants.findings.append((manifest, _wrong_manifest(root, manifest, info, held)))
        if held is not None:
            _add(found, held, (info.name,))
            counted.update(held.slots() | {info.reference.slot})
    wants.objects = sorted(found.values(), key=lambda wanted: wanted.reference.slot)
    if complete and counted != state.snapshot_slots:
        wants.findings.append((None, _wrong_counts(root, state, counted)))
    wants.findings += _shared_slots(root, wants.objects)
    return wants


def _add(found: dict[Key, Wanted], commit: CommitInfo, snapshots: tuple[str, ...]) -> None:
    for key in commit.objects():
        known = found.get(key) or Wanted(part=key[0], reference=key[1], step=commit.step)
        found[key] = replace(
            known,
            step=max(known.step, commit.step),
            snapshots=tuple(sorted({*known.snapshots, *snapshots})),
        )


def read_manifest(fs: FileSystem, root: str, wanted: Wanted) -> CommitInfo | None:
    """The commit in a snapshot's manifest; None where it cannot be had. OSError where the system
    refuses to give it out."""
    path = f"{root}/{wanted.reference.file}"
    try:
        data = memoryview(read_bytes(fs, path))
        header = check_object(data, wanted.part, wanted.reference, path, "manifest")
        entry = next(e for e in header.layout.tensors if e.spec.name == "commit")
        return CommitInfo.from_json(json.loads(bytes(data[entry.begin : entry.end])))
    except OSError as error:
        if not is_loss(error):
            raise
        return None
    except (CorruptionError, ValueError, KeyError, TypeError, StopIteration):
        return None


def _wrong_manifest(root: str, wanted: Wanted, info: SnapshotInfo, held: CommitInfo) -> Finding:
    return wanted.about(
        damage(
            f"the manifest of snapshot {info.name!r} is that of another commit",
            f"{root}/{wanted.reference.file}",
            expected=f"seq {info.seq} step {info.step} chain {info.chain}",
            found=f"seq {held.seq} step {held.step} chain {held.chain}",
        )
    )


def _wrong_counts(root: str, state: State, counted: Counter[int]) -> Finding:
    slots = {*counted, *state.snapshot_slots}
    slot = min(s for s in slots if counted[s] != state.snapshot_slots[s])
    return damage(
        f"slot {slot}: the log counts other references from snapshots than there are",
        f"{root}/{WAL_DIRECTORY}",
        expected=counted[slot],
        found=state.snapshot_slots[slot],
    )


def _shared_slots(root: str, objects: Iterable[Wanted]) -> list[tuple[Wanted | None, Finding]]:
    """A slot holds one object: two different ones that are needed cannot both be there."""
    owners: dict[int, Wanted] = {}
    findings: list[tuple[Wanted | None, Finding]] = []
    for wanted in objects:
        reference = wanted.reference
        other = owners.setdefault(reference.slot, wanted)
        if other.reference != reference:
            finding = damage(
                f"slot {reference.slot} is needed for two objects",
                f"{root}/{reference.file}",
                expected=f"write {other.reference.epoch}-{other.reference.counter}",
                found=f"write {reference.epoch}-{reference.counter}",
            )
            findings.append((wanted, wanted.about(finding)))
    return findings
