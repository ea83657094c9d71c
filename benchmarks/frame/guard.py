"""Whose processor time it was: a sample during which others used the machine does not count.

Foreign is what /proc/stat says was busy or stolen, less this process, its descendants and the
kernel's own threads (they write back what a sample wrote). Clock ticks are the unit, so that very
short samples cannot be judged: for those the run's total stands in the results.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
FOREIGN_SHARE_MAX = 0.1
"""Of one processor. Runs with more than that beside them differed by 10 % and more."""
FOREIGN_FLOOR_S = 3 / TICKS_PER_S
"""Below a few ticks nothing can be said."""
_KTHREADD = 2


@dataclass(slots=True)
class Foreign:
    """Filled when the guarded block ends."""

    wall_s: float = 0.0
    seconds: float = 0.0

    @property
    def noisy(self) -> bool:
        return is_noisy(self.seconds, self.wall_s)


def is_noisy(foreign_s: float, wall_s: float) -> bool:
    return foreign_s > max(FOREIGN_FLOOR_S, FOREIGN_SHARE_MAX * wall_s)


def busy_seconds(stat_line: str) -> float:
    """The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal."""
    values = [int(word) for word in stat_line.split()[1:9]]
    return sum(values[index] for index in (0, 1, 2, 7)) / TICKS_PER_S


def process_seconds(stat: str) -> tuple[int, float]:
    """Parent and processor time, reaped children included, out of /proc/PID/stat."""
    fields = stat[stat.rindex(")") + 2 :].split()
    return int(fields[1]), sum(int(word) for word in fields[11:15]) / TICKS_PER_S


@contextmanager
def guarded() -> Iterator[Foreign]:
    """Measures the block; its own reading of /proc lies outside."""
    found = Foreign()
    before = _foreign_so_far()
    began = time.perf_counter()
    try:
        yield found
    finally:
        found.wall_s = time.perf_counter() - began
        found.seconds = max(0.0, _foreign_so_far() - before)


def _foreign_so_far() -> float:
    table = _processes()
    mine = _descendants(os.getpid(), {pid: parent for pid, (parent, _) in table.items()})
    kernel = {pid for pid, (parent, _) in table.items() if _KTHREADD in (pid, parent)}
    known = sum(table[pid][1] for pid in mine | _only_kernel(kernel, table))
    with open("/proc/stat", encoding="ascii") as file:
        return busy_seconds(file.readline()) - known


def _only_kernel(candidates: set[int], table: dict[int, tuple[int, float]]) -> set[int]:
    """In a container process 2 is somebody's: kernel threads have no memory map, and no parent."""
    if table.get(_KTHREADD, (1, 0.0))[0] != 0 or os.path.exists(f"/proc/{_KTHREADD}/exe"):
        return set()
    return candidates


def _descendants(root: int, parents: dict[int, int]) -> set[int]:
    found = {root} & parents.keys()
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _processes() -> dict[int, tuple[int, float]]:
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    table[int(name)] = process_seconds(file.read())
            except OSError:
                continue  # it ended meanwhile
    return table
