"""Slots as runs of neighbours: one lock covers a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def runs(slots: Iterable[int]) -> Iterator[range]:
    """The slots in ascending order, neighbours together."""
    first = last = -1
    for slot in sorted(set(slots)):
        if slot != last + 1 or first < 0:
            if first >= 0:
                yield range(first, last + 1)
            first = slot
        last = slot
    if first >= 0:
        yield range(first, last + 1)
