"""Initial weights, shard by shard: N(0, initializer_range) for matrices, ones for norms.

Every tensor has its own generator, seeded by a hash of (seed, shard, tensor): the bits depend
on nothing else, not on the order of shards nor on which shards are made. At most one shard
exists at a time.
"""

import hashlib

import torch
from torch import Tensor

from trainer.architecture import ModelConfig


def init_shard(config: ModelConfig, shard: str, seed: int) -> dict[str, Tensor]:
    """The fp32 parameters of one shard."""
    return {
        name: _init_tensor(shape, config.initializer_range, tensor_seed(seed, shard, name))
        for name, shape in config.shapes(shard).items()
    }


def tensor_seed(seed: int, shard: str, name: str) -> int:
    """63 bits out of (seed, shard, tensor); NUL cannot stand in a name, so no two keys collide."""
    key = f"{seed}\0{shard}\0{name}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1


def _init_tensor(shape: tuple[int, ...], deviation: float, seed: int) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(shape, dtype=torch.float32).normal_(0.0, deviation, generator=generator)
