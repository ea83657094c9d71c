"""What the laboratory saw, as values, and the verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.lab.part import BY_NAME, Outcome

_RECORDED = ("date", "commit", "changed", "file_system", "kernel", "processor", "python")


@dataclass(slots=True, kw_only=True)
class PartResult:
    """One part: its outcome, or why there is none."""

    name: str
    outcome: Outcome
    seconds: float
    """Of this call."""

    @property
    def seconds_all(self) -> float:
        """Of earlier calls that it went on from too."""
        return self.seconds + self.outcome.seconds_before

    @property
    def verdict(self) -> str:
        if not self.ran:
            return "could not be run"
        wrong = len(self.outcome.wrong)
        return f"{wrong} FINDINGS" if wrong else "nothing wrong"

    def to_json(self) -> dict[str, Any]:
        values = asdict(self.outcome)
        del values["seconds_before"]
        return {"verdict": self.verdict, **values, "seconds": round(self.seconds_all, 1)}

    @property
    def ran(self) -> bool:
        return self.outcome.tried > 0 or bool(self.outcome.wrong)

    @property
    def what(self) -> str:
        return BY_NAME[self.name].what


@dataclass(slots=True, kw_only=True)
class Report:
    """Everything the page tells."""

    place: Mapping[str, Any]
    """Date, commit, machine, file system: `benchmarks.frame.environment.describe`."""
    directory: str
    profile: str
    """"5 minutes" or "long"."""
    seed: int
    parts: list[PartResult] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    """Parts are missing, since somebody ended the whole."""

    @property
    def wrong(self) -> int:
        return sum(len(part.outcome.wrong) for part in self.parts)

    @property
    def tried(self) -> int:
        return sum(part.outcome.tried for part in self.parts)

    @property
    def ok(self) -> bool:
        """Nothing was wrong, and something was tried."""
        return self.wrong == 0 and self.tried > 0

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "profile": self.profile,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "place": dict(self.place),
            "interrupted": self.interrupted,
            "parts": {part.name: part.to_json() for part in self.parts},
        }


def recorded(before: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The record of last results with this report in it: one entry a profile and part, so that a
    long run of one part replaces its own last result and no other."""
    found = {name: dict(parts) for name, parts in before.items()}
    kind = "long" if report.profile == "long" else "short"
    entry = found.setdefault(kind, {})
    place = {name: report.place.get(name) for name in _RECORDED}
    for part in report.parts:
        if part.ran or part.name not in entry:
            values = {"profile": report.profile, "seed": report.seed, **part.to_json()}
            entry[part.name] = {**place, **values}
    return dict(sorted(found.items()))
