"""`shardstore status`: one screen for whoever was woken up, with the next command to type."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
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
from shardstore.fs.system import local_file_system
from shardstore.status import LastPublication, Place, Space, Status, read_status
from shardstore.who_pins import Pinned

_FINDINGS_SHOWN = 5
_NAMES_SHOWN = 5


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
    """Say how the store at PATH is: healthy or not, its last steps, who writes or pins, what next.

    Changes nothing and waits for nobody. A quick look: the newest segment of the log, and of each
    needed object file, size and header; 'shardstore fsck --deep' reads every byte. Pins are told by
    the commits and snapshots that readers hold; the system does not say which process a pin is of.
    """
    with reading(path) as root:
        found = read_status(local_file_system(), root)
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
        "published": found.published and dataclasses.asdict(found.published),
        "pinned": found.pinned and dataclasses.asdict(found.pinned),
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
        if found.published is not None:
            rows.append(("published", _published(found.published)))
        rows.append(("unfinished", _unfinished(found)))
        names = ", ".join(found.snapshots[-5:])
        more = f" ({names})" if names else ""
        rows.append(
            ("kept", f"{found.kept_commits} commits, {len(found.snapshots)} snapshots{more}")
        )
        rows += [("" if number else "pinned", line) for number, line in enumerate(_pinned(found))]
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


def _published(told: LastPublication) -> str:
    what = "no commit" if told.step is None else f"step {told.step}"
    age = age_text(told.age_seconds)
    if told.tier == "active":
        return f"{what}, to the durable store {age} ago"
    return f"{what}, of the active store as it was {age} ago"


def _pinned(found: Status) -> list[str]:
    pinned = found.pinned
    if pinned is None:
        return ["unknown: the file PINS cannot be read"]
    if not pinned.slots:
        return ["nothing: no reader holds a commit"]
    lines = [f"{len(pinned.slots)} objects, {size_text(pinned.bytes)}, by readers{_of(pinned)}"]
    if pinned.held_back:
        steps = _numbers("step", pinned.held_back_steps)
        lines.append(
            f"{len(pinned.held_back)} of them, {size_text(pinned.held_back_bytes)}"
            f"{', written by ' + steps if steps else ''}: only pins keep these from gc"
        )
    return lines


def _of(pinned: Pinned) -> str:
    """The commits and snapshots that are held."""
    held = [_numbers("step", [commit.step for commit in pinned.commits])]
    if pinned.snapshots:
        held.append(f"snapshots {_some(pinned.snapshots)}")
    words = [word for word in held if word]
    return f" of {'; '.join(words)}" if words else ""


def _numbers(word: str, numbers: Sequence[int]) -> str:
    return f"{word} {_some([str(number) for number in numbers])}" if numbers else ""


def _some(words: Sequence[str]) -> str:
    """The last ones: they may be many."""
    more = len(words) - _NAMES_SHOWN
    text = ", ".join(words[-_NAMES_SHOWN:])
    return f"{text} and {more} more" if more > 0 else text


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
