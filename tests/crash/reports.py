"""What explorations found, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.crash.crashes import Report


def distinct(reports: Sequence[Report]) -> int:
    """Images that were judged, those of several scenarios counted once."""
    return len(set().union(*(report.distinct for report in reports)))


def table(reports: Sequence[Report], seconds: float) -> list[str]:
    """The reports in words."""
    lines = [f"{'scenario':24}{'points':>8}{'images':>9}{'states':>9}  by crashes{'':12}seconds"]
    for r in reports:
        lines.append(
            f"{r.scenario:24}{r.points:8}{r.images:9}{r.states.total():9}  "
            f"{_histogram(r.states):22}{r.seconds:7.1f}"
        )
    depths = sum((r.states for r in reports), Counter[int]())
    lines.append(
        f"{'all':24}{sum(r.points for r in reports):8}{sum(r.images for r in reports):9}"
        f"{depths.total():9}  {_histogram(depths):22}{seconds:7.1f}"
    )
    lines.append(
        f"{distinct(reports)} distinct images, {depths.total() / max(seconds, 1e-9):.0f} states "
        "a second"
    )
    for report in reports:
        lines += ["\n  ".join(["VIOLATION:", *finding]) for finding in report.findings]
    lines.append(f"{sum(len(r.findings) for r in reports)} wrong states")
    return lines


def _histogram(states: Counter[int]) -> str:
    return " ".join(f"{depth}:{states[depth]}" for depth in sorted(states))


def as_json(reports: Sequence[Report], seconds: float) -> dict[str, Any]:
    """The reports for programs."""
    return {
        "scenarios": [
            {
                "scenario": report.scenario,
                "points": report.points,
                "images": report.images,
                "states": report.states.total(),
                "by_crashes": {str(depth): count for depth, count in report.states.items()},
                "seconds": round(report.seconds, 3),
                "violations": report.findings,
            }
            for report in reports
        ],
        "states": sum(report.states.total() for report in reports),
        "distinct_images": distinct(reports),
        "violations": sum(len(report.findings) for report in reports),
        "seconds": round(seconds, 3),
    }
