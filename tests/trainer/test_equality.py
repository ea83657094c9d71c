"""Goal: streaming changes where tensors live and nothing else.

Method: the same rows through the streamed step and through a resident PyTorch loop that imports
nothing of ours; every gradient, weight and moment is compared bit for bit. Both run on two
threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import Tensor

from tests.trainer import reference
from tests.trainer.cases import TINY, batches_of, pairs, reference_of
from tests.trainer.memory_source import MemorySource
from trainer.architecture import OPTIM, PARAMS, ModelConfig
from trainer.errors import ResidencyError
from trainer.metrics import Timings
from trainer.optim import STEP, AdamW
from trainer.presets import PRESETS
from trainer.stream.executor import StreamingExecutor
from trainer.stream.placement import Copied, Placement
from trainer.stream.plan import Action, loads, training_plan, validation_plan
from trainer.stream.residency import ResidencyCounters

RULE = AdamW(lr=1e-3, weight_decay=0.1)
NANO = PRESETS["nano"].model


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def compare_runs(
    config: ModelConfig,
    *,
    steps: int,
    count: int,
    rows: int,
    length: int,
    placement: Placement | None = None,
) -> None:
    source = MemorySource.initial(config, seed=3)
    model = reference_of(config, source)
    optimizer = reference.optimizer(model, lr=RULE.lr, weight_decay=RULE.weight_decay)
    parameters = dict(model.named_parameters())
    compared: list[str] = []

    def check_gradients(shard: str, gradients: Mapping[str, Tensor]) -> None:
        for name, gradient in gradients.items():
            expected = parameters[f"{shard}.{name}"].grad
            assert torch.equal(gradient, expected), f"step {step}: gradient of {shard} {name}"
            compared.append(f"{shard}.{name}")

    executor = StreamingExecutor(config, placement=placement, on_gradients=check_gradients)
    for step in range(1, steps + 1):
        batches = batches_of(config, count=count, rows=rows, length=length, seed=step)
        loss = reference.backward(model, pairs(batches))
        result = executor.train_step(source, batches, RULE)
        optimizer.step()
        assert result.loss == pytest.approx(loss, rel=1e-6)
        assert sorted(compared) == sorted(parameters)
        compared.clear()
    assert_same_state(config, source, parameters, optimizer, steps)


def assert_same_state(
    config: ModelConfig,
    source: MemorySource,
    parameters: Mapping[str, Tensor],
    optimizer: torch.optim.AdamW,
    steps: int,
) -> None:
    for shard in config.shard_names():
        state = source.parts[shard, OPTIM]
        assert int(state[STEP]) == steps
        for name, tensor in source.parts[shard, PARAMS].items():
            expected = parameters[f"{shard}.{name}"]
            moments = optimizer.state[expected]
            assert torch.equal(tensor, expected), f"{shard} {name}"
            assert torch.equal(state[f"m.{name}"], moments["exp_avg"]), f"{shard} m.{name}"
            assert torch.equal(state[f"v.{name}"], moments["exp_avg_sq"]), f"{shard} v.{name}"


@pytest.mark.req("T5", "T7", "T8")
@pytest.mark.parametrize("accumulation", [1, 3])
def test_twenty_steps_at_nano_size_equal_the_resident_loop(accumulation: int) -> None:
    compare_runs(NANO, steps=20, count=accumulation, rows=2, length=64)


@pytest.mark.req("T5")
def test_two_steps_of_v2_8_equal_the_resident_loop() -> None:
    compare_runs(PRESETS["v2.8"].model, steps=2, count=1, rows=1, length=512)


@pytest.mark.req("T5")
def test_a_device_with_its_own_memory_gives_the_same_bits() -> None:
    placement = Copied(torch.device("cpu"))
    compare_runs(TINY, steps=5, count=3, rows=2, length=32, placement=placement)


@pytest.mark.gpu
@pytest.mark.req("T5")
def test_cuda_follows_the_cpu() -> None:
    results = []
    for placement in (None, Copied(torch.device("cuda", 0))):
        source = MemorySource.initial(TINY, seed=3)
        executor = StreamingExecutor(TINY, placement=placement, chunk_tokens=40)
        for step in range(3):
            batches = batches_of(TINY, count=2, rows=2, length=32, seed=step)
            result = executor.train_step(source, batches, RULE)
        results.append((result.loss, source.parts["block_000", PARAMS]["down.weight"]))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-3, atol=1e-4)


@pytest.mark.req("T7")
def test_accumulation_equals_one_larger_batch() -> None:
    together = batches_of(TINY, count=1, rows=6, length=32, seed=1)
    apart = [
        type(together[0])(together[0].inputs[i : i + 2], together[0].labels[i : i + 2])
        for i in (0, 2, 4)
    ]
    gradients: list[dict[str, Tensor]] = []
    for batches in (together, apart):
        seen: dict[str, Tensor] = {}
        executor = StreamingExecutor(
            TINY,
            on_gradients=lambda shard, grads, seen=seen: seen.update(  # type: ignore[misc]
                {f"{shard}.{name}": grad.clone() for name, grad in grads.items()}
            ),
        )
        executor.train_step(MemorySource.initial(TINY, seed=1), batches, RULE)
        gradients.append(seen)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.req("T6", "T7")
@pytest.mark.parametrize("accumulation", [1, 4])
def test_loads_do_not_depend_on_accumulation_and_one_shard_is_active(accumulation: int) -> None:
    source = MemorySource.initial(TINY, seed=1)
    batches = batches_of(TINY, count=accumulation, rows=1, length=16, seed=1)
    result = StreamingExecutor(TINY).train_step(source, batches, RULE)
    shards = TINY.shard_names()
    assert sorted(source.staged) == sorted(
        (shard, part) for shard in shards for part in (PARAMS, OPTIM)
    )
    assert source.loads == {
        (shard, part): 1 if part == OPTIM or shard == "lm_head" else 2
        for shard in shards
        for part in (PARAMS, OPTIM)
    }
    assert result.residency == {
        "updated_shards": len(shards),
        "optimizer_shards_touched": len(shards),
        "max_active_param_shards_observed": 1,
        "max_active_optimizer_shards_observed": 1,
        "active_param_shards": [],
        "active_optimizer_shards": [],
        "resident_parameter_count": 0,
        "resident_optimizer_state_count": 0,
        "param_loads": 2 * len(shards) - 1,
        "optimizer_loads": len(shards),
    }


@pytest.mark.req("T6")
def test_a_second_active_shard_is_refused() -> None:
    counters = ResidencyCounters()
    counters.enter("block_000", PARAMS, 10)
    with pytest.raises(
        ResidencyError, match="block_001, part params: block_000 active, the budget"
    ):
        counters.enter("block_001", PARAMS, 10)
    with pytest.raises(ResidencyError, match="block_000, part params: loaded while it is active"):
        counters.enter("block_000", PARAMS, 10)
    counters.leave("block_000", PARAMS, staged=False)
    with pytest.raises(ResidencyError, match="released but not active"):
        counters.leave("block_000", PARAMS, staged=False)


@pytest.mark.req("T5", "T6")
def test_the_plan_lets_go_of_each_shard_before_the_next_and_turns_at_the_head() -> None:
    shards = TINY.shard_names()
    plan = training_plan(shards)
    reads = [
        o.shard for o in plan if o.action in (Action.LOAD, Action.CHECKOUT) and o.part == PARAMS
    ]
    assert reads == [*shards, *reversed(shards[:-1])]
    assert loads(plan, OPTIM) == len(shards)
    held: set[tuple[str, str]] = set()
    for operation in plan:
        if operation.action in (Action.LOAD, Action.CHECKOUT):
            assert all(part != operation.part for _, part in held)
            held.add((operation.shard, operation.part))
        elif operation.action in (Action.EVICT, Action.STAGE):
            held.remove((operation.shard, operation.part))
        else:
            assert (operation.shard, PARAMS) in held
    assert not held
    assert [o.shard for o in validation_plan(shards) if o.action is Action.FORWARD] == list(shards)


@pytest.mark.req("T5")
def test_phases_are_announced_and_a_stop_between_them_leaves_nothing_held() -> None:
    seen: list[tuple[str, str, str]] = []

    def stop_at_third_stage(name: str, **fields: str) -> None:
        seen.append((name, fields["shard"], fields["part"]))
        if [phase for phase, _, _ in seen].count("stage") == 3:
            raise KeyboardInterrupt

    source = MemorySource.initial(TINY, seed=1)
    batches = batches_of(TINY, count=1, rows=1, length=8, seed=1)
    executor = StreamingExecutor(TINY, on_phase=stop_at_third_stage)
    with pytest.raises(KeyboardInterrupt):
        executor.train_step(source, batches, RULE)
    assert seen[:3] == [
        ("load", "embeddings", PARAMS),
        ("compute", "embeddings", PARAMS),
        ("load", "block_000", PARAMS),
    ]
    assert seen[-1] == ("stage", "final_norm", PARAMS)
    assert source.staged == [("lm_head", PARAMS), ("lm_head", OPTIM)]

    def stop_in_forward(name: str, **fields: str) -> None:
        if name == "compute":
            assert source.loaded_now
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StreamingExecutor(TINY, on_phase=stop_in_forward).train_step(source, batches, RULE)
    assert not source.loaded_now


@pytest.mark.req("T23")
def test_every_bucket_of_a_step_is_filled_and_adds_up() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    timings = Timings(clock=clock)
    executor = StreamingExecutor(TINY, timings=timings)
    timings.restart()
    batches = batches_of(TINY, count=2, rows=1, length=8, seed=1)
    executor.train_step(MemorySource.initial(TINY, seed=1), batches, RULE)
    report = timings.report()
    not_here = {"data_load_seconds", "commit_seconds"}
    assert {name for name, seconds in report.items() if seconds == 0.0} == not_here
    spans = {"step_seconds", "forward_trace_seconds", "backward_update_seconds"}
    leaves = sum(seconds for name, seconds in report.items() if name not in spans)
    assert leaves == report["step_seconds"]
    assert (
        report["forward_trace_seconds"] + report["backward_update_seconds"] < report["step_seconds"]
    )
