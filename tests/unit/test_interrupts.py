"""Ctrl-C anywhere in the caller: the store goes on, or says that only the next opening can tell.

Method: the interrupt is raised at every operation that the caller's thread makes in turn, and at
every wait for a commit in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from shardstore import Ref, Store
from shardstore.context import Settings
from shardstore.errors import ShardStoreError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.jobs import Done, Flag
from shardstore.workers import InlineWorkers, ThreadWorkers
from tests.support.stores import (
    PARTS,
    after_power_cut,
    commit,
    content,
    expected,
    open_store,
    values,
)
from tests.support.workers import HeldWorkers

pytestmark = pytest.mark.req("S14", "S4")


class Interrupted(FaultyFileSystem):
    """Raises KeyboardInterrupt at the n-th operation of the thread that made this."""

    def __init__(self, inner: MemoryFileSystem, *, after: bool) -> None:
        hooks: dict[str, Any] = {"after" if after else "before": self._count}
        super().__init__(inner, **hooks)
        self.left = 0
        self.hit: Operation | None = None
        self._thread = threading.get_ident()

    def _count(self, operation: Operation) -> None:
        if threading.get_ident() != self._thread or operation.op in ("release", "close"):
            return
        self.left -= 1
        if self.left == 0:
            self.hit = operation
            raise KeyboardInterrupt


def stage(store: Store, step: int) -> Any:
    txn = store.begin(step)
    for index, (shard, part) in enumerate(PARTS):
        txn.stage(shard, part, content(step * 10 + index))
    return txn


def commits(store: Store) -> None:
    for step in (4, 5):
        commit(store, step)


def in_flight(store: Store) -> None:
    tickets = []
    for step in (4, 5):
        with stage(store, step) as txn:
            tickets.append(txn.commit_async())
    for ticket in tickets:
        ticket.result()


ACTIONS: dict[str, Callable[[Store], object]] = {
    "commit": commits,
    "in flight": in_flight,
    "snapshot": lambda store: store.snapshot("new"),
    "gc": lambda store: store.gc(everything=True),
    "sync": lambda store: store.sync(),
}
ENGINES: dict[str, Callable[[], Any]] = {
    "inline": InlineWorkers,
    "held": HeldWorkers,
    "threads": lambda: ThreadWorkers(2),
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("durability", ["commit", "deferred"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_at_any_operation(
    name: str, engine: str, durability: Any, after: bool
) -> None:
    image = MemoryFileSystem()

    def opened(fs: Any, workers: Any) -> Store:
        chosen = Settings(
            prewrite_bytes=16 * 1024, host_budget_bytes=0, workers=workers,
            commits_per_segment=3, durability=durability,
        )  # fmt: skip
        return open_store(fs, settings=chosen)

    with opened(image, InlineWorkers()) as store:
        commit(store, 1)
    for nth in range(1, 300):
        inner = image.clone()
        fs = Interrupted(inner, after=after)
        store = opened(fs, ENGINES[engine]())
        commit(store, 2)
        commit(store, 3)
        fs.left = nth
        interrupted = False
        try:
            ACTIONS[name](store)
        except KeyboardInterrupt:
            interrupted = True
        fs.left = 0
        place = f"operation {nth}: {fs.hit}"
        if fs.hit is None:
            store.close()
            assert not interrupted and (nth > 1 or (name, durability) == ("sync", "commit")
                                        or engine == "threads")  # fmt: skip
            return
        transaction = store._transaction
        if transaction is not None:
            transaction.abort()
        poisoned = store._session.context.is_poisoned
        if not poisoned:
            _go_on(store, place)
        try:
            store.close()
        except ShardStoreError:
            assert poisoned, place
        assert store.durable_head is not None
        least = store.durable_head.step if poisoned else 9
        for left, at_least in ((inner.kill(), max(3, least)), (after_power_cut(inner), least)):
            with opened(left, InlineWorkers()) as again:
                assert again.head is not None and again.head.step >= at_least, place
                assert values(again) == expected(again.head.step), place
                commit(again, 10)
                assert values(again) == expected(10), place
    raise AssertionError("the action has no end")


def _go_on(store: Store, place: str) -> None:
    try:
        head = store.head
    except ShardStoreError:  # a commit in flight that the interrupt hit; told once
        head = store.head
    assert head is not None and values(store) == expected(head.step), place
    for step in (8, 9):
        commit(store, step)
        assert values(store) == expected(step), place
    needed = store._session.pipeline.protocol.needed()
    free = [slot for kind in store._session.slots._free.values() for slot in kind]
    assert len(free) == len(set(free)) and not needed & set(free), place


class Impatient(HeldWorkers):
    """Raises KeyboardInterrupt at the n-th wait, before or after what was waited for."""

    def __init__(self, nth: int, *, after: bool) -> None:
        super().__init__()
        self.left = nth
        self.after = after

    def wait(self, flag: Flag) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise KeyboardInterrupt
        super().wait(flag)
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("nth", range(1, 25))
def test_an_interrupt_at_any_wait(nth: int, after: bool) -> None:
    fs = MemoryFileSystem()
    workers = Impatient(nth, after=after)
    chosen = Settings(prewrite_bytes=16 * 1024, host_budget_bytes=0, workers=workers,
                      commits_per_segment=4)  # fmt: skip
    store = open_store(fs, settings=chosen)
    for step in range(1, 8):
        try:
            with stage(store, step) as txn:
                txn.commit_async()
            assert store.head is not None
        except KeyboardInterrupt:
            continue
    try:
        store.sync()
        store.close()
    except KeyboardInterrupt:
        store.close()
    with open_store(after_power_cut(fs), "r") as reader:
        assert reader.head is not None and reader.head.step >= 6
        assert values(reader) == expected(reader.head.step)


class Submitting(HeldWorkers):
    """Raises KeyboardInterrupt when a commit is handed over: before it was taken, after, or while
    the finishing thread is still busy."""

    armed = False

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when

    def finish(self, call: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        if getattr(call, "__name__", "") == "_prepare_in_flight":
            if self.when == "busy":
                self._held.append((call, args))
            elif self.when == "after" and self.armed:
                super().io(call, *args)
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt
            if self.when == "busy":
                return Done()
        return super().io(call, *args)


@pytest.mark.parametrize("when", ["before", "after", "busy"])
def test_an_interrupt_while_a_commit_is_handed_over(when: str) -> None:
    """The transaction does not know whether it ended; its objects belong to the commit."""
    workers = Submitting(when)
    chosen = Settings(prewrite_bytes=16 * 1024, host_budget_bytes=1 << 20, workers=workers)
    with open_store(settings=chosen) as store:
        commit(store, 1)
        workers.armed = True
        with pytest.raises(KeyboardInterrupt), stage(store, 2) as txn:
            txn.commit_async()
        assert store.head is not None and store.head.step == 2
        assert values(store) == expected(2)
        commit(store, 3)
        store.clear_cache()
        assert values(store) == expected(3) and values(store, Ref.step(2)) == expected(2)
