"""The report that the laboratory ends with: plain text for somebody who is new here. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from tools.lab.part import PARTS
from tools.lab.result import PartResult, Report

_WIDTH = 100
_LIMITS = (
    "A disk that calls a sync done and keeps the data in a cache without power can lose what was "
    "acknowledged; no software sees that before the power fails.",
    "The power cuts here end a kernel's file system on this disk, not the disk itself: its own "
    "cache and its controller are not part of it.",
    "Digests find accidents. They are no protection against somebody who changes files on purpose.",
)


def page(report: Report, files: Sequence[str]) -> str:
    """`files` are the lines about what was left."""
    sections = [
        _title(report),
        _place(report),
        _table(report.parts),
        *(_details(part) for part in report.parts if part.outcome.detail),
        *(_findings(part) for part in report.parts if part.outcome.wrong),
        ["What this cannot see", *(_paragraph(text) for text in _LIMITS)],
        ["Files", *(f"  {line}" for line in files)],
    ]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def verdict(report: Report) -> str:
    """In one sentence."""
    if report.wrong:
        return f"{report.wrong} FINDINGS: the store did not hold; see below."
    if report.interrupted:
        parts = ", ".join(part.name for part in report.parts if part.ran)
        if not parts:
            return "INTERRUPTED before a part had ended."
        return f"INTERRUPTED: {parts} had ended, with nothing wrong in {report.tried:,} trials."
    if not report.tried:
        return "NOTHING could be tried here; see the reasons below."
    left_out = [part.name for part in report.parts if not part.ran]
    some = f"; {', '.join(left_out)} could not be run here" if left_out else ""
    return f"Nothing was wrong in {report.tried:,} trials{some}."


def _title(report: Report) -> list[str]:
    title = "Crash laboratory"
    return [title, "=" * len(title), verdict(report)]


def _place(report: Report) -> list[str]:
    place = report.place
    changed = " with changes that are not committed" if place.get("changed") else ""
    return [
        "Where",
        f"  {report.directory}, on {place.get('file_system')}, kernel {place.get('kernel')}",
        f"  {place.get('processor')}, {place.get('processors')} processors",
        f"  {place.get('date')}, commit {place.get('commit') or 'unknown'}{changed}",
        f"  profile: {report.profile}, seed {report.seed}, took {report.seconds:.0f} s",
    ]


def _table(parts: Sequence[PartResult]) -> list[str]:
    lines = ["What was tried", f"  {'part':10}{'tried':>9}  {'of':32}{'wrong':>6}{'seconds':>9}"]
    lines.append("  " + "-" * 66)
    for part in parts:
        out = part.outcome
        lines.append(
            f"  {part.name:10}{out.tried:9,}  {out.unit or '-':32}"
            f"{len(out.wrong):6}{part.seconds:9.0f}"
        )
        if out.cannot:
            lines.append(f"  {'':10}  not all of it could be run: {out.cannot}" if part.ran
                         else f"  {'':10}  could not be run: {out.cannot}")  # fmt: skip
    lines.append("")
    width = max(len(part.name) for part in PARTS)
    for known in PARTS:
        where = "" if known.touches_disk else " In memory: does not depend on the disk."
        text = f"{known.name:{width}}  {known.what}{where}"
        lines.append(fill(text, _WIDTH, initial_indent="  ", subsequent_indent=" " * (width + 4)))
    return lines


def _details(part: PartResult) -> list[str]:
    return [part.name, *map(_detail, part.outcome.detail)]


def _detail(line: str) -> str:
    """Rows of a table stay as they are."""
    return f"  {line}" if len(line) <= _WIDTH - 2 else _paragraph(line)


def _findings(part: PartResult) -> list[str]:
    lines = [f"FINDINGS in {part.name}"]
    for finding in part.outcome.wrong:
        lines += ["  - " + finding.replace("\n", "\n    ")]
    return lines


def _paragraph(text: str) -> str:
    return fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")
