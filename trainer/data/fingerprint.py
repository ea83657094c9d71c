"""What a data directory held: recorded with a run, compared when it resumes.

Contract: a fingerprint lists every file with size, shape, dtype, a digest of its first and last
page, and, once every byte was read, a digest of its content. It is *full* when all files have
the latter and *sampled* otherwise. Two are compared by everything that both know: a sampled one
proves less, and says so in its kind. Times and the directory's own path are no part of it, so a
copy elsewhere is the same data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from trainer.data.errors import DataChanged, DataError
from trainer.data.npyfile import FileEntry

SUMMARY_FILES_MAX = 64
_NAMED_MAX = 10


@dataclass(frozen=True, slots=True)
class DataFingerprint:
    """Files in name order."""

    entries: tuple[FileEntry, ...]

    @property
    def kind(self) -> str:
        return "full" if all(entry.digest for entry in self.entries) else "sampled"

    @property
    def rows(self) -> int:
        return sum(entry.rows for entry in self.entries)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def max_id(self) -> int | None:
        """The largest token id, where every row has been looked at."""
        known = [entry.max_id for entry in self.entries if entry.max_id is not None]
        return max(known) if len(known) == len(self.entries) else None

    def summary(self) -> dict[str, Any]:
        """JSON of bounded size, for every commit; names single files up to 64 of them."""
        value = self.to_json()
        if len(self.entries) > SUMMARY_FILES_MAX:
            del value["entries"]
        return value

    def to_json(self) -> dict[str, Any]:
        """JSON with every file: some 130 bytes each."""
        samples, contents = xxhash.xxh3_128(), xxhash.xxh3_128()
        for entry in self.entries:
            form = f"{entry.name}\0{entry.size}\0{entry.rows}\0{entry.width}\0{entry.dtype}\0"
            samples.update(f"{form}{entry.sample}\n".encode("utf-8", "surrogateescape"))
            contents.update(f"{form}{entry.digest}\n".encode("utf-8", "surrogateescape"))
        return {
            "kind": self.kind,
            "files": len(self.entries),
            "rows": self.rows,
            "width": self.entries[0].width if self.entries else 0,
            "sample": samples.hexdigest(),
            "content": contents.hexdigest() if self.kind == "full" else None,
            "entries": {
                e.name: [e.size, e.rows, e.dtype, e.sample, e.digest] for e in self.entries
            },
        }


Fingerprint = DataFingerprint | Mapping[str, Any]


def compare_fingerprints(old: Fingerprint, new: Fingerprint) -> list[str]:
    """Every difference, by name; an empty list when both are the same data as far as both know."""
    before = old.to_json() if isinstance(old, DataFingerprint) else old
    after = new.to_json() if isinstance(new, DataFingerprint) else new
    try:
        differences = _compare_files(before.get("entries"), after.get("entries"))
        for name in ("files", "rows", "width"):
            if before[name] != after[name]:
                differences.append(f"{name}: {before[name]} before, {after[name]} now")
        for name in ("sample", "content"):
            known = before[name] is not None and after[name] is not None
            if known and before[name] != after[name] and not differences:
                differences.append(f"{name} digest: {before[name]} before, {after[name]} now")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"not a data fingerprint: {error!r}") from error
    return differences


def _compare_files(before: Any, after: Any) -> list[str]:
    if before is None or after is None:
        return []
    differences = [f"{name}: file is gone" for name in before if name not in after]
    differences += [f"{name}: file is new" for name in after if name not in before]
    for name in before:
        if name in after:
            what = _compare_entry(before[name], after[name])
            differences += [f"{name}: {what}"] if what else []
    return sorted(differences)


def _compare_entry(before: list[Any], after: list[Any]) -> str | None:
    for position, what in enumerate(("size in bytes", "rows", "dtype")):
        if before[position] != after[position]:
            return f"{what} {before[position]} before, {after[position]} now"
    if before[3] != after[3] or (before[4] and after[4] and before[4] != after[4]):
        return "content changed"
    return None


def require_same_data(old: Fingerprint, new: Fingerprint, what: str) -> None:
    """Refuses changed data; `what` begins the message, as in "training data data/train"."""
    differences = compare_fingerprints(old, new)
    if differences:
        shown = "; ".join(differences[:_NAMED_MAX])
        more = len(differences) - _NAMED_MAX
        raise DataChanged(
            f"{what} is not the data this run was trained on: {shown}"
            + (f"; and {more} more" if more > 0 else "")
            + "; put the old data back, or start a new run"
        )
