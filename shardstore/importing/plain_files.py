"""Plain .pt and .safetensors files: each becomes one part of one shard.

Contract: names come from the call, else from what `shardstore export` wrote into a safetensors
file, else the shard is called like the file (without its ending) and the part `params`. Numbers and
words that stand beside the tensors of a .pt file go into the commit's metadata.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from shardstore.errors import InvalidNameError, UsageError
from shardstore.format.digests import canonical_json
from shardstore.format.names import check_data_name
from shardstore.importing.contents import Contents
from shardstore.importing.plan import Plan, PlannedPart, PlannedStep, checked
from shardstore.importing.readers import read_contents
from shardstore.plain_names import PART_KEY, SHARD_KEY

_PART = "params"
_VALUES_BYTES_MAX = 64 << 10


def plan_files(
    paths: Sequence[str], *, shards: Sequence[str], part: str | None, step: int | None
) -> Plan:
    """What importing these files would do: one commit with a part for each."""
    if shards and len(shards) != len(paths):
        raise UsageError(
            f"{len(paths)} files and {len(shards)} names: give --shard once for each file, in "
            "their order, or not at all"
        )
    for kind, given in (*(("shard", shard) for shard in shards), ("part", part or _PART)):
        check_data_name(kind, given)
    parts: list[PlannedPart] = []
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for number, path in enumerate(paths):
        contents = read_contents(path)
        if not contents.tensors:
            raise contents.file.wrong("it holds no tensors")
        shard = shards[number] if shards else _shard_of(contents)
        named = part or contents.metadata.get(PART_KEY, _PART)
        parts.append(
            PlannedPart(shard=shard, part=named, tensors=contents.tensors, files=(contents.file,))
        )
        warnings += contents.warnings
        if contents.values:
            values[shard] = _values(contents, warnings)
    ready = PlannedStep(step=step, parts=checked(parts), facts=_facts(values))
    source = os.path.basename(paths[0]) + (f" and {len(paths) - 1} more" if paths[1:] else "")
    return Plan(kind="files", source=source, steps=(ready,), whole=False, warnings=tuple(warnings))


def _shard_of(contents: Contents) -> str:
    stem = os.path.splitext(os.path.basename(contents.file.path))[0]
    if SHARD_KEY in contents.metadata:
        return contents.metadata[SHARD_KEY]
    try:
        return check_data_name("shard", stem)
    except InvalidNameError as error:
        raise InvalidNameError(f"{contents.file.path}: {error}; give --shard") from None


def _values(contents: Contents, warnings: list[str]) -> dict[str, Any]:
    values = dict(contents.values)
    if len(canonical_json(values)) <= _VALUES_BYTES_MAX:
        return values
    warnings.append(
        f"{contents.file.path}: {len(values)} numbers and words beside its tensors are left out, "
        "they are too long for a commit's metadata"
    )
    return {}


def _facts(values: dict[str, Any]) -> dict[str, Any]:
    kept = {shard: found for shard, found in values.items() if found}
    return {"values": kept} if kept else {}
