"""What is to be imported, told by what it is: a run directory, flat checkpoints, or plain files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from shardstore.errors import UsageError
from shardstore.flat_layout import parse_layout
from shardstore.format.names import STORE_FILE
from shardstore.importing.files import ForeignFile, is_run_directory
from shardstore.importing.flat_file import fits, is_named, plan_flat
from shardstore.importing.plain_files import plan_files
from shardstore.importing.plan import Plan, check_beside
from shardstore.importing.pt_file import is_pt
from shardstore.importing.safetensors_file import is_safetensors
from shardstore.importing.small_files import read_small


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options of an import; those that its kind cannot honour are refused."""

    layout: str | None = None
    shards: tuple[str, ...] = ()
    part: str | None = None
    step: int | None = None
    checkpoints: bool = True


def make_plan(paths: Sequence[str], wishes: Wishes) -> Plan:
    """Look at everything that is to be imported. Changes nothing anywhere."""
    if not paths:
        raise UsageError("name what is to be imported: a run directory, or files")
    plan = _plan_of(paths, wishes)
    check_beside(plan, paths[0])
    return plan


def _plan_of(paths: Sequence[str], wishes: Wishes) -> Plan:
    if any(os.path.isdir(path) for path in paths):
        _refuse("a run directory", layout=wishes.layout, shard=wishes.shards, part=wishes.part,
                step=wishes.step)  # fmt: skip
        from shardstore.importing.run_directory import plan_run

        return plan_run(_one_directory(paths), checkpoints=wishes.checkpoints)
    _refuse("files", no_checkpoints=not wishes.checkpoints)
    flat = [path for path in paths if _is_flat(path)]
    if wishes.layout is None and not flat:
        return plan_files(paths, shards=wishes.shards, part=wishes.part, step=wishes.step)
    if flat and len(flat) != len(paths):
        other = next(path for path in paths if path not in flat)
        raise UsageError(f"{flat[0]} is a flat checkpoint and {other} is none: import them apart")
    _refuse("a flat checkpoint", shard=wishes.shards, part=wishes.part, step=wishes.step)
    layout = None
    if wishes.layout is not None:
        layout = parse_layout(read_small(wishes.layout), wishes.layout)
    return plan_flat(paths, layout, wishes.layout)


def _one_directory(paths: Sequence[str]) -> str:
    if len(paths) > 1:
        raise UsageError("a run directory is imported by itself: name one, or files only")
    if os.path.lexists(f"{paths[0]}/{STORE_FILE}"):
        raise UsageError(f"{paths[0]} is a store already; 'shardstore clone' copies it")
    if not is_run_directory(paths[0]):
        raise UsageError(
            f"{paths[0]} is no run directory: it has no shards/params; to import files, name them"
        )
    return paths[0]


def _is_flat(path: str) -> bool:
    file = ForeignFile(path)
    try:
        head = file.head()
        known = is_pt(head) or is_safetensors(head)
        return fits(file, head) or (not known and is_named(path))
    finally:
        file.close()


def _refuse(what: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None and value is not False and value != ():
            raise UsageError(f"--{name.replace('_', '-')} does not go with {what}")
