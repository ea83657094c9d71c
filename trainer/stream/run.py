"""One run along a plan: interprets its operations over a source, and counts who is active.

The operations are in `plan`, the arithmetic in `compute`, the moves in `placement`; here are the
lifetimes: what is held from when to when, which activations wait, which gradient is between two
shards. `executor` is the public face.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from trainer.architecture import LM_HEAD, OPTIM, PARAMS
from trainer.metrics import Timings
from trainer.optim import STEP, AdamW
from trainer.stream.batch import MicroBatch
from trainer.stream.compute import ShardMath, as_leaves, gradient_of
from trainer.stream.placement import Placement
from trainer.stream.plan import Action, Operation
from trainer.stream.residency import ResidencyCounters
from trainer.stream.source import Checkout, ShardSource

_PHASES = {
    Action.LOAD: "load",
    Action.CHECKOUT: "load",
    Action.FORWARD: "compute",
    Action.BACKWARD: "compute",
    Action.UPDATE: "compute",
    Action.STAGE: "stage",
}
_LOAD_BUCKET = {PARAMS: "param_load", OPTIM: "optimizer_load"}
_STAGE_BUCKET = {PARAMS: "param_save_stage", OPTIM: "optimizer_save_stage"}


class PhaseHook(Protocol):
    """Told what comes next: `load`, `compute` or `stage`; fields action, shard, part, stage_of."""

    def __call__(self, name: str, **fields: str) -> None: ...


GradientHook = Callable[[str, Mapping[str, Tensor]], None]
"""Shown a shard's gradients before they are applied."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step found; nothing of it is committed yet."""

    loss: float
    """Mean over the micro-batches of their mean token loss, before the update."""
    grad_norm: float
    tokens: int
    residency: dict[str, int | list[str]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every run of one executor shares."""

    math: ShardMath
    placement: Placement
    timings: Timings
    on_phase: PhaseHook | None
    on_gradients: GradientHook | None


@dataclasses.dataclass(slots=True)
class _Held:
    """A part in memory: the source's tensors, the kernels' tensors, and how to let go of both."""

    host: Mapping[str, Tensor]
    placed: dict[str, Tensor]
    checkout: Checkout | None
    context: contextlib.ExitStack


class Run:
    """What moves along a plan: parts held, activations, and the gradient between two shards."""

    def __init__(
        self,
        tools: Tools,
        source: ShardSource,
        batches: Sequence[MicroBatch],
        rule: AdamW | None,
    ) -> None:
        if not batches:
            raise ValueError("a step needs at least one micro-batch")
        self._tools = tools
        self._place, self._time, self._math = tools.placement, tools.timings, tools.math
        self._source, self._rule = source, rule
        self._labels = [batch.labels for batch in batches]
        self._x = [batch.inputs for batch in batches]
        self._inputs: dict[str, list[Tensor]] = {}
        self._upstream: list[Tensor] = []
        self._gradients: dict[str, Tensor] = {}
        self._norms: list[Tensor] = []
        self._held: dict[str, _Held] = {}
        self._actions: dict[Action, Callable[[Operation], None]] = {
            Action.LOAD: self._load,
            Action.CHECKOUT: self._load,
            Action.FORWARD: self._forward,
            Action.BACKWARD: self._backward,
            Action.UPDATE: self._update,
            Action.STAGE: self._stage,
            Action.EVICT: self._evict,
        }
        self.tokens = sum(batch.tokens for batch in batches)
        self.losses: list[Tensor] = []
        self.counters = ResidencyCounters()

    def __enter__(self) -> None:
        return

    def __exit__(self, *error: object) -> None:
        while self._held:
            self._held.popitem()[1].context.close()

    def follow(self, plan: Sequence[Operation]) -> None:
        for operation in plan:
            phase = _PHASES.get(operation.action)
            if phase and self._tools.on_phase:
                self._tools.on_phase(
                    phase,
                    action=operation.action.value,
                    shard=operation.shard,
                    part=operation.part,
                    stage_of=operation.stage_of,
                )
            self._actions[operation.action](operation)

    def result(self) -> StepResult:
        """Bring loss and norm to the host: the step's only wait for the device's numbers."""
        loss = torch.stack(self.losses).div(len(self.losses)).sum()
        return StepResult(
            loss=loss.item(),
            grad_norm=torch.linalg.vector_norm(torch.stack(self._norms)).item(),
            tokens=self.tokens,
            residency=self.counters.as_log(),
        )

    def _load(self, operation: Operation) -> None:
        shard, part = operation.shard, operation.part
        context = contextlib.ExitStack()
        checkout: Checkout | None = None
        with self._time.leaf(_LOAD_BUCKET[part]):
            if operation.action is Action.CHECKOUT:
                checkout = self._source.checkout(shard, part)
                host = checkout.tensors
            else:
                host = context.enter_context(self._source.load(shard, part))
        with self._time.leaf("h2d"):
            # The update count is the host's: reading it from a device would wait for the device.
            placed = self._place.bring({name: t for name, t in host.items() if name != STEP})
        self.counters.enter(shard, part, sum(tensor.numel() for tensor in placed.values()))
        self._held[part] = _Held(host, placed, checkout, context)

    def _forward(self, operation: Operation) -> None:
        shard, params = operation.shard, self._held[PARAMS].placed
        if operation.stage_of == "forward":
            self._inputs[shard] = list(self._x)
        for index, kept in enumerate(self._x):
            x = self._fetch(kept)
            if shard == LM_HEAD:
                with self._time.leaf("forward_kernel"):
                    labels = self._place.to_device(self._labels[index])
                    self.losses.append(self._math.head_loss_sum(params, x, labels))
                continue
            with self._time.leaf("forward_kernel"):
                x = self._math.forward(shard, params, x)
            with self._time.leaf("activation_cpu_copy"):
                self._x[index] = self._place.to_host(x)

    def _backward(self, operation: Operation) -> None:
        shard = operation.shard
        with self._time.leaf("module_build"):
            leaves = as_leaves(self._held[PARAMS].placed)
        if shard == LM_HEAD:
            self._head_backward(leaves)
        else:
            self._replay(shard, leaves)
        self._gradients = {name: gradient_of(leaf) for name, leaf in leaves.items()}

    def _head_backward(self, leaves: dict[str, Tensor]) -> None:
        count = len(self._labels)
        for index, kept in enumerate(self._x):
            x, labels = self._fetch(kept), self._place.to_device(self._labels[index])
            loss, gradient = self._math.head_backward(leaves, x, labels, count, self._time)
            self.losses.append(loss)
            with self._time.leaf("gradient_cpu_copy"):
                self._upstream.append(self._place.to_host(gradient))
        self._x.clear()

    def _replay(self, shard: str, leaves: dict[str, Tensor]) -> None:
        for index, kept in enumerate(self._inputs.pop(shard)):
            x = self._fetch(kept)
            if x.is_floating_point():
                x = x.detach().requires_grad_()
            with self._time.leaf("gradient_cpu_copy"):
                upstream = self._place.to_device(self._upstream[index])
            with self._time.leaf("forward_kernel"), torch.enable_grad():
                y = self._math.forward(shard, leaves, x)
            with self._time.leaf("backward_kernel"):
                torch.autograd.backward(y, upstream)
            if x.requires_grad:
                with self._time.leaf("gradient_cpu_copy"):
                    self._upstream[index] = self._place.to_host(gradient_of(x))

    def _update(self, operation: Operation) -> None:
        assert self._rule is not None, "an update without a rule"
        params, state = self._held[PARAMS].placed, self._held[OPTIM]
        if self._tools.on_gradients:
            self._tools.on_gradients(operation.shard, self._gradients)
        with self._time.leaf("optimizer_math"):
            self._norms.extend(torch.linalg.vector_norm(g) for g in self._gradients.values())
            count = state.host[STEP].add_(1)
            self._rule.update(params, self._gradients, state.placed, int(count))
        self._gradients = {}

    def _stage(self, operation: Operation) -> None:
        held = self._held.pop(operation.part)
        assert held.checkout is not None, (
            f"{operation.shard} {operation.part} staged without a checkout"
        )
        with self._time.leaf(_STAGE_BUCKET[operation.part]):
            self._place.take_back(held.placed, held.host)
            checkout = held.checkout
            del held
            self._source.stage(checkout)
        self.counters.leave(operation.shard, operation.part, staged=True)

    def _evict(self, operation: Operation) -> None:
        held = self._held.pop(operation.part)
        with self._time.leaf(_LOAD_BUCKET[operation.part]):
            self._place.settle()
            context = held.context
            del held
            context.close()
        self.counters.leave(operation.shard, operation.part, staged=False)

    def _fetch(self, kept: Tensor) -> Tensor:
        with self._time.leaf("activation_cpu_copy"):
            return self._place.to_device(kept)
