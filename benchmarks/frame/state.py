"""The training state that is saved and loaded: weights and AdamW moments, in fp32.

Shards, parts and tensors are those of a trainer's run; each tensor stands alone in memory. The
values are random and mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shardstore.codecs.raw import specs_of
from shardstore.format.layout import plan_layout
from trainer.architecture import OPTIM, PARAMS
from trainer.optim import initial_state
from trainer.presets import PRESETS

Part = tuple[str, str]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ModelState:
    """(shard, part) -> tensors, in the order of the forward pass."""

    parts: dict[Part, Tensors]

    @property
    def bytes(self) -> int:
        """Of the tensors; files hold a little more."""
        return sum(t.nbytes for tensors in self.parts.values() for t in tensors.values())

    @property
    def shards(self) -> list[str]:
        return list(dict.fromkeys(shard for shard, _ in self.parts))

    def object_sizes(self) -> list[int]:
        """Of the store's objects, one a part."""
        return [
            plan_layout(specs_of(tensors, shard=shard, part=part), shard, part).total_bytes
            for (shard, part), tensors in self.parts.items()
        ]

    def of_shard(self, shard: str) -> Tensors:
        """Both parts' tensors, as a file per shard holds them."""
        return {
            f"{part}.{name}": tensor
            for (owner, part), tensors in self.parts.items()
            if owner == shard
            for name, tensor in tensors.items()
        }

    def flat(self) -> Tensors:
        return {
            f"{shard}/{part}/{name}": tensor
            for (shard, part), tensors in self.parts.items()
            for name, tensor in tensors.items()
        }

    def empty_like(self) -> ModelState:
        """The same shapes in touched memory: what a load fills."""
        return ModelState(
            {
                key: {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
                for key, tensors in self.parts.items()
            }
        )

    def change(self) -> None:
        """Every tensor differs afterwards, as after a step: nothing can be saved by not writing."""
        for tensors in self.parts.values():
            touch(list(tensors.values()))


def touch(tensors: Sequence[torch.Tensor]) -> None:
    """Change one element of each."""
    for tensor in tensors:
        tensor.view(-1)[:1] += 1


def make_state(model: str) -> ModelState:
    """Of a preset of the trainer."""
    config = PRESETS[model].model
    generator = torch.Generator().manual_seed(0)
    parts: dict[Part, Tensors] = {}
    for shard in config.shard_names():
        params = {
            name: torch.rand(shape, generator=generator)
            for name, shape in config.shapes(shard).items()
        }
        optim = {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in initial_state(config, shard).items()
        }
        for tensor in optim.values():
            if tensor.is_floating_point():
                tensor.uniform_(generator=generator)
        parts[shard, PARAMS] = params
        parts[shard, OPTIM] = optim
    return ModelState(parts)
