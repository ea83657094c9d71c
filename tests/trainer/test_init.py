"""Goal: initial weights depend on (seed, shard, tensor) alone, and one shard exists at a time."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.cases import TINY
from trainer.architecture import ModelConfig
from trainer.init import init_shard, tensor_seed
from trainer.presets import PRESETS

FIRST_SEED = 7981715118495229692
FIRST_VALUES = [0.007992925, -0.013868887, -0.009080028]


@pytest.mark.req("T4")
def test_the_same_bits_in_any_order_and_beside_other_use_of_random_numbers() -> None:
    forward = {shard: init_shard(TINY, shard, seed=5) for shard in TINY.shard_names()}
    state = torch.random.get_rng_state()
    for shard in reversed(TINY.shard_names()):
        torch.manual_seed(len(shard))
        for name, tensor in init_shard(TINY, shard, seed=5).items():
            assert torch.equal(tensor, forward[shard][name]), f"{shard} {name}"
    torch.random.set_rng_state(state)
    init_shard(TINY, "lm_head", seed=5)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.req("T4")
def test_seed_shard_and_tensor_each_change_the_bits() -> None:
    first, second = init_shard(TINY, "block_000", 1), init_shard(TINY, "block_001", 1)
    other_seed = init_shard(TINY, "block_000", 2)
    matrices = [name for name, shape in TINY.shapes("block_000").items() if len(shape) == 2]
    for name in matrices:
        assert not torch.equal(first[name], second[name])
        assert not torch.equal(first[name], other_seed[name])
    assert not torch.equal(first["q_proj.weight"], first["k_proj.weight"])
    seeds = {
        tensor_seed(s, shard, n) for s in (0, 1, 11) for shard in ("a", "1a") for n in ("b", "c")
    }
    assert len(seeds) == 12
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.req("T4")
def test_the_bits_of_a_seed_are_those_of_the_first_release() -> None:
    assert tensor_seed(0, "embeddings", "weight") == FIRST_SEED
    weight = init_shard(TINY, "embeddings", 0)["weight"]
    assert weight[0, :3].tolist() == pytest.approx(FIRST_VALUES, rel=1e-5)


@pytest.mark.req("T2", "T4")
def test_matrices_are_normal_with_the_configured_deviation_and_norms_are_one() -> None:
    nano = PRESETS["nano"].model
    for shard in nano.shard_names():
        tensors = init_shard(nano, shard, seed=0)
        assert {name: tuple(t.shape) for name, t in tensors.items()} == nano.shapes(shard)
        for name, tensor in tensors.items():
            assert tensor.dtype == torch.float32
            if name.endswith("norm.weight") or shard == "final_norm":
                assert torch.equal(tensor, torch.ones_like(tensor))
            else:
                assert abs(tensor.mean().item()) < 5e-4
                assert tensor.std().item() == pytest.approx(0.02, rel=0.02)


@pytest.mark.req("T4")
def test_a_shard_needs_its_own_size_and_no_more() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    made: set[int] = set()
    sizes: list[int] = []

    class Allocations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf.data_ptr() not in made:
                    made.add(leaf.data_ptr())
                    sizes.append(leaf.nbytes)
            return result

    config = ModelConfig(
        vocab_size=1000, hidden_size=64, num_layers=1, num_heads=2, intermediate_size=64
    )
    with Allocations():
        kept = init_shard(config, "block_000", seed=0)
    assert sum(sizes) == sum(tensor.nbytes for tensor in kept.values())
