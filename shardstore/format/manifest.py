"""Values that stand in records: object references, commits, snapshots, undo entries.

Each converts to and from the JSON of FORMAT.md section 4. Values are immutable; whoever holds one
may share it between threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardstore.format.digests import canonical_json, digest
from shardstore.format.names import ARCHIVE, slot_file

Part = tuple[str, str]
"""(shard, part)"""


class ObjectRef(NamedTuple):
    """Where one object lies and how to tell that it is the one; in JSON a list of its fields.

    A tuple, since opening a store makes tens of thousands of them.
    """

    slot: int
    epoch: int
    counter: int
    size: int
    digest: str
    head: str
    """Digest of the data's beginning: where it differs from a parent's, the data differ."""
    format: str
    """Storage format, which the file's name carries too."""
    base: ObjectRef | None = None
    """What an archived object is the difference to; has no base itself."""

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> ObjectRef:
        if len(row) < 8:
            return cls(*row)
        return cls(*row[:7])._replace(base=cls(*row[7][:7]))

    def to_json(self) -> list[Any]:
        row = list(self[:7])
        return row if self.base is None else [*row, list(self.base[:7])]

    @property
    def whole(self) -> tuple[ObjectRef, ...]:
        """This object and its base: what reading it takes."""
        return (self,) if self.base is None else (self, self.base)

    @property
    def file(self) -> str:
        """Path of the slot's file inside the store."""
        return slot_file(self.slot, self.format)


Manifest = Mapping[Part, ObjectRef]


def manifest_to_json(manifest: Manifest) -> list[Any]:
    """Rows [shard, part, reference], sorted."""
    return [[*part, manifest[part].to_json()] for part in sorted(manifest)]


def manifest_from_json(rows: list[Any]) -> dict[Part, ObjectRef]:
    return {(shard, part): ObjectRef.from_json(ref) for shard, part, ref in rows}


def is_archived(manifest: Manifest) -> bool:
    """Whether it names archived objects only, and one at least."""
    return bool(manifest) and all(ref.format == ARCHIVE for ref in manifest.values())


def manifest_digest(manifest: Manifest) -> str:
    return digest(canonical_json(manifest_to_json(manifest)))


def write_id(epoch: int, counter: int) -> str:
    """Text form of a write id, of fixed width."""
    return f"{epoch:016x}-{counter:016x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """The commit descriptor: everything that one commit says."""

    seq: int
    chain: str
    branch: str
    line: int
    step: int
    time: float
    parent: int | None
    txn: str
    manifest: Manifest
    metadata: Mapping[str, Any]
    blobs: Mapping[str, str]
    """name -> base64"""

    def slots(self) -> set[int]:
        """Those of the objects and of their bases."""
        return {one.slot for ref in self.manifest.values() for one in ref.whole}

    def objects(self) -> Iterator[tuple[Part, ObjectRef]]:
        """Every object that reading the commit takes: a base stands under the part it is for."""
        for part, reference in self.manifest.items():
            for one in reference.whole:
                yield part, one

    def to_json(self) -> dict[str, Any]:
        value = {name: getattr(self, name) for name in _PLAIN}
        return {**value, "manifest": manifest_to_json(self.manifest)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CommitInfo:
        plain = {name: value[name] for name in _PLAIN}
        return cls(manifest=manifest_from_json(value["manifest"]), **plain)


_PLAIN = (
    "seq",
    "chain",
    "branch",
    "line",
    "step",
    "time",
    "parent",
    "txn",
    "metadata",
    "blobs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """What the log says of a snapshot; its manifest is an object of its own."""

    name: str
    seq: int
    chain: str
    line: int
    step: int
    time: float
    reference: ObjectRef
    archived: bool
    """Its manifest names archived objects only; the log may name others for the same commit."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "seq": self.seq,
            "chain": self.chain,
            "line": self.line,
            "step": self.step,
            "time": self.time,
            "reference": self.reference.to_json(),
            "archived": self.archived,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SnapshotInfo:
        return cls(**{**value, "reference": ObjectRef.from_json(value["reference"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoEntry:
    """What a rewind, a switch or a deletion left behind, so that it can be undone."""

    seq: int
    """Of the record that is undone."""
    op: str
    """`rewind`, `switch` or `delete`"""
    name: str
    """The branch that was moved or left, or the snapshot or branch that was deleted."""
    done: bool = False
    """True once undone; then `commit` is the head that the undo left, of a deletion None."""
    commit: int | None = None
    """The head that was left, or that of a deleted branch."""
    snapshot: SnapshotInfo | None = None
    slots: tuple[int, ...] = ()
    """Slots that a deleted snapshot holds through this entry."""

    def to_json(self) -> dict[str, Any]:
        return {
            "seq": self.seq,
            "op": self.op,
            "name": self.name,
            "done": self.done,
            "commit": self.commit,
            "snapshot": self.snapshot.to_json() if self.snapshot else None,
            "slots": list(self.slots),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> UndoEntry:
        snapshot = value["snapshot"]
        return cls(
            **{
                **value,
                "snapshot": SnapshotInfo.from_json(snapshot) if snapshot else None,
                "slots": tuple(value["slots"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Where one of two tiers stood when its state was copied to the other, as that one notes it."""

    seq: int
    chain: str
    """Sequence number and chain hash of a record of the other store's log."""
    step: int | None
    """Of the head that was copied."""
    time: float
    retention: Mapping[str, Any] | None = None
    """The active store's rule, which its successor takes over; null in a `base`."""

    def to_json(self) -> dict[str, Any]:
        return {
            "chain": self.chain,
            "retention": self.retention,
            "seq": self.seq,
            "step": self.step,
            "time": self.time,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Publication | None:
        return None if value is None else cls(**value)
