"""What a question found: tables of rows, single figures, and claims with what was asked for.

Written as JSON with every sample in it, so that the page can be made again and figures be doubted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.frame.samples import Row, speed_ratio

Unit = Literal["ms", "s", "B", "GB/s", "x", "%"]


@dataclass(slots=True, kw_only=True)
class Table:
    """Rows that were measured in the same rounds."""

    title: str
    rows: list[Row]
    axis: str = ""
    """What the rows' x counts; empty in a table of bars."""

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def ratio(self, name: str, reference: str) -> float:
        return speed_ratio(self.row(name), self.row(reference)).value

    def to_json(self) -> dict[str, Any]:
        references = [row for row in self.rows if row.kind == "reference"]
        rows = []
        for row in self.rows:
            ratios = {
                other.name: speed_ratio(row, other).to_json()
                for other in references
                if other is not row and bool(other.bytes) == bool(row.bytes) and not self.axis
            }
            rows.append({**row.to_json(), "ratios": ratios})
        return {"title": self.title, "axis": self.axis, "rows": rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A promise and what was measured."""

    text: str
    value: float
    unit: Unit
    at_least: float | None = None
    at_most: float | None = None
    noisy: bool = False

    @property
    def met(self) -> bool:
        enough = self.at_least is None or self.value >= self.at_least
        return enough and (self.at_most is None or self.value <= self.at_most)

    def to_json(self) -> dict[str, Any]:
        names = ("text", "value", "unit", "at_least", "at_most", "noisy", "met")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number that is not a time of a row."""

    name: str
    value: float
    unit: Unit
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("name", "value", "unit", "note")}


@dataclass(slots=True, kw_only=True)
class Result:
    """All that one question has to say in one run."""

    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the reader has to know, such as what could not be measured here."""

    def claim_ratio(
        self, text: str, table: Table, name: str, reference: str, at_least: float
    ) -> None:
        """That a row reaches this share of a reference's speed, or this multiple of a peer's."""
        noisy = table.row(name).noisy or table.row(reference).noisy
        value = table.ratio(name, reference)
        self.claims.append(Claim(text=text, value=value, unit="x", at_least=at_least, noisy=noisy))

    def to_json(self) -> dict[str, Any]:
        groups = ("tables", "figures", "claims")
        plain = {name: [item.to_json() for item in getattr(self, name)] for name in groups}
        return {**plain, "notes": self.notes}


def write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
