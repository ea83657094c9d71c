"""A disk without room and a disk with errors, at each operation; and the places of test_places.

On the disk under test the file system's seam refuses the operations in turn, until an action makes
no more of them; real small file systems, limits and read-only mounts are those of
tests/crash/test_places, as far as permitted, for which some of the time is kept.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from shardstore import Store
from shardstore.errors import PoisonedError, ShardStoreError, StorageError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.fs.posix import PosixFileSystem
from tests.crash.real_store import SETTINGS, Seen, Wrong, commit, judge, look
from tests.support.permitted import mount_refusal
from tools.lab.part import Lab, Outcome, guarded
from tools.lab.suites import run_suite

MISSES = 2 * SETTINGS.commits_per_segment
"""Trials in a row that reached no such operation: the longest commits, which begin a segment, were
among them."""
PLACES_SECONDS = 15.0
"""What the small file systems take here; no more than half of the time is kept for them."""
NO_RETRY = ("release", "lock")
CODES = (errno.ENOSPC, errno.EIO)
ACTIONS: dict[str, Callable[[Store, int], object]] = {
    "commit": commit,
    "commit that grows the log": lambda store, step: commit(store, step, text="x" * 60_000),
    "snapshot": lambda store, step: store.snapshot(f"s{step}"),
    "publish": lambda store, step: store.publish(f"{store.path}.durable"),
}


class Refusing(FaultyFileSystem):
    """The real file system, which refuses one operation."""

    def __init__(self) -> None:
        super().__init__(PosixFileSystem(), before=self._count)
        self.left, self.code = 0, 0
        self.hit = ""

    def _count(self, operation: Operation) -> None:
        if operation.op in NO_RETRY:
            return
        self.left -= 1
        if self.left == 0:
            self.hit = f"{operation.op} {operation.path}"
            raise OSError(self.code, os.strerror(self.code), operation.path)


def run(lab: Lab) -> Outcome:
    outcome = Outcome(unit="refusals")
    until = lab.until - min(PLACES_SECONDS, lab.seconds / 2)
    bench, draw = Bench(lab.directory), random.Random(lab.seed)
    for name, code, nth in bench.in_turn() if lab.long else bench.drawn(draw):
        if time.monotonic() >= until:
            break
        place = f"{name}, {errno.errorcode[code]} at operation {nth}"
        guarded(outcome, place, bench.refuse, name, code, nth)
        lab.tell(outcome.tried)
    outcome.detail.append(f"I/O error or full disk at {bench.line()}")
    _places(lab, outcome)
    outcome.cannot = mount_refusal() or mount_refusal("ext4")
    return outcome


class Bench:
    """Stores whose operations are refused, a new one now and then."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 0
        self._misses: Counter[tuple[str, int]] = Counter()
        self._hits: dict[str, set[tuple[int, int]]] = {name: set() for name in ACTIONS}

    def drawn(self, draw: random.Random) -> Iterator[tuple[str, int, int]]:
        """Those of each action in a drawn order, the actions in turn, until the time is over."""
        counts = {name: self.refuse(name, 0, 0) for name in ACTIONS}
        while True:
            for name, count in counts.items():
                yield name, draw.choice(CODES), draw.randint(1, count)

    def in_turn(self) -> Iterator[tuple[str, int, int]]:
        """One after the other, until an action makes no more."""
        left, nth = [(name, code) for name in ACTIONS for code in CODES], 0
        while left:
            nth += 1
            for name, code in left:
                yield name, code, nth
            left = [each for each in left if self._misses[each] < MISSES]

    def line(self) -> str:
        """How many operations of each action were refused."""
        return ", ".join(
            f"{len({nth for _, nth in hits})} operations of a {name}"
            for name, hits in self._hits.items()
        )

    def refuse(self, name: str, code: int, nth: int) -> int:
        """One refusal; Wrong where the store is not what it was, or does not go on. Gives how many
        operations there were, where none was refused."""
        root = self._directory / f"run{self._number // 40}"
        step, fs = 10 * self._number + 2, Refusing()
        self._number += 1
        if not root.exists():
            with Store.open(root, "a", settings=SETTINGS) as store:
                commit(store, 1)
                store.publish(f"{root}.durable")
        with Store.open(root, "r", settings=SETTINGS) as store:
            before = look(store)
        after = {"snapshot": before.named(f"s{step}"), "publish": before}
        attempted = after.get(name, before.committed(step))
        allowed: list[Seen] = [before, attempted]
        count = 0
        try:
            with Store.open(root, "r+", fs=fs, settings=SETTINGS) as store:
                fs.left, fs.code = nth, code
                allowed = _act_again(store, name, step, before, attempted)
                count, fs.left = nth - fs.left, 0
        except (StorageError, PoisonedError) as error:
            if str(root) not in str(error):
                raise Wrong(f"which store? {error}") from error
        if fs.hit:
            self._hits[name].add((code, nth))
        self._misses[name, code] = 0 if fs.hit else self._misses[name, code] + 1
        judge(str(root), allowed, step + 1)
        return count


def _act_again(store: Store, name: str, step: int, before: Seen, attempted: Seen) -> list[Seen]:
    try:
        ACTIONS[name](store, step)
    except PoisonedError:
        raise
    except ShardStoreError:
        if store._session.context.is_poisoned:
            raise
        if look(store) != before:
            raise Wrong(f"{look(store)} after a refusal, expected {before}") from None
        ACTIONS[name](store, step)
    return [attempted]


def _places(lab: Lab, outcome: Outcome) -> None:
    """The small file systems, as a run of their tests."""
    left = None if lab.long else max(1.0, lab.until - time.monotonic())
    suite = run_suite(["tests/crash/test_places.py"], lab.directory / "places", left)
    outcome.tried += suite.passed
    outcome.detail.append(f"small, limited and read-only places: {suite.line}")
    outcome.wrong += suite.wrong
