"""The order of a step, as data: which shard is loaded, computed, written back and let go, and
when.

Layer-major: each shard is visited once per pass, whatever the number of micro-batches; the
executor computes all of them within the visit. The head is visited once, forward and backward
together, at the turn from one pass to the other. Pure, so that a prefetcher can read ahead in
the same plan and a test can check it without computing anything.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Literal

from trainer.architecture import OPTIM, PARAMS

Pass = Literal["forward", "backward", "validation"]


class Action(StrEnum):
    """CHECKOUT loads for change; STAGE writes back and lets go, EVICT only lets go."""

    LOAD = "load"
    CHECKOUT = "checkout"
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    STAGE = "stage"
    EVICT = "evict"


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One action on one part of one shard."""

    action: Action
    shard: str
    part: str
    stage_of: Pass


def training_plan(shards: Sequence[str]) -> tuple[Operation, ...]:
    """Forward without a graph up to the head, then back through every shard with its update."""
    return (*_forward(shards[:-1], "forward"), *_backward(shards))


def validation_plan(shards: Sequence[str]) -> tuple[Operation, ...]:
    """Forward through every shard, the head included."""
    return tuple(_forward(shards, "validation"))


def loads(plan: Iterable[Operation], part: str) -> int:
    """How often a plan reads a part of any shard."""
    reads = (Action.LOAD, Action.CHECKOUT)
    return sum(operation.action in reads and operation.part == part for operation in plan)


def _forward(shards: Sequence[str], stage_of: Pass) -> Iterator[Operation]:
    for shard in shards:
        for action in (Action.LOAD, Action.FORWARD, Action.EVICT):
            yield Operation(action, shard, PARAMS, stage_of)


def _backward(shards: Sequence[str]) -> Iterator[Operation]:
    # The optimizer state comes after the gradients: it is not in memory during recomputation.
    for shard in reversed(shards):
        yield Operation(Action.CHECKOUT, shard, PARAMS, "backward")
        yield Operation(Action.BACKWARD, shard, PARAMS, "backward")
        yield Operation(Action.CHECKOUT, shard, OPTIM, "backward")
        yield Operation(Action.UPDATE, shard, OPTIM, "backward")
        yield Operation(Action.STAGE, shard, PARAMS, "backward")
        yield Operation(Action.STAGE, shard, OPTIM, "backward")
