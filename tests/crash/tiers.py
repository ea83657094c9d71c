"""Two stores on one memory file system: crashes while one is copied to the other.

The judged store is the durable one, or the clone; the active one beside it is only worked on, and
is there again after every crash. Where a crash left no copy the next start makes it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardstore.errors import CorruptionError, ShardStoreError
from shardstore.format.names import RAW
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.history import read_history
from shardstore.store import Store
from shardstore.tiers import open_active
from tests.crash.ghost import EMPTY, PART, GhostState
from tests.crash.oracle import ROOT, Observed, Violation, match, observe
from tests.crash.world import SETTINGS, World, has_store, tensors

ACTIVE = "/active"


class TierWorld(World):
    """A world with an active store beside it; `ahead` is where that one is."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ahead: GhostState = EMPTY
        self._active: Store | None = None
        self._rules("copy")

    @property
    def active(self) -> Store:
        if self._active is None:
            self._active = Store.open(ACTIVE, "a", fs=self.faulty, settings=SETTINGS)
        return self._active

    def close(self) -> None:
        super().close()
        active, self._active = self._active, None
        if active is not None:
            active.close()

    def open(self, storage_format: str = RAW, *, create: bool = False) -> Observed:
        if not has_store(self.fs):
            self._copy_again()
        return super().open(storage_format, create=create)

    @staticmethod
    def _trained(state: GhostState, *stage: str) -> GhostState:
        step = state.head.step + 1 if state.head else 1
        return state.committed(step, "", stage, ())

    def train(self, *stage: str) -> None:
        """The next step of the active store."""
        step = self.ahead.head.step + 1 if self.ahead.head else 1
        with self.active.begin(step) as txn:
            for shard in stage:
                txn.stage(shard, PART, tensors(shard, step, ""))
            txn.keep_rest()
            txn.commit({"flavour": ""})
        self.ahead = self._trained(self.ahead, *stage)

    def name(self, name: str) -> None:
        self.active.snapshot(name)
        self.ahead = self.ahead.named(name)

    def go_back(self, name: str) -> None:
        self.active.rewind(name)
        self.ahead = self.ahead.rewound(name)

    def forget(self, name: str) -> None:
        self.active.delete(name)
        self.ahead = self.ahead.deleted(name)

    def publish(self) -> None:
        self._copy(replace(self.ahead, previous=self.state.head), self.active.publish)

    def clone(self) -> None:
        self._copy(self.ahead, self.active.clone)

    def lose(self) -> None:
        """The RAM disk is gone."""
        self.fs.rename(ACTIVE, f"{ACTIVE}.lost")

    def start(self) -> None:
        """A start of the two tiers, of which the durable one is not open: whatever the active one
        was, it holds what the durable one does afterwards, and at most the work of
        `start_and_publish` that a crash kept from being published."""
        self.close()
        self._rules("copy")
        try:
            self._active = open_active(ACTIVE, ROOT, fs=self.faulty, settings=SETTINGS)
        except ShardStoreError as error:
            raise Violation(f"cannot be started: {type(error).__name__}: {error}") from error
        found = observe(self._active)
        first, second = self._trained(self.state, "a", "b"), self._trained(self.state, "a")
        self.ahead = match((self.state, first, second, self._trained(first, "a")), found)

    def _copy(self, after: GhostState, act: Callable[[str], object]) -> None:
        with self._attempt(after):
            act(ROOT)

    def _copy_again(self) -> None:
        self.faulty = FaultyFileSystem(self.fs)
        self._rules("copy")
        try:
            with Store.open(ACTIVE, "r+", fs=self.faulty, settings=SETTINGS) as active:
                active.publish(ROOT)
        except ShardStoreError as error:
            raise Violation(f"cannot be copied again: {error}") from error


def check_told(world: World) -> None:
    """The history in the durable store is whole: every record from the first commit on, once."""
    try:
        told = [entry.seq for entry in read_history(world.fs, ROOT)]
        steps = {entry.step for entry in read_history(world.fs, ROOT)}
    except CorruptionError as error:
        raise Violation(str(error)) from error
    head = world.state.head
    assert head is not None
    if steps < set(range(1, head.step + 1)) or len(told) != len(set(told)):
        raise Violation(f"the history tells steps {sorted(steps, key=str)}, records {told}")


def started(world: World) -> None:
    """An active store that is ahead of nothing yet; crashes begin with the first copy."""
    assert isinstance(world, TierWorld)
    world.train("a", "b")
    world.name("s1")
    world.train("a")


def started_tiers(world: World) -> None:
    """Published twice, so that the next publication writes into slots that were freed."""
    assert isinstance(world, TierWorld)
    started(world)
    world.publish()
    for _ in range(3):
        world.train("a", "b")
        world.publish()


def publish(world: World) -> None:
    assert isinstance(world, TierWorld)
    world.train("a")
    world.name("s2")
    world.train("a", "b")
    world.publish()
    world.go_back("s2")
    world.train("b")
    world.forget("s1")
    world.publish()
    check_told(world)


def first_publication(world: World) -> None:
    assert isinstance(world, TierWorld)
    world.publish()


def clone(world: World) -> None:
    assert isinstance(world, TierWorld)
    world.clone()


def start(world: World) -> None:
    """Once without an active store; once with one that is behind, which is set aside."""
    assert isinstance(world, TierWorld)
    world.lose()
    world.start()
    world.close()
    world.open()
    world.commit("a", "b")
    world.start()


def start_and_publish(world: World) -> None:
    """After a crash: the next start, and work that is published."""
    assert isinstance(world, TierWorld)
    world.start()
    world.train("a", "b")
    world.publish()
    world.train("a")
    world.publish()
    check_told(world)


def work_and_history(world: World) -> None:
    """After a crash: the history is whole; the store goes on by itself."""
    check_told(world)
    world.commit("a", "b")
    world.commit("a")
    world.check()
    check_told(world)
