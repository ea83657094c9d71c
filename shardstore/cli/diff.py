"""`shardstore diff`: what changed between two commits of a store."""

from __future__ import annotations

import click

from shardstore.cli.common import (
    EXIT_DIFFERENT,
    EXIT_OK,
    command,
    json_option,
    parse_ref,
    path_argument,
)
from shardstore.cli.output import echo_json, shown, size_text
from shardstore.compare import Change, Difference, compare
from shardstore.refs import Ref
from shardstore.store import Store

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


@command(
    "diff",
    example="shardstore diff run step:11 step:12\nshardstore diff run best head --values\n"
    "shardstore diff run best head --exit-code --json",
    codes="Exit codes: 0 done, with --exit-code 1 where they differ, 4 damage, 8 could not run, "
    "16 wrong usage.",
)
@path_argument
@click.argument("ref", type=parse_ref, metavar="REF")
@click.argument("ref2", type=parse_ref, metavar="REF2")
@click.option("--values", is_flag=True, help="Read both sides: greatest absolute difference.")
@click.option("--exit-code", "tell", is_flag=True, help="Exit 1 where the two differ.")
@json_option
def diff(path: str, ref: Ref, ref2: Ref, values: bool, tell: bool, as_json: bool) -> int:
    """Show which tensors commit REF2 of the store at PATH adds, removes or changes against REF.

    Tensors are compared by dtype, shape and digest, which reads headers only. With --values those
    of one dtype and shape are read and compared number by number.
    """
    with Store.open(path) as store:
        found = compare(store, ref, ref2, values=values)
    if as_json:
        echo_json(found.to_json())
    else:
        _show(found)
    return EXIT_DIFFERENT if tell and not found.same else EXIT_OK


def _show(found: Difference) -> None:
    for word, parts in (("added", found.parts_added), ("removed", found.parts_removed)):
        for shard, part in parts:
            click.echo(shown(f"{_SIGNS[word]} {shard} {part}: {word}"))
    for change in found.changes:
        click.echo(shown(_line(change)))
    counts = f"{len(found.changes)} tensors differ, {found.tensors_same} are the same"
    places = [f"step {commit.step} (seq {commit.seq})" for commit in (found.before, found.after)]
    sizes = f"{size_text(found.bytes_different)} different, {size_text(found.bytes_same)} shared"
    click.echo(f"{places[0]} to {places[1]}: {counts}; {sizes}")


def _line(change: Change) -> str:
    line = f"{_SIGNS[change.kind]} {change.shard} {change.part} {change.tensor}: "
    if change.kind != "changed":
        return f"{line}{change.after or change.before}, {size_text(change.bytes)}"
    if not change.comparable:
        return f"{line}{change.before} became {change.after}"
    line += f"{change.after}"
    if change.max_abs is not None:
        line += f", differs by up to {change.max_abs:.6g}"
    if change.not_finite:
        line += f", {change.not_finite} values are not finite on one side only"
    return line
