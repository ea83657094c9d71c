"""A shard source without a store: everything in dictionaries, with the store's manners.

A checkout is a copy, staged parts are seen at once, and a dead checkout's memory is
overwritten, so that a tensor kept too long shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from trainer.architecture import OPTIM, PARAMS, ModelConfig
from trainer.init import init_shard
from trainer.optim import initial_state
from trainer.stream.source import Checkout

Part = tuple[str, str]


@dataclasses.dataclass
class MemoryCheckout:
    shard: str
    part: str
    tensors: dict[str, Tensor]


class Loan:
    """Read-only tensors while the context is open; garbage collection does not close it."""

    def __init__(self, source: MemorySource, key: Part) -> None:
        self._source, self._key = source, key

    def __enter__(self) -> dict[str, Tensor]:
        self._lent = self._source.read(*self._key)
        self._before = _copies(self._lent)
        self._source.loaded_now.add(self._key)
        return self._lent

    def __exit__(self, *error: object) -> None:
        self._source.loaded_now.remove(self._key)
        for name, tensor in self._lent.items():
            assert torch.equal(tensor, self._before[name]), f"{self._key}: {name} was changed"
        _overwrite(self._lent)


class MemorySource:
    def __init__(self, parts: Mapping[Part, Mapping[str, Tensor]]) -> None:
        self.parts = {key: _copies(tensors) for key, tensors in parts.items()}
        self.loads: dict[Part, int] = {}
        self.staged: list[Part] = []
        self.loaded_now: set[Part] = set()

    @classmethod
    def initial(cls, config: ModelConfig, seed: int) -> MemorySource:
        parts: dict[Part, Mapping[str, Tensor]] = {}
        for shard in config.shard_names():
            parts[shard, PARAMS] = init_shard(config, shard, seed)
            parts[shard, OPTIM] = initial_state(config, shard)
        return cls(parts)

    def load(self, shard: str, part: str) -> Loan:
        return Loan(self, (shard, part))

    def checkout(self, shard: str, part: str) -> MemoryCheckout:
        return MemoryCheckout(shard, part, self.read(shard, part))

    def stage(self, checkout: Checkout) -> None:
        key = (checkout.shard, checkout.part)
        self.parts[key] = _copies(checkout.tensors)
        self.staged.append(key)
        _overwrite(checkout.tensors)

    def read(self, shard: str, part: str) -> dict[str, Tensor]:
        self.loads[shard, part] = self.loads.get((shard, part), 0) + 1
        return _copies(self.parts[shard, part])


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _overwrite(tensors: Mapping[str, Tensor]) -> None:
    for tensor in tensors.values():
        tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
