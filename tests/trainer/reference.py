"""A resident model in plain PyTorch, as a textbook would write it: what streaming has to equal bit
for bit.

Imports nothing of the project. Its parameters are named `<shard>.<tensor>`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x.float() * torch.rsqrt(variance + self.eps)).to(x.dtype)


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int, inner: int, eps: float, theta: float) -> None:
        super().__init__()
        self.heads, self.theta = heads, theta
        self.input_norm = RMSNorm(hidden, eps)
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)
        self.post_norm = RMSNorm(hidden, eps)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.input_norm(x))
        gate, up = self.gate_up(self.post_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def attend(self, x: Tensor) -> Tensor:
        rows, length, hidden = x.shape
        size = hidden // self.heads

        def split(y: Tensor) -> Tensor:
            return y.view(rows, length, self.heads, size).transpose(1, 2)

        cos, sin = rotary(length, size, self.theta)
        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, hidden))


class Model(nn.Module):
    def __init__(
        self,
        *,
        vocab: int,
        hidden: int,
        layers: int,
        heads: int,
        inner: int,
        eps: float,
        theta: float,
    ) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(vocab, hidden)
        self.blocks = [Block(hidden, heads, inner, eps, theta) for _ in range(layers)]
        for index, block in enumerate(self.blocks):
            self.add_module(f"block_{index:03d}", block)
        self.final_norm = RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embeddings(ids)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.final_norm(x))


def rotary(length: int, size: int, theta: float) -> tuple[Tensor, Tensor]:
    frequencies = 1.0 / theta ** (torch.arange(0, size, 2).float() / size)
    angles = torch.arange(length).float()[:, None] * frequencies[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def optimizer(model: Model, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=lr,
        betas=(0.9, 0.95),
        eps=1e-8,
        fused=True,
    )


def backward(model: Model, batches: list[tuple[Tensor, Tensor]]) -> float:
    """The usual accumulation loop; leaves the gradients in `.grad` and returns the loss."""
    model.zero_grad()
    total = 0.0
    for inputs, labels in batches:
        scores = model(inputs)
        loss = F.cross_entropy(scores.view(-1, scores.shape[-1]), labels.reshape(-1))
        (loss / len(batches)).backward()
        total += loss.item() / len(batches)
    return total
