"""Steps of a model over a source of shards: forward, reverse replay with recomputation, update.

Invariants, counted and asserted: one parameter shard and one optimizer shard active at most;
each shard read once per pass, whatever the number of micro-batches; the only activations kept
are the inputs of shards, those of all micro-batches; the only gradients kept are one shard's.
In fp32 on the CPU the result equals resident training bit for bit. The executor neither begins
nor commits: after an exception the caller aborts the transaction.

One thread at a time. Observers see every operation before it runs and may raise to stop the
step there.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch

from trainer.architecture import ModelConfig
from trainer.metrics import Timings
from trainer.optim import AdamW
from trainer.stream.batch import MicroBatch
from trainer.stream.compute import ShardMath
from trainer.stream.placement import InPlace, Placement
from trainer.stream.plan import training_plan, validation_plan
from trainer.stream.run import GradientHook, PhaseHook, Run, StepResult, Tools
from trainer.stream.source import ShardSource

__all__ = ["Evaluation", "GradientHook", "PhaseHook", "StepResult", "StreamingExecutor"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Sums over some batches; add up evaluations before taking the mean."""

    loss_sum: float = 0.0
    tokens: int = 0
    batches: int = 0

    def __add__(self, other: "Evaluation") -> "Evaluation":
        return Evaluation(
            loss_sum=self.loss_sum + other.loss_sum,
            tokens=self.tokens + other.tokens,
            batches=self.batches + other.batches,
        )

    @property
    def loss(self) -> float:
        """Mean over tokens, so that a short last batch weighs what it holds."""
        return self.loss_sum / self.tokens

    @property
    def perplexity(self) -> float:
        return math.inf if self.loss > 700.0 else math.exp(self.loss)


class StreamingExecutor:
    """Computes steps of one model on one device."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        chunk_tokens: int = 0,
        placement: Placement | None = None,
        timings: Timings | None = None,
        on_phase: PhaseHook | None = None,
        on_gradients: GradientHook | None = None,
    ) -> None:
        self.timings = timings or Timings()
        place = placement or InPlace()
        self._shards = config.shard_names()
        self._tools = Tools(
            math=ShardMath(config, chunk_tokens=chunk_tokens, device=place.device),
            placement=place,
            timings=self.timings,
            on_phase=on_phase,
            on_gradients=on_gradients,
        )

    def train_step(
        self, source: ShardSource, batches: Sequence[MicroBatch], rule: AdamW
    ) -> StepResult:
        """Update every shard by the gradient of the mean loss; leaves all parts staged."""
        run = Run(self._tools, source, batches, rule)
        plan = training_plan(self._shards)
        with run, torch.no_grad():
            with self.timings.span("forward_trace"):
                run.follow([o for o in plan if o.stage_of == "forward"])
            with self.timings.span("backward_update"):
                run.follow([o for o in plan if o.stage_of == "backward"])
                return run.result()

    def evaluate(self, source: ShardSource, batches: Sequence[MicroBatch]) -> Evaluation:
        """Token losses of `batches` without gradients; each shard is read once for all of them."""
        run = Run(self._tools, source, batches, None)
        with run, torch.no_grad():
            run.follow(validation_plan(self._shards))
            loss_sum = math.fsum(loss.item() for loss in run.losses)
        return Evaluation(loss_sum=loss_sum, tokens=run.tokens, batches=len(batches))
