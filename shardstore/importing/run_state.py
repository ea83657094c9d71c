"""The trainer state of a run directory of the earlier system, audited against its optimizer shards.

Contract: pure. The counters that the optimizer shards carry count: a state that lags behind them is
brought up to them, with a warning; shards that disagree, and a state that is ahead of them, mean
that the directory holds parts of different steps, and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardstore.errors import ForeignFileError

STEP_MAX = 2**63 - 1
_LOSSES = (
    *("latest_validation_loss", "latest_val_loss", "last_validation_loss", "last_val_loss"),
    *("validation_loss", "val_loss"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What counts of a trainer_state.json."""

    step: int = 0
    optimizer_step: int | None = None
    """Applied updates; None where the file does not say."""
    tokens_seen: int = 0
    val_loss: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "optimizer_step": self.optimizer_step,
            "tokens_seen": self.tokens_seen,
            "val_loss": self.val_loss,
        }


def state_of(value: Mapping[str, Any], path: str) -> RunState:
    """The counters of the file at `path`."""
    step = _count(value, ("global_step", "step"), path)
    if step is None:
        raise ForeignFileError("it has no global_step", file=path)
    loss: Any = next((value[name] for name in _LOSSES if value.get(name) is not None), None)
    return RunState(
        step=step,
        optimizer_step=_count(value, ("optimizer_step",), path),
        tokens_seen=_count(value, ("tokens_seen",), path) or 0,
        val_loss=_number(loss),
    )


def _number(loss: Any) -> float | None:
    try:
        return float(loss) if type(loss) in (int, float) else None
    except OverflowError:
        return None


def audit(
    state: RunState | None, steps: Mapping[str, int | None], path: str
) -> tuple[RunState, list[str]]:
    """The state that the shards bear out, and warnings. `steps` are the applied updates by shard,
    None where a shard has no optimizer state (it is made with the first update)."""
    found = agreed(steps, path)
    if state is None:
        told = f"{path} is missing: step {found} is taken from the optimizer shards"
        return RunState(step=found, optimizer_step=found), [told]
    claimed = state.optimizer_step
    if claimed is not None and claimed > found:
        raise ForeignFileError(
            "it is ahead of the optimizer shards: they belong to an older step", file=path,
            expected=f"optimizer_step {claimed}", found=f"{found} in every shard",
            advice="nothing was imported; put the shards of that step back, or import a checkpoint",
        )  # fmt: skip
    warnings = []
    if state.step < found:
        warnings.append(
            f"{path} says global_step {state.step}, every optimizer shard {found}: it was written "
            f"before the shards; step {found} is taken"
        )
    elif claimed is not None and claimed < found:
        warnings.append(
            f"{path} says optimizer_step {claimed}, every optimizer shard {found}: {found} is taken"
        )
    elif claimed is None and state.step > found:
        warnings.append(
            f"{path} says global_step {state.step}, every optimizer shard {found}: the others are "
            "taken for steps without an update"
        )
    return replace(state, step=max(state.step, found), optimizer_step=found), warnings


def agreed(steps: Mapping[str, int | None], path: str) -> int:
    """The one number of updates that all shards had."""
    by_step: dict[int, list[str]] = {}
    for shard, step in steps.items():
        by_step.setdefault(step or 0, []).append(shard)
    if len(by_step) > 1:
        told = "; ".join(
            f"{len(names)} at step {step} ({', '.join(names[:3])}{', ...' if names[3:] else ''})"
            for step, names in sorted(by_step.items())
        )
        raise ForeignFileError(
            f"the optimizer shards beside it disagree: {told}", file=path,
            advice="they are parts of different steps and no whole one; nothing was imported: "
            "import one of its checkpoints, or another copy",
        )  # fmt: skip
    return next(iter(by_step), 0)


def _count(value: Mapping[str, Any], names: tuple[str, ...], path: str) -> int | None:
    for name in names:
        found = value.get(name)
        if found is None:
            continue
        if type(found) is not int or not 0 <= found <= STEP_MAX:
            raise ForeignFileError(
                f"{name} is no count", file=path, expected="an integer from 0 on",
                found=repr(found)[:80],
            )  # fmt: skip
        return found
    return None
