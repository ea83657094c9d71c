"""Archiving: a snapshot's objects, packed into files that take less room and are read more slowly.

Contract: one durable record; until it is in the log the snapshot is what it was, and whatever was
written for it goes. Each packed file is read back, unpacked and compared before the record, since
the objects that it stands for may be given up then. Names, commit, tensors and digests stay. Other
commits that share objects with the snapshot keep them. Memory is that of one object, its packed
form and its base.

An object is packed against the one of the same part in a neighbouring snapshot where that pays
(`codecs.packing`); the base is then needed for as long as the packed object is. A base has none
itself: where the neighbour's object has one, that is taken. Callers hold the session's lock and
have made sure that no transaction is open.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from shardstore import foreign
from shardstore.codecs import archive as codec
from shardstore.errors import CorruptionError, RefNotFoundError, StorageError, UsageError
from shardstore.format.headers import ObjectHeader
from shardstore.format.manifest import CommitInfo, ObjectRef, Part, SnapshotInfo, write_id
from shardstore.format.names import ARCHIVE, RAW
from shardstore.progress import Advance
from shardstore.ref_records import publish
from shardstore.session import Session
from shardstore.snapshot import read_manifest, write_manifest
from shardstore.staged import StagedObject
from shardstore.wal.writer import PREWRITE_BYTES

LEVEL = 1
LEVELS = range(1, 20)
"""Levels of zstd. Beyond the first they cost much and gain little on floating-point state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What archiving did."""

    name: str
    seq: int
    step: int
    against: str | None
    """The snapshot whose objects were tried as bases."""
    objects: int
    deltas: int
    """Objects that are differences to a base."""
    shared: int
    """Objects that the other snapshot had packed already: nothing was written for them."""
    bytes_before: int
    bytes_after: int
    bytes_freed: int
    """Of files that nothing needs any more: the next commits write into them, or `gc` unlinks."""
    seconds: float
    """Reading, packing, writing, reading back."""

    @property
    def ratio(self) -> float:
        return self.bytes_before / self.bytes_after if self.bytes_after else 1.0

    @property
    def gigabytes_per_second(self) -> float:
        return self.bytes_before / self.seconds / 1e9 if self.seconds else 0.0


def archive(
    session: Session,
    name: str,
    *,
    against: str | None = None,
    alone: bool = False,
    level: int = LEVEL,
    advance: Advance = lambda count: None,
) -> Archived:
    """Pack a snapshot. `advance` is called with the bytes of each object that was packed.

    Without `against` the nearest archived snapshot is tried; with `alone` none.
    """
    info = check(session, name, against=against, alone=alone, level=level)
    commit = read_manifest(session, info)
    near = None if alone else _neighbour(session, info, against)
    _check_space(session, name, commit)
    began, before = time.perf_counter(), session.state.needed()
    sizes = {ref.slot: ref.size for ref in (info.reference, *commit.manifest.values())}
    packer = _Packer(session, commit, near, level)
    try:
        for part in sorted(commit.manifest):
            packer.pack(part)
            advance(commit.manifest[part].size)
        packed = replace(commit, manifest=packer.manifest)
        manifest = write_manifest(session, name, packed)
        packer.staged.append(manifest)
        session.trace("archive", name=name)
        record = {
            "type": "archive",
            "name": name,
            "reference": manifest.known().to_json(),
            "slots": sorted(packed.slots() | {manifest.known().slot}),
            "released": sorted(commit.slots() | {info.reference.slot}),
        }
        publish(session, record, packer.staged)
    except BaseException:
        _undo(session, packer)
        raise
    return Archived(
        name=name, seq=info.seq, step=info.step, against=None if near is None else near.name,
        objects=len(commit.manifest), deltas=packer.deltas, shared=packer.shared,
        bytes_before=sum(ref.size for ref in commit.manifest.values()),
        bytes_after=sum(ref.size for ref in packer.manifest.values()),
        bytes_freed=sum(sizes.get(slot, 0) for slot in before - session.state.needed()),
        seconds=time.perf_counter() - began,
    )  # fmt: skip


def check(
    session: Session, name: str, *, against: str | None = None, alone: bool, level: int
) -> SnapshotInfo:
    """The snapshot to archive, or why that cannot be done."""
    snapshots = session.state.snapshots
    for wanted in (name, against):
        if wanted is not None and wanted not in snapshots:
            raise RefNotFoundError(
                f"no snapshot is called {wanted!r}; only snapshots are archived, "
                "'shardstore snapshots' lists them"
            )
    if level not in LEVELS:
        raise UsageError(f"level {level!r} is not known; expected {LEVELS[0]} to {LEVELS[-1]}")
    if against is not None and (alone or against == name):
        what = "itself" if against == name else f"{against!r} and alone at the same time"
        raise UsageError(f"snapshot {name!r} cannot be packed against {what}")
    info = snapshots[name]
    if info.archived:
        raise UsageError(f"snapshot {name!r} is archived already")
    return info


def _neighbour(session: Session, info: SnapshotInfo, against: str | None) -> SnapshotInfo | None:
    if against is not None:
        return session.state.snapshots[against]
    packed = [other for other in session.state.snapshots.values() if other.archived]
    return min(packed, key=lambda other: (abs(other.seq - info.seq), other.name), default=None)


def _check_space(session: Session, name: str, commit: CommitInfo) -> None:
    """Before anything is written: what does not pack takes as much again, until the end."""
    needed = sum(ref.size for ref in commit.manifest.values()) + PREWRITE_BYTES
    try:
        free = session.fs.free_bytes(session.root)
    except OSError as error:
        raise session.storage_error("asking for free space", error) from error
    if free < needed:
        raise StorageError(
            f"archiving snapshot {name!r} of store {session.root} may take {needed} bytes until "
            f"its objects are given up, {free} are free; 'shardstore gc' or deleting a snapshot "
            "makes room",
            errno=errno.ENOSPC,
        )


def _undo(session: Session, packer: _Packer) -> None:
    """Unlink what was written. Where the record may be in the log nothing is touched."""
    if session.context.is_poisoned:
        return
    session.abandon(packer.staged)
    gone = [slot for slot, one in packer.files if one.slot < 0 and one.error is None]
    with session.context.mutex, suppress(OSError):  # what stays is free
        session.slots.unlink(gone)


class _Packer:
    """Packs the objects of one commit, one after the other."""

    def __init__(
        self, session: Session, commit: CommitInfo, near: SnapshotInfo | None, level: int
    ) -> None:
        self._session = session
        self._commit = commit
        self._near = None if near is None else read_manifest(session, near)
        self._level = level
        self.manifest: dict[Part, ObjectRef] = {}
        self.staged: list[StagedObject] = []
        self.files: list[tuple[int, StagedObject]] = []
        """New files, by slot."""
        self.deltas = self.shared = 0

    def pack(self, part: Part) -> None:
        """Pack one object and prove that it can be read, or find it packed."""
        session, reference = self._session, self._commit.manifest[part]
        if reference.format == ARCHIVE:  # kept by the commit from one that was archived
            self._name(part, reference, shared=True)
            return
        near = None if self._near is None else self._near.manifest.get(part)
        if near is not None and near.format == ARCHIVE:
            ours = session.read_header(part, reference, self._commit)
            assert self._near is not None
            theirs = session.read_header(part, near, self._near)
            if _same(ours, theirs):
                self._name(part, near, shared=True)
                return
        with self._read_base(part, _possible_base(near)) as base:
            staged, header = self._write(part, reference, base)
            self._prove(part, staged.known(), header, base)
        self._name(part, staged.known(), shared=False)

    def _name(self, part: Part, reference: ObjectRef, *, shared: bool) -> None:
        self.manifest[part] = reference
        self.shared += shared
        self.deltas += reference.base is not None and not shared

    @contextmanager
    def _read_base(self, part: Part, reference: ObjectRef | None) -> Iterator[codec.Base | None]:
        if reference is None:
            yield None
            return
        assert self._near is not None
        buffer, header = self._session.read_object(part, reference, self._near)
        try:
            yield codec.Base(reference, header.layout, buffer.view)
        finally:
            buffer.release()

    def _write(
        self, part: Part, reference: ObjectRef, base: codec.Base | None
    ) -> tuple[StagedObject, ObjectHeader]:
        session = self._session
        buffer, header = session.read_object(part, reference, self._commit)
        try:
            write = session.next_write_id()
            told = replace(header.label, write=write_id(*write))
            pieces, used = codec.encode(
                buffer.view, header.layout, told, header.digests, base, self._level,
                session.context.workers,
            )  # fmt: skip
            staged = session.staging.file(part, ARCHIVE, replace(header, label=told), write, pieces)
            self.staged.append(staged)
            self.files.append((staged.slot, staged))
            assert staged.reference is not None
            if used and base is not None:
                staged.reference = staged.reference._replace(base=base.reference)
            session.staging.wait(staged)  # a piece that did not pack is the object's memory
            return staged, header
        finally:
            buffer.release()

    def _prove(
        self, part: Part, reference: ObjectRef, header: ObjectHeader, base: codec.Base | None
    ) -> None:
        """Read the packed object back: the record may cost the one that it stands for."""
        session = self._session
        buffer, found = foreign.read(
            session.objects, part, reference, self._commit.step, None, session.cache.acquire, base
        )
        buffer.release()
        if not _same(header, found):
            raise CorruptionError(
                "a packed object reads back as another; nothing was changed",
                file=session.path(reference.file), expected=header.digests, found=found.digests,
            )  # fmt: skip


def _possible_base(near: ObjectRef | None) -> ObjectRef | None:
    if near is None:
        return None
    found = near.base or near
    return found if found.format in (RAW, ARCHIVE) else None


def _same(ours: ObjectHeader, theirs: ObjectHeader) -> bool:
    """Whether both have the same tensors, in the same order, with the same bytes."""
    return ours.layout == theirs.layout and ours.digests == theirs.digests
