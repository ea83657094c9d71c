"""Explores the units of a plan, each in a process of its own, and keeps what they found.

Contract: at any moment this process and all that it started may be killed; what is lost are the
units in progress. A process that dies by itself is an error and no result. Sources that change
meanwhile end it, as a unit's process reads them when it begins.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.crash.crashes import Report
from tests.crash.kept import Kept, KeptError, sources_digest
from tests.crash.units import Plan, Unit, explore, merged

Tell = Callable[[str, int], None]
"""Takes a line, and how many states there are by now."""
_OTHER_SOURCES = 3


def explore_kept(plan: Plan, directory: Path, *, processes: int, tell: Tell) -> list[Report]:
    """What is not done yet, then the reports of all of it, one a scenario."""
    kept = Kept(directory)
    with kept.opened(plan):
        units = plan.units()
        progress = _Progress(units, kept, tell)
        _Running(kept, processes).explore([unit for unit in units if not kept.has(unit)], progress)
        return merged(kept.report(unit) for unit in units)


class _Progress:
    """Lines that say how far it is."""

    def __init__(self, units: Sequence[Unit], kept: Kept, tell: Tell) -> None:
        self._kept = kept
        self._tell = tell
        self._count = len(units)
        self._done = self._states = self._now = 0
        self._left = sum(unit.states for unit in units)
        self._distinct: set[bytes] = set()
        self._wrong = 0
        self._began = time.monotonic()
        for unit in units:
            if kept.has(unit):
                self._add(unit)
        if self._done:
            tell(f"goes on: {self._counts()}", self._states)

    def ended(self, unit: Unit) -> None:
        self._now += self._add(unit)
        rate = self._now / max(time.monotonic() - self._began, 1e-9)
        minutes = round(self._left / rate / 60) if rate else 0
        self._tell(
            f"{self._counts()}, {rate:.0f} states/s, about {minutes // 60} h {minutes % 60:02} min "
            f"left; last {unit.name}",
            self._states,
        )

    def _add(self, unit: Unit) -> int:
        report = self._kept.report(unit)
        states = report.states.total()
        self._done += 1
        self._states += states
        self._left -= unit.states
        self._distinct |= report.distinct
        self._wrong += len(report.findings)
        return states

    def _counts(self) -> str:
        return (
            f"{self._done} of {self._count} units, {self._states} states, "
            f"{len(self._distinct)} distinct images, {self._wrong} wrong"
        )


class _Running:
    """So many processes at a time."""

    def __init__(self, kept: Kept, processes: int) -> None:
        self._kept = kept
        self._processes = processes
        self._sources = sources_digest()
        self._running: dict[BaseProcess, Unit] = {}

    def explore(self, units: Sequence[Unit], progress: _Progress) -> None:
        waiting = list(reversed(units))
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._processes:
                    self._start(waiting.pop())
                for unit in self._ended():
                    progress.ended(unit)
        finally:
            for process in self._running:
                process.terminate()
                process.join()

    def _start(self, unit: Unit) -> None:
        context = multiprocessing.get_context("spawn")
        arguments = (unit, self._kept.directory, self._sources)
        process = context.Process(target=_explore_one, args=arguments, daemon=True)
        process.start()
        self._running[process] = unit

    def _ended(self) -> list[Unit]:
        wait([process.sentinel for process in self._running])
        ended = [process for process in self._running if process.exitcode is not None]
        units = []
        for process in ended:
            unit = self._running.pop(process)
            if process.exitcode == _OTHER_SOURCES:
                raise KeptError("the sources have changed meanwhile: a result would be of neither")
            if process.exitcode or not self._kept.has(unit):
                raise KeptError(
                    f"the process of {unit.name} ended with {process.exitcode} and no result: "
                    "call again with the same directory to go on"
                )
            units.append(unit)
        return units


def _explore_one(unit: Unit, directory: Path, sources: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if sources_digest() != sources:
        raise SystemExit(_OTHER_SOURCES)
    Kept(directory).keep(unit, explore(unit))


def _die_with_parent() -> None:
    """A killed exploration leaves no process behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
