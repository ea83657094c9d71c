"""Samples and what is made of them: medians, speeds, ratios. Pure arithmetic, no I/O.

A sample is one timed call. It is dropped, with a reason, when something made it worthless; a
statistic uses what is left. Where less than half of a row is left the row uses all of its samples
and says that it is noisy: a figure with a warning is worth more than a gap.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["reference", "ours", "peer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed call of one variant."""

    variant: str
    round: int
    seconds: float
    foreign_s: float = 0.0
    """Processor time that others used meanwhile."""
    dropped: str | None = None
    """Why it does not count."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """What the variant measured by itself, in seconds or bytes as the name says."""

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "round": self.round,
            "seconds": round(self.seconds, 7),
            "foreign_s": round(self.foreign_s, 3),
        }
        if self.dropped:
            plain["dropped"] = self.dropped
        return plain | {name: round(value, 7) for name, value in self.extra.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A row's speed over a reference's: 1 is as fast as the reference."""

    value: float
    """Of the medians."""
    by_round: float
    """Median of the ratios within one round."""
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        names = ("value", "by_round", "low", "high")
        return {name: round(getattr(self, name), 4) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All samples of one variant."""

    name: str
    kind: Kind
    note: str = ""
    bytes: int = 0
    """Moved by one call; 0 where speed means nothing."""
    x: float | None = None
    """Where the row stands on its table's axis; None in a table without one."""
    samples: tuple[Sample, ...] = ()

    @property
    def clean(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.dropped is None]

    @property
    def noisy(self) -> bool:
        return not self.clean or 2 * len(self.clean) < len(self.samples)

    @property
    def used(self) -> list[Sample]:
        return list(self.samples) if self.noisy else self.clean

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(sample.seconds for sample in self.used)

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds

    def extra(self, name: str) -> float:
        """Median of something that the variant measured by itself."""
        return statistics.median(s.extra[name] for s in self.used if name in s.extra)

    def extra_names(self) -> list[str]:
        return list(dict.fromkeys(name for sample in self.used for name in sample.extra))

    def reasons(self) -> dict[str, int]:
        return dict(Counter(s.dropped for s in self.samples if s.dropped is not None))

    def to_json(self) -> dict[str, Any]:
        used = [sample.seconds for sample in self.used]
        return {
            "name": self.name,
            "kind": self.kind,
            "note": self.note,
            "bytes": self.bytes,
            "x": self.x,
            "median_s": round(self.seconds, 7),
            "low_s": round(min(used), 7),
            "high_s": round(max(used), 7),
            "bytes_per_s": round(self.bytes_per_s),
            "noisy": self.noisy,
            "clean": len(self.clean),
            "dropped": self.reasons(),
            "extra": {name: round(self.extra(name), 7) for name in self.extra_names()},
            "samples": [sample.to_json() for sample in self.samples],
        }


def speed_ratio(row: Row, reference: Row) -> Ratio:
    """How fast `row` is, `reference` being 1. Bytes count where both have them."""
    weight = row.bytes / reference.bytes if row.bytes and reference.bytes else 1.0
    others = {sample.round: sample.seconds for sample in reference.used}
    shared = [weight * others[s.round] / s.seconds for s in row.used if s.round in others]
    value = weight * reference.seconds / row.seconds
    shared = shared or [value]
    return Ratio(value=value, by_round=statistics.median(shared), low=min(shared), high=max(shared))


def complete(samples: Sequence[Sample], names: Iterable[str], repeats: int) -> bool:
    """Whether every variant has that many samples that count."""
    counts = Counter(sample.variant for sample in samples if sample.dropped is None)
    return all(counts[name] >= repeats for name in names)
