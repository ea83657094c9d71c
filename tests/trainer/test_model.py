"""Goal: the functions over shards are the Llama architecture, and the head never needs all logits.

Method: the same weights in `transformers` (names mapped, gate_up split), and a dispatch mode
that sees the size of every tensor the head makes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.trainer.cases import TINY, batches_of, pairs, reference_of
from tests.trainer.memory_source import MemorySource
from trainer import model
from trainer.architecture import PARAMS, ModelConfig
from trainer.metrics import Timings
from trainer.stream.compute import ShardMath, as_leaves
from trainer.stream.executor import Evaluation, StreamingExecutor


def llama_names(config: ModelConfig, source: MemorySource) -> dict[str, Tensor]:
    own = {shard: source.parts[shard, PARAMS] for shard in config.shard_names()}
    names = {
        "model.embed_tokens.weight": own["embeddings"]["weight"],
        "model.norm.weight": own["final_norm"]["weight"],
        "lm_head.weight": own["lm_head"]["weight"],
    }
    for index in range(config.num_layers):
        tensors, layer = own[f"block_{index:03d}"], f"model.layers.{index}"
        gate, up = tensors["gate_up.weight"].chunk(2)
        for projection in "qkvo":
            name = f"{projection}_proj.weight"
            names[f"{layer}.self_attn.{name}"] = tensors[name]
        names |= {
            f"{layer}.input_layernorm.weight": tensors["input_norm.weight"],
            f"{layer}.post_attention_layernorm.weight": tensors["post_norm.weight"],
            f"{layer}.mlp.gate_proj.weight": gate,
            f"{layer}.mlp.up_proj.weight": up,
            f"{layer}.mlp.down_proj.weight": tensors["down.weight"],
        }
    return names


def all_logits(config: ModelConfig, source: MemorySource, ids: Tensor) -> Tensor:
    math_of = ShardMath(config, chunk_tokens=0, device=torch.device("cpu"))
    x = ids
    for shard in config.shard_names()[:-1]:
        x = math_of.forward(shard, source.parts[shard, PARAMS], x)
    return model.logits(source.parts["lm_head", PARAMS], x)


def spread(source: MemorySource) -> None:
    """Make weights large and norms uneven, so that every part of the model shows in the logits."""
    generator = torch.Generator().manual_seed(9)
    for (_, part), tensors in source.parts.items():
        for tensor in tensors.values() if part == PARAMS else ():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.add_(noise, alpha=0.3 if tensor.dim() == 1 else 0.1)


@pytest.mark.req("T2")
def test_logits_equal_transformers_llama() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=TINY.vocab_size,
            hidden_size=TINY.hidden_size,
            num_hidden_layers=TINY.num_layers,
            num_attention_heads=TINY.num_heads,
            num_key_value_heads=TINY.num_heads,
            intermediate_size=TINY.intermediate_size,
            max_position_embeddings=TINY.max_position_embeddings,
            rms_norm_eps=TINY.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": TINY.rope_theta},
            tie_word_embeddings=False,
        )
    )
    source = MemorySource.initial(TINY, seed=1)
    spread(source)
    llama.load_state_dict(llama_names(TINY, source))
    ids = batches_of(TINY, count=1, rows=3, length=60, seed=2)[0].inputs
    with torch.no_grad():
        expected = llama(ids).logits
    assert expected.std() > 0.3
    torch.testing.assert_close(all_logits(TINY, source, ids), expected, rtol=0, atol=1e-5)


@pytest.mark.req("T2")
def test_positions_do_not_see_what_follows() -> None:
    source = MemorySource.initial(TINY, seed=1)
    ids = batches_of(TINY, count=1, rows=1, length=20, seed=2)[0].inputs
    changed = ids.clone()
    changed[0, 12:] = (ids[0, 12:] + 1) % TINY.vocab_size
    first, second = all_logits(TINY, source, ids), all_logits(TINY, source, changed)
    torch.testing.assert_close(first[:, :12], second[:, :12])
    assert not torch.allclose(first[:, 12:], second[:, 12:])


class LargestTensor(TorchDispatchMode):
    """Sees every operation, those of autograd included, and keeps the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return result


HEAD = ModelConfig(
    vocab_size=1000,
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    intermediate_size=8,
    max_position_embeddings=512,
)


def head_step(chunk: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Loss, gradient of the hidden states, gradient of the weight, largest tensor."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(2, 256, HEAD.hidden_size, generator=generator)
    labels = torch.randint(HEAD.vocab_size, (2, 256), generator=generator)
    weight = torch.randn(HEAD.vocab_size, HEAD.hidden_size, generator=generator)
    leaves = as_leaves({"weight": weight})
    math_of = ShardMath(HEAD, chunk_tokens=chunk, device=torch.device("cpu"))
    with LargestTensor() as largest:
        loss, gradient = math_of.head_backward(leaves, x, labels, 3, Timings())
    assert leaves["weight"].grad is not None
    return loss, gradient, leaves["weight"].grad, largest.numel


@pytest.mark.req("T10")
def test_a_chunk_of_all_tokens_or_more_changes_no_bit() -> None:
    full = head_step(0)
    for chunk in (512, 10_000):
        for expected, found in zip(full[:3], head_step(chunk)[:3], strict=True):
            assert torch.equal(expected, found)


@pytest.mark.req("T10")
@pytest.mark.parametrize("chunk", [1, 100, 256])
def test_smaller_chunks_agree_and_the_largest_tensor_follows_the_chunk(chunk: int) -> None:
    full = head_step(0)
    assert full[3] == 512 * HEAD.vocab_size
    chunked = head_step(chunk)
    for expected, found in zip(full[:3], chunked[:3], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)
    assert chunked[3] == max(chunk * HEAD.vocab_size, HEAD.vocab_size * HEAD.hidden_size)


@pytest.mark.req("T10", "T15")
@pytest.mark.parametrize("chunk", [0, 7])
def test_evaluation_is_the_mean_over_tokens_with_a_ragged_last_batch(chunk: int) -> None:
    source = MemorySource.initial(TINY, seed=1)
    spread(source)
    batches = batches_of(TINY, count=2, rows=3, length=16, seed=1)
    batches += batches_of(TINY, count=1, rows=1, length=16, seed=2)
    executor = StreamingExecutor(TINY, chunk_tokens=chunk)
    found = executor.evaluate(source, batches)
    reference = reference_of(TINY, source)
    losses = []
    for inputs, labels in pairs(batches):
        scores = reference(inputs).log_softmax(-1)
        losses.append(-scores.gather(-1, labels[..., None]).flatten())
    assert (found.batches, found.tokens) == (3, 7 * 16)
    assert found.loss == pytest.approx(torch.cat(losses).mean().item(), rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert source.loads == {(shard, PARAMS): 1 for shard in TINY.shard_names()}
    assert not source.staged
    parts = [executor.evaluate(source, [batch]) for batch in batches]
    assert sum(parts, Evaluation()).loss == pytest.approx(found.loss, rel=1e-6)
