"""`shardstore bench`: what a disk can do, what suits it, and what a commit will cost there."""

from __future__ import annotations

import posixpath
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from shardstore.cli.common import (
    FiniteRange,
    command,
    counting,
    json_option,
    path_argument,
    terabytes_option,
    years_option,
)
from shardstore.cli.output import echo_json, facts, rate_text, size_text, table, wear_rows
from shardstore.errors import UsageError
from shardstore.fs.system import local_file_system
from shardstore.probe import DEPTHS, MIB, PIECES, SET_BYTES, DiskProbe, probe, steps
from shardstore.wear import Wear

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?|[KMGT]i)B?\Z")
_ENDING_SIGNALS = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
"""Windows has only the first."""


def parse_size(text: str) -> int:
    """Bytes, or a number with k, M, G, T (of 1000) or Ki, Mi, Gi, Ti (of 1024)."""
    found = _SIZE.match(text)
    size = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if size < 1:
        raise UsageError(f"{text!r} is not a size; expected bytes, or a number as in 1.2G or 512Mi")
    return size


@command(
    "bench",
    example="shardstore bench run\n"
    "shardstore bench run --state-bytes 1.2G --step-seconds 4 --rated-tbw 600 --years 5",
)
@path_argument
@click.option("--state-bytes", "state_bytes", type=parse_size, metavar="SIZE",
              help="Bytes that a commit replaces, for what it will cost.")  # fmt: skip
@click.option("--objects", type=click.IntRange(min=1), default=32, show_default=True,
              help="Shards times parts that they come in.")  # fmt: skip
@click.option("--step-seconds", type=FiniteRange(min=0, min_open=True),
              help="Time from commit to commit, for wear and durability.")  # fmt: skip
@terabytes_option
@years_option
@click.option("--seconds", type=FiniteRange(min=0.1), default=10.0, show_default=True,
              help="About how long to measure.")  # fmt: skip
@click.option("--set-bytes", type=parse_size, default=str(SET_BYTES), metavar="SIZE",
              show_default="128Mi", help="Bytes of each of the two sets of files.")  # fmt: skip
@json_option
def bench(
    path: str,
    state_bytes: int | None,
    objects: int,
    step_seconds: float | None,
    rated_bytes: float | None,
    years: float | None,
    seconds: float,
    set_bytes: int,
    as_json: bool,
) -> None:
    """Measure the disk that directory PATH lies on, and suggest piece size, depth and durability.

    Writes two sets of files into PATH and removes them, also when it is interrupted. A state of
    fp32 weights with AdamW takes 12 bytes a parameter: 100M parameters 1.2G, 374M 4.5G, 1B 12G, 7B
    84G.
    """
    if state_bytes is None and (rated_bytes or step_seconds):
        raise UsageError("--step-seconds and --rated-tbw say nothing without --state-bytes")
    directory = posixpath.normpath(path) if path else "."
    with _ending_cleanly(), counting("measuring", steps()) as advance:
        found = probe(
            local_file_system(),
            directory,
            seconds=seconds,
            set_bytes=-(-set_bytes // MIB) * MIB,
            advance=advance,
        )
    cost = None
    if state_bytes is not None:
        cost = _cost(found, state_bytes, objects, step_seconds, rated_bytes, years)
    if as_json:
        echo_json({"path": directory, **found.to_json(), "commit": cost})
        return
    _show(directory, found)
    if cost is not None and state_bytes is not None:
        _show_cost(cost, _wear(state_bytes, step_seconds), rated_bytes, years)


@contextmanager
def _ending_cleanly() -> Iterator[None]:
    """Signals that would end the process at once interrupt it instead: files are removed."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wear(state_bytes: int, step_seconds: float | None) -> Wear:
    if step_seconds is None:
        return Wear(bytes_per_commit=state_bytes)
    return Wear.of(state_bytes, step_seconds)


def _cost(
    found: DiskProbe,
    state_bytes: int,
    objects: int,
    step_seconds: float | None,
    rated_bytes: float | None,
    years: float | None,
) -> dict[str, Any]:
    """What a commit of the model costs here, as `--json` prints it."""
    choice = found.durability(objects, step_seconds)
    commit_seconds = found.commit_seconds(state_bytes, objects)
    return {
        "state_bytes": state_bytes,
        "objects": objects,
        "step_seconds": step_seconds,
        "seconds": commit_seconds,
        "sync_seconds": found.sync_seconds(objects),
        "load_seconds": state_bytes / found.read_bytes_per_second,
        "share_of_step": commit_seconds / step_seconds if step_seconds else None,
        "durability": choice.level,
        "every": choice.every,
        "wear": _wear(state_bytes, step_seconds).to_json(rated_bytes, years),
    }


def _show(directory: str, found: DiskProbe) -> None:
    rates = {(p.piece_bytes, p.depth): rate_text(p.bytes_per_second) for p in found.writes}
    click.echo(f"writes, {size_text(found.set_bytes)} over existing files, then a sync:")
    table(
        ("pieces", *(f"depth {depth}" for depth in DEPTHS)),
        [(size_text(piece), *(rates[piece, depth] for depth in DEPTHS)) for piece in PIECES],
    )
    best = found.suggested
    direct = "taken" if found.direct else "refused: transfers go through the page cache"
    rows = [
        ("directory", directory),
        ("direct I/O", direct),
        ("reads", rate_text(found.read_bytes_per_second)),
        ("4 KiB append and sync", f"{found.append_seconds * 1e3:.3f} ms, "
         f"p99 {found.append_seconds_p99 * 1e3:.3f} ms"),
        ("copying memory", rate_text(found.copy_bytes_per_second)),
        ("digests", rate_text(found.digest_bytes_per_second)),
        ("suggested", f"piece_bytes={best.piece_bytes} io_threads={best.depth}"),
    ]  # fmt: skip
    if found.in_memory:
        rows.append(("note", "this lies in memory: syncs prove nothing, a power cut takes all"))
    facts(rows)


def _show_cost(
    cost: dict[str, Any], wear: Wear, rated_bytes: float | None, years: float | None
) -> None:
    durable = f"{cost['seconds']:.3f} s, {cost['sync_seconds'] * 1e3:.1f} ms of it syncs"
    if cost["share_of_step"] is not None:
        durable += f": {cost['share_of_step']:.1%} of a step, where nothing overlaps"
    choice = "every commit can be durable"
    if cost["durability"] == "deferred":
        choice = f"deferred, synced every {cost['every']} commits: syncs cost over 5% of a step"
    click.echo()
    facts(
        [
            ("a commit", f"{size_text(cost['state_bytes'])} in {cost['objects']} objects"),
            ("durable in about", durable),
            ("loaded in about", f"{cost['load_seconds']:.3f} s"),
            ("durability", choice),
            *wear_rows(wear, rated_bytes, years),
        ]
    )
