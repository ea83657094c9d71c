"""The forward pass as plain functions over dictionaries of one shard's tensors.

No module is ever built: a shard's parameters are passed in as loaded. Shapes in names: B rows,
T positions, H hidden size, N heads, D head dimension, V vocabulary. Everything is computed in
the dtype of the parameters, norms in fp32. The arithmetic is that of the Llama family:
pre-norm, RMSNorm, half-split rotary positions, causal attention, SwiGLU.

Neighbours: `architecture` knows names and shapes, `stream.compute` decides when each function
runs.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.architecture import ModelConfig

Params = Mapping[str, Tensor]
Rope = tuple[Tensor, Tensor]


def rope_tables(config: ModelConfig, length: int, device: torch.device | str = "cpu") -> Rope:
    """Cosines and sines [length, D] in fp32; made once, sliced for shorter sequences."""
    exponents_D2 = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies_D2 = 1.0 / (config.rope_theta**exponents_D2)
    positions_T = torch.arange(length, dtype=torch.float32)
    angles_TD2 = torch.outer(positions_T, frequencies_D2)
    angles_TD = torch.cat((angles_TD2, angles_TD2), dim=-1)
    return angles_TD.cos().to(device), angles_TD.sin().to(device)


def embed(params: Params, ids_BT: Tensor) -> Tensor:
    return F.embedding(ids_BT, params["weight"])


def block(params: Params, x_BTH: Tensor, rope: Rope, config: ModelConfig) -> Tensor:
    """Attention, then feed-forward, each on a normed copy and added to the stream."""
    normed = rms_norm(x_BTH, params["input_norm.weight"], config.rms_norm_eps)
    x_BTH = x_BTH + attention(params, normed, rope, config.num_heads)
    normed = rms_norm(x_BTH, params["post_norm.weight"], config.rms_norm_eps)
    gate, up = F.linear(normed, params["gate_up.weight"]).chunk(2, dim=-1)
    return x_BTH + F.linear(F.silu(gate) * up, params["down.weight"])


def final_norm(params: Params, x_BTH: Tensor, config: ModelConfig) -> Tensor:
    return rms_norm(x_BTH, params["weight"], config.rms_norm_eps)


def logits(params: Params, x_BTH: Tensor) -> Tensor:
    """Scores of every token of the vocabulary; training never asks for all of them at once."""
    return F.linear(x_BTH, params["weight"])


def head_loss(params: Params, x_BTH: Tensor, labels_BT: Tensor, chunk_tokens: int = 0) -> Tensor:
    """Sum of the token losses, `chunk_tokens` logits at a time (0: all). No graph is kept."""
    with torch.no_grad():
        chunks = head_chunks(x_BTH, labels_BT, chunk_tokens)
        sums = [token_loss_sum(params, x_CH, labels_C) for x_CH, labels_C in chunks]
    return torch.stack(sums).sum()


def token_loss_sum(params: Params, x_CH: Tensor, labels_C: Tensor) -> Tensor:
    """Sum of the cross-entropies of one chunk, in fp32."""
    return F.cross_entropy(logits(params, x_CH).float(), labels_C, reduction="sum")


def head_chunks(
    x_BTH: Tensor, labels_BT: Tensor, chunk_tokens: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions of all rows in order, cut into pieces of `chunk_tokens` (0: one piece)."""
    x_XH, labels_X = x_BTH.reshape(-1, x_BTH.shape[-1]), labels_BT.reshape(-1)
    size = chunk_tokens or labels_X.numel()
    for first in range(0, labels_X.numel(), size):
        yield x_XH[first : first + size], labels_X[first : first + size]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x32 = x.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (x32 * scale).to(x.dtype)


def attention(params: Params, x_BTH: Tensor, rope: Rope, heads: int) -> Tensor:
    q, k, v = (_heads(F.linear(x_BTH, params[f"{name}_proj.weight"]), heads) for name in "qkv")
    q, k = _rotate(q, rope), _rotate(k, rope)
    out_BNTD = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out_BTH = out_BNTD.transpose(1, 2).reshape(x_BTH.shape)
    return F.linear(out_BTH, params["o_proj.weight"])


def _heads(x_BTH: Tensor, heads: int) -> Tensor:
    rows, length, hidden = x_BTH.shape
    return x_BTH.view(rows, length, heads, hidden // heads).transpose(1, 2)


def _rotate(x_BNTD: Tensor, rope: Rope) -> Tensor:
    length = x_BNTD.shape[-2]
    cos_TD, sin_TD = (table[:length].to(x_BNTD.dtype) for table in rope)
    first, second = x_BNTD.chunk(2, dim=-1)
    return x_BNTD * cos_TD + torch.cat((-second, first), dim=-1) * sin_TD
