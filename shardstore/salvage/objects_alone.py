"""A state made of object files alone, where the log says nothing: rule 13 of docs/design.md.

Contract: reads only, and never by itself: only a salvage asks for it, and what comes out is called
unproven. Whole are, first, what snapshots' manifest objects describe, with names, metadata and
digests; second, sets of objects of one transaction whose parts are exactly those that the
transaction expected, as each object's label has their digest. Objects that a transaction kept from
an earlier one have another transaction id, so such a step is not whole here; whether a transaction
was committed or aborted its objects do not say. `verify` compares every byte afterwards.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from shardstore.codecs import foreign
from shardstore.errors import CorruptionError
from shardstore.format.digests import canonical_json, digest, expect_digest, short_digest
from shardstore.format.layout import HEAD_BYTES, head_digest, header_length, object_digest
from shardstore.format.layout import parse_header as parse_raw
from shardstore.format.manifest import (
    CommitInfo,
    ObjectRef,
    Part,
    SnapshotInfo,
    is_archived,
    manifest_to_json,
)
from shardstore.format.names import (
    ARCHIVE,
    FIRST_BRANCH,
    OBJECTS_DIRECTORY,
    RAW,
    SNAPSHOT_SHARD,
    check_ref_name,
    slot_of,
)
from shardstore.format.placement import ObjectLabel
from shardstore.fs.calls import close_quietly, is_loss
from shardstore.fs.protocol import FileSystem
from shardstore.salvage.evidence import Evidence
from shardstore.wal.reader import read_bytes
from shardstore.wal.state import FIRST_LINE, State


@dataclass(frozen=True, slots=True)
class Found:
    """An object file that says whose it is."""

    reference: ObjectRef
    label: ObjectLabel

    @property
    def part(self) -> Part:
        return self.label.shard, self.label.part

    @property
    def write(self) -> tuple[int, int]:
        return self.reference.epoch, self.reference.counter


def state_of_objects(fs: FileSystem, root: str, evidence: Evidence) -> State:
    """Every set that may be whole; the evidence learns the numbers and the uuid they show."""
    found = list(labelled_objects(fs, root))
    if evidence.uuid is None:
        evidence.uuid = _common_uuid(found)
    found = [one for one in found if one.label.store == evidence.uuid]
    for one in found:
        evidence.top = max(evidence.top, one.reference.epoch)
    state = State()
    described = _add_snapshots(fs, root, state, found)
    for info in state.snapshots.values():  # numbers that are made up must not be theirs
        evidence.top = max(evidence.top, info.seq, info.line)
    sets = _whole_sets([one for one in found if one.label.txn not in described])
    for members in sets:
        evidence.top += 1
        commit = _commit(members, evidence.top, fs.now())
        state.commits[commit.seq] = commit
    newest = max(state.commits, default=None)
    if newest is None and state.snapshots:
        newest = max(state.snapshots.values(), key=lambda info: info.seq).seq
    state.branches = {FIRST_BRANCH: (newest, FIRST_LINE)}
    return state


def highest_epoch(fs: FileSystem, root: str) -> int:
    """Of any write that an object file shows: no opening may take that number again."""
    return max((one.reference.epoch for one in labelled_objects(fs, root)), default=0)


def labelled_objects(fs: FileSystem, root: str) -> Iterator[Found]:
    """Every file whose header can be read, with a reference as a manifest would have it."""
    directory = f"{root}/{OBJECTS_DIRECTORY}"
    try:
        names = fs.list_directory(directory)
    except FileNotFoundError:
        return
    for name in names:
        place = slot_of(name)
        if place is None:
            continue
        slot, storage_format = place
        try:
            if storage_format == RAW:
                yield _raw(fs, f"{directory}/{name}", slot)
            else:
                found = _foreign(fs, f"{directory}/{name}", slot, storage_format)
                if found is not None:
                    yield found
        except CorruptionError:
            continue  # it does not say whose it is
        except OSError as error:
            if not is_loss(error):
                raise


def _raw(fs: FileSystem, path: str, slot: int) -> Found:
    file = fs.open(path, "read")
    try:
        size = file.size()
        first = bytearray(min(8, size))
        file.pread(0, first)
        length = header_length(first, file=path, file_size=size)
        data = bytearray(min(size, length + HEAD_BYTES))
        file.pread(0, data)
    finally:
        close_quietly(file)
    region = bytes(data[:length])
    header = parse_raw(region, file=path, file_size=size)
    digests = object_digest(region), head_digest(data, length)
    return _found(header.label, slot, size, digests, RAW)


def _foreign(fs: FileSystem, path: str, slot: int, storage_format: str) -> Found | None:
    data = read_bytes(fs, path)
    contents = foreign.look(storage_format, memoryview(data), file=path)
    if contents is None:
        return None
    if next(contents.damage(memoryview(data), file=path), None) is not None:
        return None
    digests = digest(data), short_digest(data[:HEAD_BYTES])
    return _found(contents.label, slot, len(data), digests, storage_format)


def _found(
    label: ObjectLabel, slot: int, size: int, digests: tuple[str, str], storage_format: str
) -> Found:
    epoch, counter = (int(number, 16) for number in label.write.split("-"))
    reference = ObjectRef(slot, epoch, counter, size, *digests, storage_format)
    return Found(reference, label)


def _common_uuid(found: list[Found]) -> str | None:
    """What most objects name as their store."""
    names = [one.label.store for one in found]
    return max(names, key=names.count) if names else None


# ---------------------------------------------------------------------- snapshots


def _add_snapshots(fs: FileSystem, root: str, state: State, found: list[Found]) -> set[str]:
    """What manifest objects describe; the transactions of those commits. Of one name the newest
    counts: an older one was deleted, or archived since."""
    described: set[str] = set()
    manifests = [one for one in found if one.part[0] == SNAPSHOT_SHARD]
    for one in sorted(manifests, key=lambda one: one.write):
        commit = _described(fs, f"{root}/{one.reference.file}")
        if commit is None:
            continue
        name = one.part[1]
        state.snapshots[name] = SnapshotInfo(
            name=name,
            seq=commit.seq,
            chain=commit.chain,
            line=commit.line,
            step=commit.step,
            time=commit.time,
            reference=one.reference,
            archived=is_archived(commit.manifest),
        )
        described.add(commit.txn)
    return described


def _described(fs: FileSystem, path: str) -> CommitInfo | None:
    try:
        data = read_bytes(fs, path)
        length = header_length(data[:8], file=path, file_size=len(data))
        header = parse_raw(data[:length], file=path, file_size=len(data))
        check_ref_name(header.label.part)
        entry = next(e for e in header.layout.tensors if e.spec.name == "commit")
        return CommitInfo.from_json(json.loads(data[entry.begin : entry.end]))
    except OSError as error:
        if not is_loss(error):
            raise
        return None
    except (CorruptionError, ValueError, KeyError, TypeError, StopIteration):
        return None


# ---------------------------------------------------------------------- transactions


def _whole_sets(found: list[Found]) -> list[dict[Part, Found]]:
    """Sets of one transaction with exactly the parts that it expected, oldest first. Archived
    objects bear the transaction of what was packed, and are not asked."""
    groups: defaultdict[str, dict[Part, Found]] = defaultdict(dict)
    for one in sorted(found, key=lambda one: one.write):
        if one.part[0] != SNAPSHOT_SHARD and one.reference.format != ARCHIVE:
            groups[one.label.txn][one.part] = one  # staged twice: the last counts
    return [
        members
        for _, members in sorted(groups.items())
        if {one.label.expect for one in members.values()} == {expect_digest(members)}
        and len({one.label.step for one in members.values()}) == 1
    ]


def _commit(members: dict[Part, Found], seq: int, now: float) -> CommitInfo:
    """A commit that no record speaks of: its identity is made of its manifest."""
    manifest = {part: one.reference for part, one in members.items()}
    label = next(iter(members.values())).label
    return CommitInfo(
        seq=seq,
        chain=digest(canonical_json(manifest_to_json(manifest))),
        branch=FIRST_BRANCH,
        line=FIRST_LINE,
        step=label.step,
        time=now,
        parent=None,
        txn=label.txn,
        manifest=manifest,
        metadata={},
        blobs={},
    )
