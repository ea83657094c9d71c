"""Loss curves: in characters for a terminal, and as a picture. `text_plot` is pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

_HEIGHT = 14
_WIDTH = 66


def text_plot(
    train: Mapping[int, float], held_out: Mapping[int, float], lines: Mapping[str, float]
) -> list[str]:
    """Rows of text: '.' the mean training loss of a column's steps, 'o' held out, '-' lines."""
    last = max([*train, *held_out, 1])

    def column(step: int) -> int:
        return (step - 1) * _WIDTH // last

    columns: dict[int, list[float]] = {}
    for step, value in train.items():
        columns.setdefault(column(step), []).append(value)
    means = {at: sum(found) / len(found) for at, found in columns.items()}
    values = [*means.values(), *held_out.values(), *lines.values()]
    low, high = min(values), max(values)

    def row(value: float) -> int:
        return round((high - value) / ((high - low) or 1.0) * (_HEIGHT - 1))

    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for value in lines.values():
        grid[row(value)] = ["-"] * _WIDTH
    for at, value in means.items():
        grid[row(value)][at] = "."
    for step, value in held_out.items():
        grid[row(value)][column(step)] = "o"
    names = _names(lines, row)
    scale = [high - (high - low) * at / (_HEIGHT - 1) for at in range(_HEIGHT)]
    plot = [
        f"{scale[at]:6.2f} |{''.join(cells)}{names.get(at, '')}".rstrip()
        for at, cells in enumerate(grid)
    ]
    left, right = "step 1", f"step {last}"
    return [*plot, f"       +{'-' * _WIDTH}", f"        {left}{right:>{_WIDTH - len(left)}}"]


def _names(lines: Mapping[str, float], row: Callable[[float], int]) -> dict[int, str]:
    names: dict[int, str] = {}
    for name, value in lines.items():
        names[row(value)] = f"{names.get(row(value), '')} {name} {value:.2f}"
    return names


def picture(
    path: Path,
    train: Mapping[int, float],
    held_out: Mapping[int, float],
    lines: Mapping[str, float],
) -> None:
    """Write the curves as a PNG; ImportError where matplotlib (extra `plot`) is not there."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(list(train), list(train.values()), linewidth=0.8, alpha=0.6, label="training")
    axes.plot(list(held_out), list(held_out.values()), marker="o", label="held out")
    for (name, value), style in zip(lines.items(), ("--", ":"), strict=False):
        axes.axhline(value, color="black", linestyle=style, linewidth=1)
        axes.annotate(
            f"{name} {value:.2f}",
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 3),
            textcoords="offset points",
            ha="right",
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per token")
    axes.legend(loc="best")
    figure.savefig(path, dpi=120)
