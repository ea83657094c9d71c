"""Variants measured in turns: in every round each one once, in an order of its own.

Machines drift by a factor of two within hours: only what stood in the same rounds is compared. The
first round is thrown away. Rounds are added until every variant has enough samples that count, up
to a limit.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.frame.disk import bytes_read_from_disk, settle
from benchmarks.frame.guard import guarded
from benchmarks.frame.samples import Kind, Row, Sample, complete

ROUNDS_MAX_FACTOR = 3
COLD_SHARE_MIN = 0.9
SECONDS = "seconds"
"""The figure by which a variant replaces the time that its call took by one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way of doing what a question asks about."""

    name: str
    act: Callable[[], Mapping[str, float] | None]
    """What is timed. May return figures of its own; `SECONDS` among them replaces the time."""
    kind: Kind = "ours"
    note: str = ""
    """What exactly is measured."""
    bytes: int = 0
    x: float | None = None
    before: Callable[[], object] | None = None
    """Called before each sample, not timed."""
    after: Callable[[], object] | None = None
    cold_bytes: int = 0
    """So many have to come from the disk, or the sample does not count."""

    @property
    def key(self) -> str:
        """Unique within its rounds: one name may stand at several places of an axis."""
        return self.name if self.x is None else f"{self.name} at {self.x:g}"


def interleave(
    variants: Sequence[Variant],
    *,
    repeats: int,
    seed: int,
    say: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """A row for each variant, in their order."""
    names = [variant.key for variant in variants]
    assert len(set(names)) == len(names), f"two variants have one name: {names}"
    order = random.Random(seed)
    samples: list[Sample] = []
    for number in range(ROUNDS_MAX_FACTOR * repeats + 1):
        turn = order.sample(list(variants), len(variants))
        taken = [_measure(variant, number) for variant in turn]
        if number:
            samples += taken
            dropped = sum(sample.dropped is not None for sample in taken)
            say(f"round {number}" + (f", {dropped} samples do not count" if dropped else ""))
        if complete(samples, names, repeats):
            break
    return [_row(variant, samples) for variant in variants]


def _row(variant: Variant, samples: Sequence[Sample]) -> Row:
    return Row(
        name=variant.name,
        kind=variant.kind,
        note=variant.note,
        bytes=variant.bytes,
        x=variant.x,
        samples=tuple(sample for sample in samples if sample.variant == variant.key),
    )


def _measure(variant: Variant, number: int) -> Sample:
    if variant.before is not None:
        variant.before()
    gc.collect()
    settle()
    with guarded() as foreign:
        read_before = bytes_read_from_disk()
        began = time.perf_counter()
        figures = dict(variant.act() or {})
        seconds = time.perf_counter() - began
        read = bytes_read_from_disk() - read_before
    if variant.after is not None:
        variant.after()
    dropped = "others used the machine" if foreign.noisy else None
    if read < COLD_SHARE_MIN * variant.cold_bytes:
        dropped = "not cold"
    return Sample(
        variant=variant.key,
        round=number,
        seconds=figures.pop(SECONDS, seconds),
        foreign_s=foreign.seconds,
        dropped=dropped,
        extra=figures,
    )
