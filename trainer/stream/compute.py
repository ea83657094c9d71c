"""The arithmetic of one visit: a shard's forward, its local recomputation, and the chunked head.

Everything happens on the device's tensors as given; gradients end up in `.grad` of the
parameters passed in, summed over micro-batches in their order, which is what a resident
training loop does. The executor moves and counts.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from trainer import model
from trainer.architecture import EMBEDDINGS, FINAL_NORM, ModelConfig
from trainer.metrics import Timings

Params = Mapping[str, Tensor]


class ShardMath:
    """The model's functions by shard name, with the rotary tables made once."""

    def __init__(self, config: ModelConfig, *, chunk_tokens: int, device: torch.device) -> None:
        self._config = config
        self._chunk_tokens = chunk_tokens
        self._rope = model.rope_tables(config, config.max_position_embeddings, device)

    def forward(self, shard: str, params: Params, x: Tensor) -> Tensor:
        """The output of any shard but the head; `x` is token ids for the embeddings."""
        if shard == EMBEDDINGS:
            return model.embed(params, x)
        if shard == FINAL_NORM:
            return model.final_norm(params, x, self._config)
        return model.block(params, x, self._rope, self._config)

    def head_loss_sum(self, params: Params, x: Tensor, labels: Tensor) -> Tensor:
        return model.head_loss(params, x, labels, self._chunk_tokens)

    def head_backward(
        self, params: Params, x: Tensor, labels: Tensor, micro_batches: int, timings: Timings
    ) -> tuple[Tensor, Tensor]:
        """Mean loss of the micro-batch, and the gradient of `x` for that loss / `micro_batches`.

        Each chunk is a leaf of its own: its graph, logits included, is gone before the next one is
        computed.
        """
        losses: list[Tensor] = []
        gradients: list[Tensor] = []
        for part, part_labels in model.head_chunks(x, labels, self._chunk_tokens):
            leaf = part.detach().requires_grad_()
            with timings.leaf("forward_kernel"), torch.enable_grad():
                loss = model.token_loss_sum(params, leaf, part_labels) / labels.numel()
                share = loss / micro_batches
            with timings.leaf("backward_kernel"):
                torch.autograd.backward(share)
            losses.append(loss.detach())
            gradients.append(gradient_of(leaf))
        gradient = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
        return torch.stack(losses).sum(), gradient.view(x.shape)


def as_leaves(params: Params) -> dict[str, Tensor]:
    """The same memory as parameters of a graph of their own."""
    return {name: tensor.detach().requires_grad_() for name, tensor in params.items()}


def gradient_of(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None, "a leaf of the graph has no gradient"
    return leaf.grad
