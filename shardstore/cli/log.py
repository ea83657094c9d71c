"""`shardstore log`: the history of commits and, on request, of every record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from shardstore.cli.common import command, json_option, path_argument, reading
from shardstore.cli.output import echo_json, json_line, shown, time_text
from shardstore.errors import UsageError
from shardstore.format.policy import Retention
from shardstore.fs.system import local_file_system
from shardstore.history import (
    BRANCHED,
    EFFECTIVE,
    REPEATED,
    REWOUND,
    Entry,
    read_history,
    read_step,
)

_SHOWN_BY_DEFAULT = 20
_METRICS_SHOWN = 6
_MARKS = {EFFECTIVE: "*", REPEATED: "=", REWOUND: "-", BRANCHED: "/"}


@command(
    "log",
    example="shardstore log run -n 5\nshardstore log run --json\n"
    "shardstore log run --step 1200\nshardstore log run --jsonl history.jsonl",
)
@path_argument
@click.option("-n", "count", type=click.IntRange(min=1), help="Only the newest COUNT.")
@click.option("--all", "everything", is_flag=True, help="Records of every kind, without limit.")
@click.option("--step", type=click.IntRange(min=0), help="Only the commits of this step.")
@json_option
@click.option(
    "--jsonl",
    "export",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write JSON lines, oldest first, to a file (- for standard output).",
)
def log(
    path: str,
    count: int | None,
    everything: bool,
    step: int | None,
    as_json: bool,
    export: str | None,
) -> None:
    """Show the history of the store at PATH, newest first, with each commit's metrics.

    Marks: * the effective commit of its step on the current line, = one that a newer commit of
    the same step on that line repeats, / one of another branch, - one that a rewind left behind.
    People get the newest 20 commits unless -n or --all says otherwise; --json and --jsonl give all
    of them. In JSON, NaN and infinities are the strings "NaN", "Infinity" and "-Infinity".
    """
    if step is not None and (everything or export or count):
        raise UsageError("--step goes with --json only; leave out -n, --all and --jsonl")
    limit = count
    if limit is None and not (everything or as_json or export):
        limit = _SHOWN_BY_DEFAULT + 1
    with reading(path) as root:
        if step is not None:
            entries = iter(read_step(local_file_system(), root, step))
        else:
            entries = read_history(
                local_file_system(),
                root,
                commits_only=not everything,
                limit=limit,
                oldest_first=export is not None,
            )
        if export:
            _export(entries, export, path, as_json=as_json)
        elif as_json:
            echo_json([entry.to_json() for entry in entries])
        else:
            _show(entries, _SHOWN_BY_DEFAULT if count is None and not everything else None)


def _show(entries: Iterator[Entry], limit: int | None) -> None:
    for number, entry in enumerate(entries):
        if number == limit:
            click.echo("older ones follow: -n COUNT or --all shows them")
            return
        click.echo(_line(entry))


def _line(entry: Entry) -> str:
    mark = _MARKS[entry.status] if entry.status else " "
    when, body = time_text(entry.time), entry.body
    if entry.type == "commit":
        head = f"{mark} seq {entry.seq:<6} step {entry.step:<8} {when}"
        return f"{head}  {_metrics(body['metadata'])}".rstrip()
    words = {
        "open": lambda: f"opened ({body['reason']}) by process {body['pid']} on {body['host']}",
        "snapshot": lambda: f"snapshot {body['name']} of step {entry.step} (seq {body['target']})",
        "archive": lambda: f"archived snapshot {body['name']}",
        "branch": lambda: (
            f"branch {body['name']} at step {entry.step} (seq {body['commit']['seq']})"
        ),
        "switch": lambda: f"switched to {body['name']}",
        "delete": lambda: f"deleted {'snapshot' if body['slots'] else 'branch'} {body['name']}",
        "rewind": lambda: (
            f"rewound {body['branch']} to step {entry.step} (seq {body['commit']['seq']})"
        ),
        "undo": lambda: f"undid record {body['entry']}",
        "retention": lambda: f"retention: {Retention.from_json(body['retention'])}",
        "unkeep": lambda: f"gave up {len(body['unkeep'])} commits",
    }
    text = words[entry.type]() if entry.type in words else entry.type
    return shown(f"{mark} seq {entry.seq:<6} {text}, {when}")


def _metrics(metadata: dict[str, Any]) -> str:
    """The first few plain numbers and words of a commit's metadata, of its `metrics` if it has."""
    inner = metadata.get("metrics")
    metadata = inner if isinstance(inner, dict) else metadata
    plain = [
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in metadata.items()
        if isinstance(value, int | float | str) and len(str(value)) <= 40
    ]
    left = len(metadata) - len(plain[:_METRICS_SHOWN])
    more = [f"and {left} more"] if left else []
    return shown(" ".join([*plain[:_METRICS_SHOWN], *more]))


def _export(entries: Iterator[Entry], target: str, path: str, *, as_json: bool) -> None:
    count = 0
    with click.open_file(target, "w", encoding="ascii") as file:
        for entry in entries:
            file.write(json_line(entry.to_json()) + "\n")
            count += 1
    if target == "-":
        return
    if as_json:
        echo_json({"path": path, "file": target, "records": count})
    else:
        click.echo(f"wrote {count} records to {shown(target)}")
