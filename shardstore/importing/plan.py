"""What an import will do, decided before a store is opened.

Contract: a plan exists once every header of every file was read and found sound, so that what can
be refused is refused before anything is written. Names and layouts are those of a possible commit.
`carrying` does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardstore.codecs.raw import blank_header
from shardstore.errors import (
    ForeignFileError,
    InvalidNameError,
    InvalidTensorError,
    ShardStoreError,
    UsageError,
)
from shardstore.format.names import check_data_name
from shardstore.importing.contents import ForeignTensor
from shardstore.importing.files import ForeignFile
from shardstore.metadata import check_metadata, encode_blobs

IMPORTED = "imported"
"""Where a commit's metadata say what it was imported from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPart:
    """One part of one shard."""

    shard: str
    part: str
    tensors: tuple[ForeignTensor, ...]
    files: tuple[ForeignFile, ...] = ()
    """Those that its tensors are read from."""

    @property
    def bytes(self) -> int:
        return sum(tensor.spec.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One commit."""

    step: int | None
    """None: the head's step, 0 in a store without one."""
    parts: tuple[PlannedPart, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Beside what stands under `imported`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For `imported`."""
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    snapshot: str | None = None

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of an import."""

    kind: str
    source: str
    """What it is called in messages and metadata."""
    steps: tuple[PlannedStep, ...]
    """In the order of commits."""
    whole: bool
    """The steps are the whole state: nothing that the store's head has stays beside it."""
    warnings: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(step.bytes for step in self.steps)


def checked(parts: Iterable[PlannedPart]) -> tuple[PlannedPart, ...]:
    """Parts of one commit whose names and layouts are possible, or the error that says which are
    not: names that a call gave were checked before, so it is of the file that they stand in."""
    found: dict[tuple[str, str], PlannedPart] = {}
    for part in parts:
        key = (part.shard, part.part)
        try:
            check_data_name("shard", part.shard)
            check_data_name("part", part.part)
            if key not in found:
                blank_header([tensor.spec for tensor in part.tensors], *key)
        except (InvalidNameError, InvalidTensorError) as error:
            raise _cannot_be_stored(error, part.files[0].path if part.files else "") from None
        if key in found:
            raise UsageError(
                f"two files would become shard {part.shard!r} part {part.part!r}; "
                "name them with --shard and --part"
            )
        found[key] = part
    return tuple(found.values())


def facts_of(plan: Plan, number: int) -> dict[str, Any]:
    """What the commit of a step says under `imported`."""
    return {
        "kind": plan.kind,
        "source": plan.source,
        "number": number + 1,
        "of": len(plan.steps),
        **plan.steps[number].facts,
    }


def check_beside(plan: Plan, path: str) -> None:
    """ForeignFileError where what stands beside the tensors, in the file or directory `path`,
    cannot be stored."""
    for number, step in enumerate(plan.steps):
        try:
            check_metadata({**step.metadata, IMPORTED: facts_of(plan, number)})
            encode_blobs(step.blobs)
        except (InvalidNameError, InvalidTensorError) as error:
            raise _cannot_be_stored(error, path) from None


def _cannot_be_stored(error: UsageError, path: str) -> ShardStoreError:
    if not path:
        return error
    return ForeignFileError(f"it cannot be stored: {error}", file=path)
