"""Runs that were imported into a store: what the trainer makes of them.

`shardstore import` notes under `imported` in a commit's metadata what it found: the configuration
file as it was, and the counters that the optimizer shards bore out. Contract: pure; a run whose
shards are not those of its configuration is refused, with the first difference by name. The data
cursor starts anew, since the earlier system's does not say which rows it has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainer.architecture import OPTIM, PARAMS, ModelConfig, model_from_dict
from trainer.errors import ResumeError
from trainer.optim import STEP, first_moment, second_moment

KEY = "imported"

Row = tuple[str, str, str, str, tuple[int, ...]]
"""Shard, part, tensor, dtype, shape."""


def model_of(imported: Mapping[str, Any], where: str) -> ModelConfig:
    """The model of an imported run; ResumeError where the import has none."""
    config = imported.get("config")
    if not isinstance(config, dict):
        raise ResumeError(
            f"{where}: what was imported came without a configuration (config.json), so it says "
            "nothing of its model; only runs can be trained on"
        )
    return model_from_dict(config, source=f"{where}: imported config.json")


def counters_of(imported: Mapping[str, Any], model: ModelConfig) -> dict[str, Any]:
    """What a trainer state takes over."""
    state = imported["state"]
    return {
        "step": state["step"],
        "optimizer_step": state["optimizer_step"],
        "tokens_seen": state["tokens_seen"],
        "tokens_applied": state["tokens_seen"],
        "val_loss": state["val_loss"],
        "config_hash": model.digest(),
    }


def check_tensors(model: ModelConfig, rows: Iterable[Row], where: str) -> None:
    """ResumeError unless the commit holds just the tensors that this model is trained with."""
    found = {row[:3]: row[3:] for row in rows}
    wanted = dict(_wanted(model))
    for key in [*wanted, *found]:
        if wanted.get(key) != found.get(key):
            shard, part, tensor = key
            raise ResumeError(
                f"{where}: shard {shard!r} part {part!r} tensor {tensor!r} was imported as "
                f"{_told(found.get(key))}, this model has {_told(wanted.get(key))}; the trainer "
                "cannot go on from it"
            )


def _wanted(model: ModelConfig) -> Iterable[tuple[tuple[str, str, str], tuple[str, Any]]]:
    for shard in model.shard_names():
        for name, shape in model.shapes(shard).items():
            yield (shard, PARAMS, name), ("F32", shape)
            yield (shard, OPTIM, first_moment(name)), ("F32", shape)
            yield (shard, OPTIM, second_moment(name)), ("F32", shape)
        yield (shard, OPTIM, STEP), ("I64", ())


def _told(what: tuple[Any, ...] | None) -> str:
    return "nothing" if what is None else f"{what[0]} {list(what[1])}"
