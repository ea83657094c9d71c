"""Goal: the learning rate at chosen points, worked out by hand."""

from __future__ import annotations

import pytest

from trainer.errors import ConfigError
from trainer.schedule import Schedule

TOKENS = Schedule(base_lr=1.0, unit="tokens", warmup=100, decay=500, min_ratio=0.2)

# 100 -> 500 is the cosine: cos(pi/4) = 0.70711 at a quarter, 0 at half, -0.70711 at three quarters.
TABLE = [
    (0, 0.0),
    (1, 0.01),
    (50, 0.5),
    (99, 0.99),
    (100, 1.0),
    (200, 0.2 + 0.8 * 0.8535533905932737),
    (300, 0.6),
    (400, 0.2 + 0.8 * 0.14644660940672627),
    (500, 0.2),
    (10**12, 0.2),
]


@pytest.mark.req("T14")
@pytest.mark.parametrize(("progress", "expected"), TABLE)
def test_table(progress: int, expected: float) -> None:
    assert TOKENS.lr(tokens=progress, steps=0) == pytest.approx(expected, rel=1e-12)
    steps = Schedule(base_lr=3e-4, unit="steps", warmup=100, decay=500, min_ratio=0.2)
    assert steps.lr(tokens=7, steps=progress) == pytest.approx(3e-4 * expected, rel=1e-12)


@pytest.mark.req("T14")
def test_a_floor_of_one_or_no_horizon_is_constant_after_warm_up() -> None:
    flat = Schedule(base_lr=3e-5, decay=100_000_000, min_ratio=1.0)
    endless = Schedule(base_lr=3e-5, warmup=10)
    for progress in (10, 50_000_000, 100_000_000, 200_000_000):
        assert flat.lr(tokens=progress, steps=0) == pytest.approx(3e-5, rel=1e-12)
        assert endless.lr(tokens=progress, steps=0) == 3e-5
    assert endless.lr(tokens=5, steps=0) == pytest.approx(1.5e-5)


@pytest.mark.req("T14")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"base_lr": 0.0}, "--learning-rate must be positive, found 0.0"),
        ({"base_lr": float("nan")}, "--learning-rate must be positive, found nan"),
        ({"unit": "hours"}, "--lr-schedule must be 'tokens' or 'steps', found 'hours'"),
        ({"warmup": -1}, "--warmup-tokens must not be negative, found -1"),
        ({"min_ratio": 1.5}, "--min-lr-ratio must be in 0..1, found 1.5"),
        ({"warmup": 10, "decay": 10}, "--decay-tokens must be 0 .* or more than the warm-up of 10"),
        ({"unit": "steps", "decay": -5}, "--decay-steps must be 0"),
    ],
)
def test_each_rule_has_its_own_error(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Schedule(**{"base_lr": 1.0, **values})  # type: ignore[arg-type]


@pytest.mark.req("T14")
def test_another_horizon_on_resume_needs_the_explicit_flag() -> None:
    saved = TOKENS.to_dict()
    TOKENS.check_resume(saved, allow_change=False)
    longer = Schedule(base_lr=1.0, unit="tokens", warmup=100, decay=900, min_ratio=0.2)
    with pytest.raises(ConfigError, match=r"\(decay: 500 -> 900\): .* --allow-schedule-change"):
        longer.check_resume(saved, allow_change=False)
    longer.check_resume(saved, allow_change=True)
