"""What the main job saw, as values, and what has to hold for it. Pure.

`demo_job` fills `Outcome`, `checks` judges it, `demo_page` tells people about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tools.demo_children import KillPoint

Metrics = Mapping[int, Mapping[str, Any]]
"""Step -> numbers of the step, as its commit holds them."""

STEPS_MIN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill and what was found afterwards."""

    where: str
    step: int
    """The step that was being made."""
    acknowledged: int
    """The last step whose commit had returned before the kill."""
    recovered: int
    """The step that the store stood at after recovery."""
    plan: list[str]
    """What `shardstore recover` said."""
    fsck_clean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where the killed run stood at one moment of the journey to its snapshot and back."""

    what: str
    step: int
    state_digest: str
    trainer_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything the page tells."""

    data: dict[str, Any]
    """What `trainer data prepare --json` printed."""
    steps: int
    tokens_per_step: int
    parameters: int
    shards: int
    steady: Metrics
    """Of the run that was never stopped."""
    killed: Metrics
    steady_digest: str
    killed_digest: str
    kills: list[Kill]
    moments: list[Moment]
    """At the snapshot, before the rewind, after it, after the undo."""
    fsck_clean: dict[str, bool]
    """Run -> verdict on every byte at the end."""
    log_lines: list[str]
    ln_vocab: float
    unigram: float
    validation_rows: int
    seconds: dict[str, float]

    def losses(self, name: str) -> dict[int, float]:
        """`train_loss` or `val_loss` of the run that was never stopped, by step; finite ones."""
        found = {step: float(row[name]) for step, row in self.steady.items() if name in row}
        return {step: loss for step, loss in found.items() if math.isfinite(loss)}

    @property
    def held_out(self) -> tuple[int, float]:
        """The last step that was validated, and its held-out loss; infinity without one."""
        return max(self.losses("val_loss").items(), default=(0, math.inf))

    @property
    def ok(self) -> bool:
        return all(check.ok for check in checks(self))

    def to_json(self) -> dict[str, Any]:
        """For strict JSON: a loss that is not there is null."""
        loss = self.held_out[1]
        return {
            "ok": self.ok,
            "checks": [asdict(check) for check in checks(self)],
            "held_out_loss": loss if math.isfinite(loss) else None,
            **asdict(self),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that has to hold."""

    ok: bool
    what: str
    seen: str


def kill_points(steps: int) -> list[KillPoint]:
    """Three moments, one in each third of the run."""
    first, second, third = (max(1, steps * part // 6) for part in (1, 3, 5))
    return [
        KillPoint(
            step=first,
            event="compute",
            fields={"action": "backward"},
            occurrence=4,
            where="computing, half-way through the backward pass",
        ),
        KillPoint(
            step=second,
            event="append",
            fields={},
            where="inside the commit, before its record is written",
        ),
        KillPoint(
            step=third,
            event="sync",
            fields={},
            where="inside the commit, record written but not synced",
        ),
    ]


def metrics_by_step(entries: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """The metrics of each step's effective commit, out of `shardstore log --json`; no step 0."""
    found = {
        int(entry["step"]): dict(entry["metadata"]["metrics"])
        for entry in entries
        if entry["type"] == "commit" and entry["effective"] and entry["step"] > 0
    }
    return dict(sorted(found.items()))


def different_steps(one: Metrics, other: Metrics) -> list[int]:
    """Steps that only one of them has, or whose numbers are not equal to the last bit."""
    return sorted(step for step in one.keys() | other.keys() if one.get(step) != other.get(step))


def checks(outcome: Outcome) -> list[Check]:
    """Everything that has to hold, in the order of the page."""
    return [
        _nothing_lost(outcome.kills),
        _clean(outcome),
        _equal_losses(outcome),
        Check(
            ok=outcome.steady_digest == outcome.killed_digest,
            what="both runs end with the same trainer digest",
            seen=f"never stopped {outcome.steady_digest}, killed {outcome.killed_digest}",
        ),
        *_there_and_back(outcome.moments),
        Check(
            ok=outcome.held_out[1] < outcome.unigram,
            what="the held-out loss is below the unigram model's",
            seen=f"{outcome.held_out[1]:.4f} against {outcome.unigram:.4f}",
        ),
    ]


def _nothing_lost(kills: Sequence[Kill]) -> Check:
    seen = "; ".join(f"acknowledged {k.acknowledged}, recovered {k.recovered}" for k in kills)
    ok = all(0 <= kill.recovered - kill.acknowledged <= 1 for kill in kills)
    return Check(ok=ok, what="no acknowledged step was lost to a kill", seen=seen)


def _clean(outcome: Outcome) -> Check:
    verdicts = {f"after kill {n}": k.fsck_clean for n, k in enumerate(outcome.kills, 1)}
    verdicts |= {f"{run} run at the end": ok for run, ok in outcome.fsck_clean.items()}
    bad = [when for when, clean in verdicts.items() if not clean]
    seen = f"damage: {', '.join(bad)}" if bad else f"clean {len(verdicts)} times"
    return Check(ok=not bad, what="fsck finds no damage", seen=seen)


def _equal_losses(outcome: Outcome) -> Check:
    different = different_steps(outcome.steady, outcome.killed)
    complete = list(outcome.steady) == list(range(1, outcome.steps + 1))
    seen = f"{outcome.steps - len(different)} of {outcome.steps} steps are equal"
    if different:
        seen += f", the first that is not is {different[0]}"
    if not complete:
        seen += f"; the run that was never stopped has {len(outcome.steady)} steps"
    what = "losses and gradient norms of every step are equal to the last bit"
    return Check(ok=complete and not different, what=what, seen=seen)


def _there_and_back(moments: Sequence[Moment]) -> list[Check]:
    snapshot, before, rewound, back = (
        (moment.step, moment.state_digest, moment.trainer_digest) for moment in moments
    )
    return [
        Check(
            ok=rewound == snapshot != before,
            what="the rewind brought back the snapshot's state",
            seen=f"step {snapshot[0]} and step {rewound[0]}, {snapshot[1]} and {rewound[1]}",
        ),
        Check(
            ok=back == before,
            what="undo brought back the state before the rewind",
            seen=f"step {before[0]} and step {back[0]}, {before[1]} and {back[1]}",
        ),
    ]
