"""Pictures of tables: bars with their figures beside them, or lines with their names at the end.

Drawn from a result's JSON, so that they can be made again without measuring.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {"reference": "#9aa0a6", "ours": "#1f6feb", "peer": "#d9822b"}
INK = "#222222"


def draw(content: dict[str, Any], path: Path) -> bool:
    """One picture with a panel for each table that has something to show."""
    tables = [table for table in content["tables"] if table["rows"]]
    if not tables:
        return False
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    heights = [2.6 if t["axis"] else 0.55 + 0.3 * len(_bars(t)) for t in tables]
    figure, panels = plt.subplots(
        len(tables), 1, figsize=(8.4, sum(heights) + 0.5 * len(tables)), squeeze=False,
        gridspec_kw={"height_ratios": heights}, layout="constrained",
    )  # fmt: skip
    for panel, table in zip(panels[:, 0], tables, strict=True):
        (_draw_lines if table["axis"] else _draw_bars)(panel, table)
        panel.set_title(table["title"], loc="left", fontsize=10, color=INK)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return True


def _bars(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Speeds where every row has bytes and they differ from a copy in memory, else times."""
    return [row for row in table["rows"] if row["name"] != "memcpy"]


def _draw_bars(panel: Any, table: dict[str, Any]) -> None:
    rows = list(reversed(_bars(table)))
    speeds = all(row["bytes"] for row in rows)
    values = [row["bytes_per_s"] / 1e9 if speeds else 1000 * row["median_s"] for row in rows]
    colours = [COLOURS[row["kind"]] for row in rows]
    bars = panel.barh([row["name"] for row in rows], values, color=colours, height=0.66)
    labels = [f"{value:.2f} GB/s" if speeds else milliseconds(value / 1000) for value in values]
    if speeds:
        labels = [
            f"{label}   {milliseconds(row['median_s'])}"
            for label, row in zip(labels, rows, strict=True)
        ]
    panel.bar_label(bars, labels, padding=4, fontsize=8, color=INK)
    panel.set_xlim(0, 1.35 * max(values))
    panel.tick_params(axis="y", length=0, labelsize=8)
    panel.set_xticks([])
    panel.spines["bottom"].set_visible(False)


def _draw_lines(panel: Any, table: dict[str, Any]) -> None:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in table["rows"]:
        series.setdefault(row["name"], []).append((row["x"], 1000 * row["median_s"]))
    labels = []
    for name, points in series.items():
        points.sort()
        (line,) = panel.plot(*zip(*points, strict=True), marker="o", markersize=4, linewidth=1.5)
        labels.append((points[-1], name, line.get_color()))
    panel.set_xscale("log")
    panel.set_yscale("log")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axis.set_minor_formatter(lambda value, _: "")
    panel.set_xticks(sorted({x for points in series.values() for x, _ in points}))
    _place_labels(panel, labels)
    panel.set_xlabel(table["axis"], fontsize=8)
    panel.set_ylabel("ms", fontsize=8)
    panel.tick_params(labelsize=8)
    panel.grid(axis="y", alpha=0.25)
    left, right = panel.get_xlim()
    panel.set_xlim(left, right * (right / left) ** 0.3)


def _place_labels(panel: Any, labels: list[tuple[tuple[float, float], str, Any]]) -> None:
    """At the lines' ends, moved apart where lines end close to each other."""
    floor = 0.0
    for (x, y), name, colour in sorted(labels, key=lambda label: label[0][1]):
        at = max(y, 1.3 * floor)
        panel.annotate(
            f"{name}  {milliseconds(y / 1000)}", (x, at), xytext=(7, 0),
            textcoords="offset points", va="center", fontsize=8, color=colour,
        )  # fmt: skip
        floor = at


def milliseconds(seconds: float) -> str:
    """Three digits that count."""
    value = 1000 * seconds
    if value >= 100:
        return f"{value:,.0f} ms"
    return f"{value:.3g} ms"
