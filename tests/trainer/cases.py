"""Small models, batches and the reference beside them, shared by the trainer's tests."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.trainer.memory_source import MemorySource
from tests.trainer.reference import Model
from trainer.architecture import PARAMS, ModelConfig
from trainer.stream.batch import MicroBatch

TINY = ModelConfig(
    vocab_size=101,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    intermediate_size=48,
    max_position_embeddings=64,
)


def batches_of(
    config: ModelConfig, *, count: int, rows: int, length: int, seed: int
) -> list[MicroBatch]:
    generator = torch.Generator().manual_seed(seed)
    tokens = [
        torch.randint(config.vocab_size, (rows, length + 1), generator=generator)
        for _ in range(count)
    ]
    return [MicroBatch(each[:, :-1].contiguous(), each[:, 1:].contiguous()) for each in tokens]


def pairs(batches: list[MicroBatch]) -> list[tuple[Tensor, Tensor]]:
    return [(batch.inputs, batch.labels) for batch in batches]


def reference_of(config: ModelConfig, source: MemorySource) -> Model:
    """The resident model with the weights of `source`."""
    model = Model(
        vocab=config.vocab_size,
        hidden=config.hidden_size,
        layers=config.num_layers,
        heads=config.num_heads,
        inner=config.intermediate_size,
        eps=config.rms_norm_eps,
        theta=config.rope_theta,
    )
    model.load_state_dict(
        {
            f"{shard}.{name}": tensor
            for shard in config.shard_names()
            for name, tensor in source.parts[shard, PARAMS].items()
        }
    )
    return model
