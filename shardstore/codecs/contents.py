"""What a file of another storage format holds: whose it is, and where each tensor's bytes stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardstore.errors import CorruptionError
from shardstore.format.digests import digest
from shardstore.format.placement import ObjectLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """As the file itself says; `digests` are in the order of `places`."""

    label: ObjectLabel
    digests: tuple[str, ...]
    places: dict[str, tuple[int, int]]
    """Begin and end in the file, by tensor."""

    def damage(self, data: memoryview, *, file: str) -> Iterator[tuple[str, CorruptionError]]:
        """Every tensor of the whole file `data` that is not as declared, by name."""
        label = self.label
        where = f"shard {label.shard!r} part {label.part!r} at step {label.step}"
        for (name, (begin, end)), expected in zip(self.places.items(), self.digests, strict=False):
            if (found := digest(data[begin:end])) != expected:
                what = f"tensor {name!r} of {where} is damaged"
                yield (
                    name,
                    CorruptionError(what, file=file, offset=begin, expected=expected, found=found),
                )
