"""Retention: the rule that says which commits stay kept without a name. Pure values.

The rule stands in the log (FORMAT.md section 4), so that every process goes by the same one.
`shardstore.retention` applies it. Wrong values are refused with UsageError when they are made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shardstore.errors import UsageError

Mode = Literal["min", "max"]


def _check_positive(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"retention: {what} is {value!r}, expected an integer from 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """Keep the `count` commits whose `metric` is the smallest (or the largest).

    `metric` names a number in the commits' metadata; dots lead into nested dicts, as in
    "metrics.val_loss". Commits without it, or where it is not a finite number, are not among the
    best. Of equal ones the older is the better.
    """

    metric: str
    mode: Mode = "min"
    count: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not all(self.metric.split(".")):
            raise UsageError(
                f"retention: metric is {self.metric!r}, expected a name in the commits' metadata "
                "such as 'loss' or 'metrics.val_loss'"
            )
        if self.mode not in ("min", "max"):
            raise UsageError(f"retention: mode is {self.mode!r}, expected 'min' or 'max'")
        _check_positive("best count", self.count)

    def rank(self, metadata: Mapping[str, Any]) -> float | None:
        """Smaller is better; None where the metadata has no such number."""
        value: Any = metadata
        for name in self.metric.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return None
            value = value[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if not math.isfinite(value):
            return None
        return value if self.mode == "min" else -value


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which commits are kept beside those that have a name.

    `last`: the newest commits of each branch, its head included. `every`: commits whose step is a
    multiple of it. `best`: see `Best`. Snapshots, branches and what `undo` may return to are kept
    whatever this says.
    """

    last: int = 2
    every: int | None = None
    best: Best | None = None

    def __post_init__(self) -> None:
        _check_positive("last", self.last)
        if self.every is not None:
            _check_positive("every", self.every)
        if self.best is not None and not isinstance(self.best, Best):
            raise UsageError(f"retention: best is {self.best!r}, expected a Best or None")

    def __str__(self) -> str:
        parts = ["the last commit" if self.last == 1 else f"the last {self.last} commits"]
        if self.every is not None:
            parts.append(f"every step that {self.every} divides")
        if self.best is not None:
            smallest = "smallest" if self.best.mode == "min" else "largest"
            parts.append(f"the {self.best.count} with the {smallest} {self.best.metric}")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        best = self.best
        return {
            "last": self.last,
            "every": self.every,
            "best": {"metric": best.metric, "mode": best.mode, "count": best.count}
            if best
            else None,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Retention:
        """ValueError where this is no rule."""
        try:
            best = Best(**value["best"]) if value["best"] is not None else None
            return cls(last=value["last"], every=value["every"], best=best)
        except UsageError as error:
            raise ValueError(str(error)) from error


DEFAULT = Retention()
"""Head and parent of each branch."""
