"""Goal: our AdamW over dictionaries is torch's, bit for bit, for 100 steps.

Method: the same random gradients of very different sizes to both.
"""

from __future__ import annotations

import pytest
import torch

from tests.trainer.cases import TINY
from trainer.init import init_shard
from trainer.optim import STEP, AdamW, initial_state

SHARD = "block_000"


@pytest.mark.req("T8")
def test_a_hundred_steps_equal_torch() -> None:
    ours = init_shard(TINY, SHARD, seed=1)
    state = {name: tensor.clone() for name, tensor in initial_state(TINY, SHARD).items()}
    theirs = {name: tensor.clone().requires_grad_() for name, tensor in ours.items()}
    matrices = [tensor for tensor in theirs.values() if tensor.dim() > 1]
    vectors = [tensor for tensor in theirs.values() if tensor.dim() == 1]
    assert len(vectors) == 2
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, fused=True)
    generator = torch.Generator().manual_seed(7)
    for step in range(1, 101):
        lr = 1e-3 / step
        for group in optimizer.param_groups:
            group["lr"] = lr
        grads = {
            name: torch.randn(tensor.shape, generator=generator) * 10.0 ** -(step % 8)
            for name, tensor in ours.items()
        }
        for name, tensor in theirs.items():
            tensor.grad = grads[name].clone()
        AdamW(lr=lr, weight_decay=0.1).update(ours, grads, state, step)
        optimizer.step()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
        assert torch.equal(state[f"m.{name}"], optimizer.state[tensor]["exp_avg"]), name
        assert torch.equal(state[f"v.{name}"], optimizer.state[tensor]["exp_avg_sq"]), name


@pytest.mark.req("T8")
def test_epsilon_is_added_after_bias_correction_and_norms_do_not_decay() -> None:
    rule = AdamW(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-2, weight_decay=0.5)
    params = {"matrix": torch.full((1, 1), 2.0), "norm": torch.full((1,), 2.0)}
    grads = {"matrix": torch.full((1, 1), 3.0), "norm": torch.full((1,), 3.0)}
    state = {f"{kind}.{name}": torch.zeros_like(params[name]) for kind in "mv" for name in params}
    rule.update(params, grads, state, 1)
    # After one step the corrected moments are g and g*g, whatever the betas.
    move = 0.1 * 3.0 / (3.0 + 1e-2)
    assert params["norm"].item() == pytest.approx(2.0 - move, rel=1e-6)
    assert params["matrix"].item() == pytest.approx(2.0 * (1 - 0.1 * 0.5) - move, rel=1e-6)


@pytest.mark.req("T8")
def test_initial_state_names_every_moment_and_allocates_nothing() -> None:
    state = initial_state(TINY, SHARD)
    shapes = TINY.shapes(SHARD)
    assert set(state) == {STEP, *(f"{kind}.{name}" for kind in "mv" for name in shapes)}
    assert state[STEP].dtype == torch.int64
    assert state[STEP].shape == ()
    for name, shape in shapes.items():
        for kind in "mv":
            moment = state[f"{kind}.{name}"]
            assert moment.shape == shape
            assert moment.dtype == torch.float32
            assert not moment.any()
            assert moment.untyped_storage().nbytes() == 4
