"""Run directories as the earlier system left them, in both of its storage formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

CONFIG: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 8,
    "num_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
}
SHARDS = ("embeddings", "block_000", "block_001", "final_norm", "lm_head")
NAMES = {
    "input_norm.weight": "input_norm.weight",
    "self_attn.q_proj.weight": "q_proj.weight",
    "self_attn.k_proj.weight": "k_proj.weight",
    "self_attn.v_proj.weight": "v_proj.weight",
    "self_attn.o_proj.weight": "o_proj.weight",
    "post_norm.weight": "post_norm.weight",
    "mlp.gate_up.weight": "gate_up.weight",
    "mlp.down.weight": "down.weight",
}
"""A block's parameters: there -> here."""


def params_of(shard: str, seed: int) -> dict[str, Tensor]:
    """A shard's parameters under their old names."""
    generator = torch.Generator().manual_seed(seed + len(shard) * 1000 + ord(shard[-1]))
    if shard in ("embeddings", "lm_head"):
        return {"weight": torch.randn(16, 8, generator=generator)}
    if shard == "final_norm":
        return {"weight": torch.randn(8, generator=generator)}
    shapes = {"norm": (8,), "proj": (8, 8), "gate_up": (24, 8), "down": (8, 12)}
    return {
        name: torch.randn(
            next(shape for word, shape in shapes.items() if word in name), generator=generator
        )
        for name in NAMES
    }


def adamw_state(params: Mapping[str, Tensor], step: int) -> dict[str, Any]:
    """As torch.optim.AdamW's state_dict has it: parameters by number."""
    state = {
        number: {
            "step": torch.tensor(float(step)),
            "exp_avg": tensor * 0.5,
            "exp_avg_sq": tensor * tensor,
        }
        for number, tensor in enumerate(params.values())
    }
    groups = [{"lr": 1e-3, "betas": (0.9, 0.95), "foreach": None, "params": list(state)}]
    return {"state": state, "param_groups": groups}


def write_shards(
    directory: Path, *, step: int, seed: int = 0, kind: str = "pt", optim: bool = True
) -> None:
    """`shards/` of a run or of a checkpoint, every shard at the same step."""
    for part in ("params", "optim"):
        (directory / "shards" / part).mkdir(parents=True, exist_ok=True)
    for shard in SHARDS:
        params = params_of(shard, seed)
        _write(directory / "shards" / "params" / shard, params, kind)
        if optim:
            write_optim(directory, shard, params, step=step, kind=kind)
    names = {"shards": list(SHARDS), "format": kind}
    (directory / "shards" / "metadata.json").write_text(json.dumps(names))


def write_optim(
    directory: Path, shard: str, params: Mapping[str, Tensor], *, step: int, kind: str = "pt"
) -> None:
    """A shard's optimizer state: torch's own dict, or flat names in a safetensors file."""
    path = directory / "shards" / "optim" / shard
    if kind == "pt":
        torch.save(adamw_state(params, step), path.with_suffix(".pt"))
        return
    flat = {}
    for name, tensor in params.items():
        flat[f"{name}.exp_avg"] = tensor * 0.5
        flat[f"{name}.exp_avg_sq"] = tensor * tensor
        flat[f"{name}.step"] = torch.tensor(float(step))
    _write(path, flat, kind)


def write_state(directory: Path, step: int, **changed: Any) -> None:
    value = {
        "global_step": step,
        "optimizer_step": step,
        "tokens_seen": 512 * step,
        "scheduler": {"name": "cosine"},
        "latest_validation_loss": 4.5,
        "rng_state": list(range(32)),
        "config_hash": "abc",
        **changed,
    }
    value = {key: item for key, item in value.items() if item is not None}
    (directory / "trainer_state.json").write_text(json.dumps(value))


def make_run(
    root: Path, *, step: int = 30, state_step: int | None = None, kind: str = "pt"
) -> Path:
    """A run directory at `step`, whose trainer state says `state_step`."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.json").write_text(json.dumps(CONFIG))
    write_shards(root, step=step, kind=kind)
    write_state(root, step if state_step is None else state_step)
    return root


def _write(path: Path, tensors: dict[str, Tensor], kind: str) -> None:
    if kind == "pt":
        torch.save(tensors, path.with_suffix(".pt"))
    else:
        safetensors.torch.save_file(tensors, path.with_suffix(".safetensors"))
