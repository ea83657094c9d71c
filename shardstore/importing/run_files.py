"""The shards of a run directory, or of one of its checkpoints: which files, which names.

Contract: `shards/params/<shard>` and `shards/optim/<shard>`, each .pt or .safetensors, one file a
shard; links stay inside the directory. Tensors get the names that a trainer on this store has: the
earlier system named them after the modules they stood in. What is not a shard's file is named and
left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardstore.errors import ForeignFileError
from shardstore.importing import moments
from shardstore.importing.contents import Contents, ForeignTensor
from shardstore.importing.files import check_within
from shardstore.importing.plan import PlannedPart, checked
from shardstore.importing.readers import read_contents

PARAMS = "params"
OPTIM = "optim"
_ENDINGS = (".pt", ".safetensors")
_BLOCK = re.compile(r"block_\d+\Z")
_MODULES = ("state_dict", "tensors", "model", "module", "params", "self_attn", "mlp")
_SYNONYMS = {
    "input_layernorm.weight": "input_norm.weight",
    "attn_norm.weight": "input_norm.weight",
    "post_attention_layernorm.weight": "post_norm.weight",
    "post_attention_norm.weight": "post_norm.weight",
    "post_attn_norm.weight": "post_norm.weight",
    "mlp_norm.weight": "post_norm.weight",
    "gate_up_proj.weight": "gate_up.weight",
    "down_proj.weight": "down.weight",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShards:
    """All shards of one step, looked at."""

    parts: tuple[PlannedPart, ...]
    steps: Mapping[str, int | None]
    """Applied updates by shard, None where it has no optimizer state."""
    warnings: tuple[str, ...]


def read_shards(directory: str, root: str, expected: tuple[str, ...]) -> RunShards:
    """The shards below `directory`, which lies in the run directory `root`. `expected` are those
    that there have to be, as far as anybody says."""
    params, left = _files(f"{directory}/shards/{PARAMS}", root)
    optim, also_left = _files(f"{directory}/shards/{OPTIM}", root)
    for wanted in expected:
        if wanted not in params:
            raise ForeignFileError(
                f"shard {wanted!r} is missing", file=f"{directory}/shards/{PARAMS}",
                expected=f"{wanted}.pt or {wanted}.safetensors", found="neither",
            )  # fmt: skip
    stray = sorted(optim.keys() - params.keys())
    if stray:
        raise ForeignFileError(f"optimizer state without parameters of {stray[0]!r}",
                               file=optim[stray[0]])  # fmt: skip
    warnings = [f"{path} is no shard's file: left alone" for path in (*left, *also_left)]
    parts: list[PlannedPart] = []
    steps: dict[str, int | None] = {}
    for shard, path in sorted(params.items()):
        contents = read_contents(path, within=root)
        warnings += contents.warnings
        tensors, names = _renamed(shard, contents)
        parts.append(_part(shard, PARAMS, tensors, contents))
        if shard not in optim:
            steps[shard] = None
            parts.append(_part(shard, OPTIM, moments.initial(tensors), contents))
            continue
        state = read_contents(optim[shard], within=root)
        try:
            moved, steps[shard], told = moments.translate(state, tensors, names)
        finally:
            state.file.close()
        warnings += [*state.warnings, *told]
        parts.append(_part(shard, OPTIM, moved, state))
    return RunShards(parts=checked(parts), steps=steps, warnings=tuple(warnings))


def _part(
    shard: str, part: str, tensors: tuple[ForeignTensor, ...], contents: Contents
) -> PlannedPart:
    return PlannedPart(shard=shard, part=part, tensors=tensors, files=(contents.file,))


def expected_shards(config: Mapping[str, Any] | None, metadata: Any) -> tuple[str, ...]:
    """The shards that metadata.json lists, else those of a model of so many layers."""
    listed = metadata.get("shards") if isinstance(metadata, dict) else None
    if isinstance(listed, list | dict):
        names = [item.get("name") if isinstance(item, dict) else item for item in listed]
        told = tuple(name for name in names if isinstance(name, str))
        if names and len(told) == len(names):
            return told
    layers = config.get("num_layers") if config is not None else None
    if type(layers) is not int or not 0 <= layers <= 100_000:
        return ()
    blocks = (f"block_{number:03d}" for number in range(layers))
    return ("embeddings", *blocks, "final_norm", "lm_head")


def _files(directory: str, root: str) -> tuple[dict[str, str], list[str]]:
    """Shard -> file, and what is none."""
    if not os.path.isdir(directory):
        return {}, []
    check_within(directory, root)
    found: dict[str, str] = {}
    left = []
    for name in sorted(os.listdir(directory)):
        stem, ending = os.path.splitext(name)
        path = f"{directory}/{name}"
        if ending not in _ENDINGS or stem.startswith("."):
            left.append(path)
        elif stem in found:
            raise ForeignFileError(
                f"shard {stem!r} has two files", file=path, expected="one",
                found=found[stem], advice="move the one aside that is out of date",
            )  # fmt: skip
        else:
            found[stem] = path
    return found, left


def _renamed(shard: str, contents: Contents) -> tuple[tuple[ForeignTensor, ...], dict[str, str]]:
    """The parameters under their names here, and file's name -> name."""
    names = {tensor.name: _name(shard, tensor.name) for tensor in contents.tensors}
    if not names:
        raise contents.file.wrong("it holds no tensors")
    if len(names) == 1 and not _BLOCK.match(shard):
        names = {old: "weight" if new.endswith("weight") else new for old, new in names.items()}
    if len(set(names.values())) < len(names):
        names = {old: old for old in names}  # a model of another make: as it is
    return tuple(tensor.renamed(names[tensor.name]) for tensor in contents.tensors), names


def _name(shard: str, name: str) -> str:
    words = name.split(".")
    while len(words) > 1 and words[0] in (*_MODULES, shard):
        words = words[1:]
    short = ".".join(words)
    return _SYNONYMS.get(short, short)
