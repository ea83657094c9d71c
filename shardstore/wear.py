"""How fast a disk wears and which durability keeps it within a limit: arithmetic only.

A disk is sold with a rated endurance, the bytes that may be written to it (TBW, in units of 10^12).
Every commit writes the objects that changed and a frame of the log. The disk's own amplification
is its maker's affair and left out: objects are large and written whole.

`status`, `bench` and the trainer say what these functions give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from shardstore.errors import UsageError

SECONDS_PER_DAY = 86_400
DAYS_PER_YEAR = 365.25
TERABYTE = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """What keeps a disk within a limit."""

    level: Literal["durable", "deferred"]
    """durable: every commit may go to this disk. deferred: only every `every`-th may."""
    every: int
    """Commits for each one that the disk takes."""

    def text(self) -> str:
        """The advice in words."""
        if self.level == "durable":
            return "every commit may be durable on this disk"
        return (
            f"deferred: let the disk take one commit in {self.every}, by publishing every "
            f"{self.every} steps from a store on a RAM disk or by committing every {self.every} "
            "steps"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wear:
    """What a run writes to its disk."""

    bytes_per_commit: int
    commits_per_day: float | None = None
    """None where the pace is not known yet."""

    def __post_init__(self) -> None:
        if self.bytes_per_commit < 0 or not (self.commits_per_day or 0) >= 0:
            raise UsageError(
                f"wear of {self.bytes_per_commit} bytes a commit and {self.commits_per_day} "
                "commits a day: expected numbers of 0 or more"
            )

    @classmethod
    def of(cls, bytes_per_commit: int, seconds_per_commit: float) -> Wear:
        """From the time between two commits."""
        if not (math.isfinite(seconds_per_commit) and seconds_per_commit > 0):
            raise UsageError(f"{seconds_per_commit} seconds a commit: expected more than 0")
        return cls(
            bytes_per_commit=bytes_per_commit,
            commits_per_day=SECONDS_PER_DAY / seconds_per_commit,
        )

    @property
    def bytes_per_day(self) -> float | None:
        if self.commits_per_day is None:
            return None
        return self.bytes_per_commit * self.commits_per_day

    def commits_until(self, rated_bytes: float) -> int | None:
        """Commits that a rated endurance allows; None for any number."""
        _check_rating(rated_bytes)
        return int(rated_bytes // self.bytes_per_commit) if self.bytes_per_commit else None

    def years_until(self, rated_bytes: float) -> float | None:
        """Years at this pace until a rated endurance is used up; None where the pace is not known,
        infinity where nothing is written."""
        _check_rating(rated_bytes)
        if self.bytes_per_day is None:
            return None
        if not self.bytes_per_day:
            return math.inf
        return rated_bytes / self.bytes_per_day / DAYS_PER_YEAR

    def within(self, rated_bytes: float, years: float) -> Durability | None:
        """The durability that makes the endurance last that long; None without a pace."""
        if not (math.isfinite(years) and years > 0):
            raise UsageError(f"a disk that lasts {years} years: expected more than 0")
        lasts = self.years_until(rated_bytes)
        if lasts is None:
            return None
        every = max(1, math.ceil(years / lasts))
        # The quotient may miss the whole number that it stands for by a rounding.
        every -= every > 1 and lasts * (every - 1) >= years
        return Durability(level="durable" if every == 1 else "deferred", every=every)

    def to_json(
        self, rated_bytes: float | None = None, years: float | None = None
    ) -> dict[str, Any]:
        """All of it as plain values."""
        value: dict[str, Any] = {
            "bytes_per_commit": self.bytes_per_commit,
            "commits_per_day": self.commits_per_day,
            "bytes_per_day": self.bytes_per_day,
        }
        if rated_bytes is not None:
            choice = self.within(rated_bytes, years) if years else None
            value |= {
                "rated_bytes": rated_bytes,
                "commits_until_rated": self.commits_until(rated_bytes),
                "years_until_rated": self.years_until(rated_bytes),
                "wanted_years": years,
                "durability": choice.level if choice else None,
                "every": choice.every if choice else None,
            }
        return value

    def lines(self, rated_bytes: float | None = None, years: float | None = None) -> list[str]:
        """All of it in words."""
        words = [f"{_amount(self.bytes_per_commit)} a commit"]
        if self.bytes_per_day is not None:
            words.append(f"{_amount(self.bytes_per_day)} a day")
        if rated_bytes is not None:
            words.append(self._endurance(rated_bytes))
            choice = self.within(rated_bytes, years) if years else None
            if choice is not None:
                words.append(f"for {years:g} years: {choice.text()}")
        return words

    def _endurance(self, rated_bytes: float) -> str:
        commits, lasts = self.commits_until(rated_bytes), self.years_until(rated_bytes)
        rating = f"{_amount(rated_bytes)} of rated endurance"
        if commits is None:
            return f"{rating} are not touched"
        return f"{rating} take {commits} commits" + (
            f", {lasts:.3g} years at this pace" if lasts is not None else ""
        )


def commits_per_day(times: Sequence[float]) -> float | None:
    """The pace of commits made at these times, pauses between runs left out: by the median of what
    lies between two. None where it cannot be told."""
    ordered = sorted(times)
    gaps = sorted(after - before for before, after in pairwise(ordered))
    # Not statistics.median, whose import takes longer than `status` does.
    middle = (gaps[(len(gaps) - 1) // 2] + gaps[len(gaps) // 2]) / 2 if gaps else 0.0
    return SECONDS_PER_DAY / middle if middle > 0 else None


def _check_rating(rated_bytes: float) -> None:
    if not (math.isfinite(rated_bytes) and rated_bytes > 0):
        raise UsageError(f"a rated endurance of {rated_bytes} bytes: expected more than 0")


def _amount(count: float) -> str:
    """Bytes in the units that endurance is sold in."""
    for unit, name in ((TERABYTE, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} bytes"
