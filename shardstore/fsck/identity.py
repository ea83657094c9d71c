"""Whether an object that is sound in itself is the one that the manifest means."""

from __future__ import annotations

from collections.abc import Iterator

from shardstore.format.manifest import write_id
from shardstore.format.placement import ObjectLabel
from shardstore.fsck.findings import Finding, Wanted, damage


def identity(
    wanted: Wanted | None, uuid: str | None, label: ObjectLabel, path: str
) -> Iterator[Finding]:
    """Each thing in which the label is another's; the store alone, where `wanted` is None."""
    checks = [("store", uuid or label.store, label.store)]
    if wanted is not None:
        reference = wanted.reference
        checks += [
            ("names", f"{wanted.part[0]!r} {wanted.part[1]!r}",
             f"{label.shard!r} {label.part!r}"),
            ("write id", write_id(reference.epoch, reference.counter), label.write),
        ]  # fmt: skip
    for what, expected, found in checks:
        if expected != found:
            yield damage(f"another object stands here: {what} (its step is {label.step})",
                         path, 8, expected=expected, found=found)  # fmt: skip
