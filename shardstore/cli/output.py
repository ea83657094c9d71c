"""How commands print: strict JSON, plain tables, names and numbers that a terminal can bear.

Contract: what is printed as JSON is RFC 8259 in ASCII: NaN and infinities, which it has no word
for, become the strings "NaN", "Infinity" and "-Infinity". Names are data: characters that could
move a cursor are escaped wherever a person reads them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from shardstore.wear import Wear

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def strict(value: Any) -> Any:
    """The value with the numbers that JSON lacks as strings, and mappings and sequences plain."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def json_line(value: Any) -> str:
    """One value on one line."""
    return json.dumps(strict(value), allow_nan=False)


def echo_json(value: Any) -> None:
    click.echo(json.dumps(strict(value), allow_nan=False, indent=2))


def shown(name: str) -> str:
    """A name for people: printable characters as they are, all others escaped."""
    return "".join(c if c.isprintable() and c != "\\" else _escaped(c) for c in name)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def size_text(count: int) -> str:
    """Bytes for people."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def rate_text(bytes_per_second: float) -> str:
    """Throughput for people, in the unit of disks."""
    return f"{bytes_per_second / 1e9:.2f} GB/s"


def time_text(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def age_text(seconds: float) -> str:
    """How long ago, in its two largest units."""
    for unit, name, below, smaller in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= unit:
            return f"{int(seconds // unit)} {name} {int(seconds % unit // below)} {smaller}"
    return f"{seconds:.0f} s"


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns as wide as their longest cell; numbers to the right."""
    values = list(rows)
    cells = [[shown(str(cell)) for cell in row] for row in values]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    right = [
        bool(values) and all(isinstance(row[at], int) for row in values)
        for at in range(len(headers))
    ]
    for line in [list(headers), *cells]:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def wear_rows(wear: Wear, rated_bytes: float | None, years: float | None) -> list[tuple[str, str]]:
    """For `facts`."""
    lines = wear.lines(rated_bytes, years)
    return [("" if number else "wear", line) for number, line in enumerate(lines)]


def facts(rows: Iterable[tuple[str, Any]]) -> None:
    """`name  value` lines."""
    values = list(rows)
    width = max(len(name) for name, _ in values)
    for name, value in values:
        click.echo(f"{name.ljust(width)}  {shown(str(value))}")
