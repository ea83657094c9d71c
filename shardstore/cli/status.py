"""`shardstore status`: one screen for whoever was woken up, with the next command to type."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from shardstore.cli.common import (
    EXIT_DAMAGE,
    EXIT_OK,
    command,
    json_option,
    path_argument,
    reading,
    terabytes_option,
    years_option,
)
from shardstore.cli.output import age_text, echo_json, facts, shown, size_text, wear_rows
from shardstore.fs.posix import PosixFileSystem
from shardstore.status import Place, Space, Status, read_status

_FINDINGS_SHOWN = 5


@command(
    "status",
    example="shardstore status run\nshardstore status run --rated-tbw 600 --json",
    codes="Exit codes: 0 healthy (unfinished work is a note), 4 damaged, 8 could not run, "
    "16 wrong usage.",
)
@path_argument
@terabytes_option
@years_option
@json_option
def status(path: str, rated_bytes: float | None, years: float | None, as_json: bool) -> int:
    """Say how the store at PATH is: healthy or not, its last steps, who writes, what to do next.

    Changes nothing and waits for nobody. A quick look: the newest segment of the log, and of each
    needed object file, size and header; 'shardstore fsck --deep' reads every byte.
    """
    with reading(path) as root:
        found = read_status(PosixFileSystem(), root)
    if as_json:
        echo_json(_json(found, rated_bytes, years))
    else:
        _show(found, rated_bytes, years)
    return EXIT_OK if found.healthy else EXIT_DAMAGE


def _json(found: Status, rated_bytes: float | None, years: float | None) -> dict[str, Any]:
    next_command, why = found.next_command()
    return {
        "path": found.path,
        "uuid": found.uuid,
        "healthy": found.healthy,
        "findings": [finding.to_json() for finding in found.findings],
        "branch": found.branch,
        "acknowledged": found.acknowledged and dataclasses.asdict(found.acknowledged),
        "durable": found.durable and dataclasses.asdict(found.durable),
        "in_memory": found.in_memory,
        "writer": found.writer,
        "unfinished": found.unfinished,
        "plan": found.plan and dataclasses.asdict(found.plan),
        "snapshots": list(found.snapshots),
        "kept_commits": found.kept_commits,
        "space": found.space
        and {**dataclasses.asdict(found.space), "commits_left": found.space.commits_left},
        "wear": found.wear and found.wear.to_json(rated_bytes, years),
        "next": {"command": next_command, "why": why},
    }


def _show(found: Status, rated_bytes: float | None, years: float | None) -> None:
    rows: list[tuple[str, Any]] = [("store", found.path), ("health", _health(found))]
    for finding in found.findings[:_FINDINGS_SHOWN]:
        rows.append(("", finding.line()))
    if len(found.findings) > _FINDINGS_SHOWN:
        rows.append(("", f"and {len(found.findings) - _FINDINGS_SHOWN} more"))
    rows.append(("writer", _writer(found)))
    if found.plan is not None:
        rows.append(("acknowledged", _place(found.acknowledged)))
        durable = _place(found.durable)
        if found.in_memory:
            durable = "nothing: the store lives in memory, where syncs prove nothing"
        rows.append(("durable", durable))
        rows.append(("unfinished", _unfinished(found)))
        names = ", ".join(found.snapshots[-5:])
        more = f" ({names})" if names else ""
        rows.append(
            ("kept", f"{found.kept_commits} commits, {len(found.snapshots)} snapshots{more}")
        )
    if found.space is not None:
        rows.append(("space", _space(found.space)))
    if found.wear is not None:
        rows += wear_rows(found.wear, rated_bytes, years)
    next_command, why = found.next_command()
    facts(rows)
    click.echo(f"\nnext: {shown(next_command)}\n      {why}")


def _health(found: Status) -> str:
    if not found.healthy:
        return f"DAMAGED, {len(found.findings)} findings"
    return "healthy, but a crash left work" if found.unfinished else "healthy"


def _writer(found: Status) -> str:
    if found.writer is None:
        return "none: nobody has the store open for writing"
    known = found.writer
    if known["pid"] is None:
        return "alive, but it did not say who it is"
    return f"alive: process {known['pid']} on {known['host']} since {known['since']}"


def _place(place: Place | None) -> str:
    if place is None:
        return "no commit yet"
    return f"step {place.step} (seq {place.seq}), made {age_text(place.age_seconds)} ago"


def _unfinished(found: Status) -> str:
    if not found.unfinished or found.plan is None:
        return "none"
    return "; ".join(found.plan.lines()[1:])


def _space(space: Space) -> str:
    text = f"{size_text(space.free_bytes)} free, a commit replaces {size_text(space.commit_bytes)}"
    if space.growth_bytes:
        text += f", {size_text(space.growth_bytes)} of it not in place of older files"
    elif space.commit_bytes:
        text += " in place of older files"
    left = space.commits_left
    return text if left is None else f"{text}; room for {left:,} commits"
