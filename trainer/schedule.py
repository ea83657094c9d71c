"""Learning rate as a pure function of progress: linear warm-up, cosine, floor.

Progress is counted in tokens or in applied steps, at the *end* of the step that is about to be
taken: the first step of a warm-up of 10 steps runs at a tenth of the base rate, not at zero.
With warm-up W, horizon D (counted from the start, warm-up included) and floor f = min_ratio:

    p < W        base * p / W
    W <= p < D   base * (f + (1 - f) * (1 + cos(pi * (p - W) / (D - W))) / 2)
    p >= D       base * f                    (D = 0: no decay, base for ever)

A run keeps the schedule it was started with; `changed_fields` names what a resumed one would
change.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from trainer.errors import ConfigError

Unit = Literal["tokens", "steps"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A learning-rate schedule; valid once it exists."""

    base_lr: float
    unit: Unit = "tokens"
    warmup: int = 0
    decay: int = 0
    min_ratio: float = 1.0

    def __post_init__(self) -> None:
        if not (self.base_lr > 0 and math.isfinite(self.base_lr)):
            raise ConfigError(f"--learning-rate must be positive, found {self.base_lr}")
        if self.unit not in ("tokens", "steps"):
            raise ConfigError(f"--lr-schedule must be 'tokens' or 'steps', found {self.unit!r}")
        if self.warmup < 0:
            raise ConfigError(f"--warmup-{self.unit} must not be negative, found {self.warmup}")
        if not 0.0 <= self.min_ratio <= 1.0:
            raise ConfigError(f"--min-lr-ratio must be in 0..1, found {self.min_ratio}")
        if self.decay < 0 or 0 < self.decay <= self.warmup:
            raise ConfigError(
                f"--decay-{self.unit} must be 0 (no decay) or more than the warm-up of "
                f"{self.warmup} {self.unit}, found {self.decay}"
            )

    def lr(self, *, tokens: int, steps: int) -> float:
        """The rate of the step that ends at `tokens` tokens seen and `steps` steps applied."""
        progress = tokens if self.unit == "tokens" else steps
        if progress < self.warmup:
            return self.base_lr * progress / self.warmup
        if self.decay == 0:
            return self.base_lr
        if progress >= self.decay:
            return self.base_lr * self.min_ratio
        share = (progress - self.warmup) / (self.decay - self.warmup)
        cosine = (1.0 + math.cos(math.pi * share)) / 2.0
        return self.base_lr * (self.min_ratio + (1.0 - self.min_ratio) * cosine)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def changed_fields(self, saved: Mapping[str, Any]) -> list[str]:
        """What differs from a saved schedule, as readable lines: `decay: 1000 -> 2000`."""
        now = self.to_dict()
        return [
            f"{name}: {saved.get(name)} -> {now[name]}"
            for name in now
            if saved.get(name) != now[name]
        ]

    def check_resume(self, saved: Mapping[str, Any], *, allow_change: bool) -> None:
        """Refuse to go on under another schedule than the run's own, unless asked to."""
        changed = self.changed_fields(saved)
        if changed and not allow_change:
            raise ConfigError(
                f"the learning-rate schedule differs from the run's own ({'; '.join(changed)}): "
                "give the same flags, or --allow-schedule-change to go on with the new one"
            )
