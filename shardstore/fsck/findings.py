"""What a check found: values, and how they are made from the store's errors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from shardstore.errors import CorruptionError
from shardstore.format.manifest import ObjectRef, Part
from shardstore.fs.calls import is_loss

Severity = Literal["damage", "note"]
LOG_ADVICE = "keep a copy of the directory, and restore the file from another copy of the store"
OBJECT_ADVICE = "rewind to a snapshot or step that does not need it, or restore it from a copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is damaged, or worth knowing (a note)."""

    severity: Severity
    what: str
    file: str
    offset: int | None = None
    shard: str | None = None
    part: str | None = None
    tensor: str | None = None
    step: int | None = None
    """Of the newest kept commit that needs the object."""
    snapshots: tuple[str, ...] = ()
    """Snapshots that need it."""
    expected: str | None = None
    found: str | None = None
    advice: str = ""

    @property
    def is_damage(self) -> bool:
        return self.severity == "damage"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """The finding in one line."""
        place = self.file if self.offset is None else f"{self.file} at offset {self.offset}"
        detail = "" if self.expected is None else f" (expected {self.expected}, found {self.found})"
        return f"{self.severity}: {place}: {self.what}{detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An object that the state needs, and for whom."""

    part: Part
    reference: ObjectRef
    step: int
    snapshots: tuple[str, ...] = ()
    whole: bool = False
    """Every byte is looked at in a quick check too: a snapshot's manifest."""

    def about(self, finding: Finding) -> Finding:
        """The finding with the names of this object."""
        return replace(
            finding,
            shard=self.part[0],
            part=self.part[1],
            step=self.step,
            snapshots=self.snapshots,
            advice=finding.advice or OBJECT_ADVICE,
        )


def damage(what: str, file: str, offset: int | None = None, **fields: Any) -> Finding:
    """A finding of damage; expected and found become text."""
    for key in ("expected", "found"):
        if fields.get(key) is not None:
            fields[key] = str(fields[key])
    return Finding(severity="damage", what=what, file=file, offset=offset, **fields)


def note(what: str, file: str, offset: int | None = None, **fields: Any) -> Finding:
    return Finding(severity="note", what=what, file=file, offset=offset, **fields)


def from_error(error: CorruptionError, **fields: Any) -> Finding:
    return damage(
        error.what,
        error.file,
        error.offset,
        expected=error.expected,
        found=error.found,
        **fields,
    )


def unreadable(file: str, error: OSError, **fields: Any) -> Finding:
    """A file that the disk has damaged or lost. That the system refuses to look says nothing about
    the file: such an error is raised again."""
    if not is_loss(error):
        raise error
    if isinstance(error, FileNotFoundError):
        return damage("it is missing", file, expected="to be there", found="nothing", **fields)
    fields.setdefault("advice", "look at the disk, and at what stands there, then check again")
    return damage(f"cannot be read: {error.strerror or error}", file, **fields)
