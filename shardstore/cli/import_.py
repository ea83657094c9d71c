"""`shardstore import`: files of other systems become commits of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from shardstore.cli.common import command, json_option, path_argument, progress
from shardstore.cli.output import echo_json, shown, size_text
from shardstore.format.names import FORMATS, RAW
from shardstore.importing.carrying import SETTINGS, ImportedStep, carry_out, check_room
from shardstore.importing.plan import Plan
from shardstore.importing.sources import Wishes, make_plan
from shardstore.opening import is_store, unmake_quietly
from shardstore.store import Store

_EXAMPLE = """\
shardstore import run old/run-2.9
shardstore import run step_112700.bin --layout layout.json
shardstore import run embeddings.pt head.safetensors --shard embeddings --shard lm_head
shardstore import run old/run-2.9 --dry-run --json"""
_CODES = (
    "Exit codes: 0 done, 4 a file is damaged, hostile or of another kind, or its step is not "
    "whole, 8 could not run, 16 wrong usage."
)


@command("import", example=_EXAMPLE, codes=_CODES)
@path_argument
@click.argument("source", nargs=-1, required=True, type=click.Path())
@click.option(
    "--layout", type=click.Path(),
    help="Of a flat checkpoint: JSON with shard, name and shape of each tensor, in order. Without "
    "it everything is one shard 'flat'.",
)  # fmt: skip
@click.option(
    "--shard", "shards", multiple=True, metavar="NAME",
    help="Name of a plain file's shard; once for each file.",
)  # fmt: skip
@click.option("--part", metavar="NAME", help="Part that plain files become (by default params).")
@click.option(
    "--step", type=click.IntRange(0, 2**63 - 1),
    help="Step of the commit of plain files (by default the head's, or 0).",
)  # fmt: skip
@click.option("--no-checkpoints", is_flag=True, help="Leave a run directory's checkpoints out.")
@click.option("--replace", is_flag=True, help="Put new objects where the head has some already.")
@click.option(
    "--format", "storage_format", type=click.Choice(FORMATS), default=RAW,
    help="Storage format of the new objects.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Look at everything and write nothing.")
@json_option
def import_(
    path: str,
    source: tuple[str, ...],
    layout: str | None,
    shards: tuple[str, ...],
    part: str | None,
    step: int | None,
    no_checkpoints: bool,
    replace: bool,
    storage_format: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import SOURCE into the store at PATH, which is made if it is not there.

    SOURCE is a run directory of the earlier system (its checkpoints become snapshots), flat
    checkpoints (step_NNNNNN.bin with .loss.json, .samples.json and .state.json), or .pt and
    .safetensors files. What a file is, its content says. Nothing in it is executed; every header is
    checked before the store is opened; each step is one transaction. An import that was cut off
    goes on when it is called again.
    """
    wishes = Wishes(
        layout=layout, shards=shards, part=part, step=step, checkpoints=not no_checkpoints
    )
    plan, is_new = make_plan(source, wishes), not is_store(path)
    if is_new:
        check_room(path, plan)
    if dry_run:
        _show(path, plan, _planned(plan), as_json=as_json, dry_run=True)
        return
    with (
        _opened(path, storage_format, is_new) as store,
        progress("files", plan.bytes) as advance,
    ):
        done = carry_out(store, plan, replace=replace, advance=advance)
        digest = store.state_digest()
    _show(path, plan, done, as_json=as_json, digest=digest)


@contextmanager
def _opened(path: str, storage_format: str, is_new: bool) -> Iterator[Store]:
    """The store; one that this import made does not stay where nothing came into it."""
    was_made = False
    try:
        with Store.open(path, "a", format=storage_format, settings=SETTINGS) as store:
            was_made = is_new
            yield store
    except BaseException:
        if was_made:
            unmake_quietly(path)
        raise


def _planned(plan: Plan) -> list[ImportedStep]:
    return [
        ImportedStep(
            step=step.step,
            seq=None,
            snapshot=step.snapshot,
            parts=len(step.parts),
            tensors=sum(len(part.tensors) for part in step.parts),
            bytes=step.bytes,
        )
        for step in plan.steps
    ]


def _show(
    path: str,
    plan: Plan,
    steps: Sequence[ImportedStep],
    *,
    as_json: bool,
    dry_run: bool = False,
    digest: str | None = None,
) -> None:
    if as_json:
        echo_json(
            {
                "path": path,
                "kind": plan.kind,
                "source": plan.source,
                "dry_run": dry_run,
                "steps": [_json(step) for step in steps],
                "state_digest": digest,
                "warnings": list(plan.warnings),
            }
        )
        return
    for warning in plan.warnings:
        click.echo(f"warning: {shown(warning)}", err=True)
    for step in steps:
        where = "the head's step" if step.step is None else f"step {step.step}"
        named = f", snapshot {shown(step.snapshot)}" if step.snapshot else ""
        click.echo(
            f"{where}: {step.parts} parts, {step.tensors} tensors, {size_text(step.bytes)}{named}"
        )
    end = "nothing was written" if dry_run else f"state digest {digest}"
    click.echo(f"{shown(plan.source)} -> {shown(path)}: {end}")


def _json(step: ImportedStep) -> dict[str, Any]:
    return {
        "step": step.step,
        "seq": step.seq,
        "snapshot": step.snapshot,
        "parts": step.parts,
        "tensors": step.tensors,
        "bytes": step.bytes,
    }
