"""The page: every result of a directory as tables and pictures, claims first.

Made from JSON alone. A row whose samples were mostly dropped is marked, and so is a claim that
rests on one; results of a quick run are named as such.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.frame.pictures import draw, milliseconds

PAGE = "README.md"
HEAD = """# Measured

Made by `python -m benchmarks report` from the JSON files beside it; nothing here is written by
hand. Ratios are ratios of medians within one run, whose variants took turns round by round; 1 is as
fast as the reference, in brackets the lowest and highest of the single rounds. Samples during which
other processes used the machine do not count ("kept" tells how many do), and a row with less than
half of its samples left uses all of them and is marked with an asterisk. Absolute figures belong to
the machine named with them.
"""


def make_page(results: Path) -> str:
    """Draw the pictures into `results` and return the page's text."""
    found = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    contents = [content for content in found if "question" in content]  # others measure nothing
    lines = [HEAD]
    if not contents:
        lines.append("Nothing has been measured yet.\n")
    claims = [(content, claim) for content in contents for claim in content["claims"]]
    if claims:
        lines += ["## What was promised\n", *_claims(claims)]
    for content in contents:
        stem = _stem(content)
        picture = f"{stem}.png" if draw(content, results / f"{stem}.png") else None
        lines += _section(content, picture)
    return "\n".join(lines).rstrip() + "\n"


def _stem(content: dict[str, Any]) -> str:
    return f"{content['question']}-{content['model']}" if content["model"] else content["question"]


def _claims(claims: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    rows = []
    for content, claim in claims:
        below, above = claim["at_most"], claim["at_least"]
        wanted = [f"at least {_value(above, claim['unit'])}"] if above is not None else []
        wanted += [f"at most {_value(below, claim['unit'])}"] if below is not None else []
        noisy = " (noisy)" if claim["noisy"] else ""
        quick = " (quick run)" if content["quick"] else ""
        rows.append([
            claim["text"], content["model"] or "", " and ".join(wanted),
            _value(claim["value"], claim["unit"]),
            ("yes" if claim["met"] else "**no**") + noisy + quick,
        ])  # fmt: skip
    return table(["claim", "model", "wanted", "measured", "met"], rows)


def _section(content: dict[str, Any], picture: str | None) -> list[str]:
    model = f", {content['model']}" if content["model"] else ""
    quick = " (quick run: tries the benchmark, not the store)" if content["quick"] else ""
    lines = [f"## {content['title']}{model}{quick}\n", f"{content['about']}\n"]
    if picture:
        lines.append(f"![{content['title']}]({picture})\n")
    for each in content["tables"]:
        lines.append(f"**{each['title']}**\n")
        lines += _series(each) if each["axis"] else _rows(each)
    if content["figures"]:
        lines += table(
            ["figure", "value", "note"],
            [[f["name"], _value(f["value"], f["unit"]), f["note"]] for f in content["figures"]],
        )
    lines += [f"- {note}" for note in content["notes"]]
    return [*lines, "", _where(content)]


def _rows(each: dict[str, Any]) -> list[str]:
    """A table of bars: time, speed, share of each reference, what the row measured by itself."""
    references = [row["name"] for row in each["rows"] if row["kind"] == "reference"]
    extras = list(dict.fromkeys(name for row in each["rows"] for name in row["extra"]))
    head = ["", "median", "GB/s", *(f"of {name}" for name in references)]
    head += [_extra_title(name) for name in extras]
    rows = []
    for row in each["rows"]:
        speed = f"{row['bytes_per_s'] / 1e9:.2f}" if row["bytes"] else ""
        cells = [_name(row), milliseconds(row["median_s"]), speed]
        cells += [_ratio(row["ratios"].get(name)) for name in references]
        cells += [_extra(name, row["extra"].get(name)) for name in extras]
        rows.append([*cells, _kept(row), row["note"]])
    return table([*head, "kept", "what is measured"], rows)


def _series(each: dict[str, Any]) -> list[str]:
    """A table with an axis: a line for each name, a column for each x."""
    xs = sorted({row["x"] for row in each["rows"]})
    by_name: dict[str, dict[float, str]] = {}
    for row in each["rows"]:
        star = "\\*" * row["noisy"]
        by_name.setdefault(row["name"], {})[row["x"]] = milliseconds(row["median_s"]) + star
    rows = [[name, *(cells.get(x, "") for x in xs)] for name, cells in by_name.items()]
    return table([each["axis"], *(f"{x:,.6g}" for x in xs)], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns in which every cell is empty are left out."""
    shown = [i for i in range(len(head)) if i == 0 or any(row[i] for row in rows)]
    lines = [[head[i] for i in shown], ["---"] * len(shown)]
    lines += [[row[i] for i in shown] for row in rows]
    return ["\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"]


def _name(row: dict[str, Any]) -> str:
    return f"*{row['name']}*" if row["kind"] == "reference" else row["name"] + "\\*" * row["noisy"]


def _ratio(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def _kept(row: dict[str, Any]) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in row["dropped"].items())
    return f"{row['clean']} of {len(row['samples'])}" + (f" ({reasons})" if reasons else "")


def _extra_title(name: str) -> str:
    return name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")


def _extra(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return _value(value, "B") if name.endswith("_bytes") else milliseconds(value)


def _value(value: float, unit: str) -> str:
    if unit == "ms":
        return milliseconds(value / 1000)
    if unit == "B":
        return f"{value / 1e6:,.1f} MB" if value >= 1e6 else f"{value:,.0f} bytes"
    if unit == "%":
        return f"{value:.2f} %"
    return f"{value:.2f}" if unit == "x" else f"{value:.3g} {unit}"


def _where(content: dict[str, Any]) -> str:
    around = content["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in around["versions"].items())
    changed = " with changes" if around["changed"] else ""
    return (
        f"<sub>{around['date'][:10]}, commit {around['commit']}{changed}; "
        f"{around['processors']} x {around['processor']}, {around['memory_gib']} GiB, "
        f"{around['file_system']}, Linux {around['kernel']}; Python {around['python']}, "
        f"{versions}; {content['repeats']} repeats, others used "
        f"{100 * content['foreign_share']:.1f} % of a processor</sub>\n"
    )


def summary(content: dict[str, Any]) -> str:
    """For the terminal, after a run."""
    lines = []
    for each in content["tables"]:
        lines.append(each["title"])
        for row in each["rows"]:
            speed = f"{row['bytes_per_s'] / 1e9:8.2f} GB/s" if row["bytes"] else " " * 13
            x = f" {row['x']:,.6g}" if row["x"] is not None else ""
            ratios = "".join(f"  {r['value']:.2f} of {n}" for n, r in row["ratios"].items())
            extra = "".join(
                f"  {_extra_title(name)} {_extra(name, value)}"
                for name, value in row["extra"].items()
            )
            star = "*" * row["noisy"]
            time = milliseconds(row["median_s"]) + star
            lines.append(f"  {row['name'] + x:<42}{time:>12}{speed}{ratios}{extra}")
    lines += [f"  {f['name']:<42}{_value(f['value'], f['unit']):>12}" for f in content["figures"]]
    for claim in content["claims"]:
        met = "met" if claim["met"] else "NOT MET"
        noisy = ", noisy" * claim["noisy"]
        wanted = claim["at_least"] if claim["at_least"] is not None else claim["at_most"]
        value = _value(claim["value"], claim["unit"])
        lines.append(f"  {claim['text']}: {value}, wanted {wanted}: {met}{noisy}")
    return "\n".join([*lines, *content["notes"]])
