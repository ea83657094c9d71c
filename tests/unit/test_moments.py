"""Ctrl-C at any moment, not at operations only: nothing is lost, held twice or left open.

Method: Python looks for signals when a function begins, after each call and at each turn of a loop.
A KeyboardInterrupt is raised at such moments (`tests.support.moments`), one in each run: a seeded
sample of them, all with --long.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardstore import Settings, Store
from shardstore.errors import ShardStoreError
from shardstore.format.names import slot_of
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.posix import PosixFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.workers import InlineWorkers, ThreadWorkers
from tests.support.moments import Moments
from tests.support.stores import (
    PARTS,
    after_power_cut,
    commit,
    content,
    expected,
    values,
)

pytestmark = [pytest.mark.req("S27", "S4", "S14"), pytest.mark.timeout(240)]
SAMPLE = 40


def commits(store: Store) -> None:
    for step in (4, 5):
        commit(store, step)


def in_flight(store: Store) -> None:
    for step in (4, 5):
        with store.begin(step) as txn:
            for index, part in enumerate(PARTS):
                txn.stage(*part, content(step * 10 + index))
            ticket = txn.commit_async()
    ticket.result()


def new_parts(store: Store) -> None:
    """Files are made, a checkout is donated, and all of it is given up."""
    with store.begin(4) as txn:
        txn.stage("new", "part", content(4))
        checkout = txn.checkout("a", "params")
        checkout.numpy()["w"][...] = 3
        txn.stage("a", "params", checkout, donate=True)
        txn.load("b", "params").close()


def names(store: Store) -> None:
    store.snapshot("new")
    with store.pin("new") as view:
        view.load("a", "params").close()
    store.gc(everything=True)


ACTIONS: dict[str, Callable[[Store], object]] = {
    "commits": commits,
    "in flight": in_flight,
    "new parts": new_parts,
    "names": names,
}
ENGINES: dict[str, Callable[[], Any]] = {
    "inline": InlineWorkers,
    "threads": lambda: ThreadWorkers(2),
}


def opened(fs: FileSystem, root: str, workers: Any) -> Store:
    settings = Settings(
        prewrite_bytes=16 * 1024, host_budget_bytes=1 << 20, workers=workers, commits_per_segment=3
    )
    return Store.open(root, "a", fs=fs, settings=settings)


def chosen(total: int, *, every: bool, seed: str) -> list[int]:
    moments = range(1, total + 1)
    if every or total <= SAMPLE:
        return list(moments)
    return sorted(random.Random(seed).sample(moments, SAMPLE))


def interrupted(store: Store, action: Callable[[Store], object], nth: int) -> str:
    """Where the interrupt came; "" where the action ended before."""
    moments = Moments(nth)
    try:
        with moments:
            action(store)
    except KeyboardInterrupt:
        pass
    return moments.place


def check_goes_on(store: Store, fs: FileSystem, root: str, place: str) -> None:
    try:
        head = store.head
    except ShardStoreError:  # a commit in flight that the interrupt hit; told once
        head = store.head
    assert head is not None and values(store) == expected(head.step), place
    for step in (8, 9):
        commit(store, step)
        assert values(store) == expected(step), place
    with store.begin(10):  # what was lost is found where nothing is open
        pass
    session = store._session
    free = [slot for pool in session.slots._free.values() for slot in pool]
    needed = session.pipeline.protocol.needed()
    places = [slot_of(name) for name in fs.list_directory(f"{root}/objects")]
    there = {found[0] for found in places if found is not None}
    assert len(free) == len(set(free)) and not needed & set(free), place
    assert there == needed | set(free), f"{place}: lost {there - needed - set(free)}"
    if isinstance(fs, PosixFileSystem):  # the pretended one keeps what nobody closes
        assert store.pinned_slots() == set(), place
    store.clear_cache()
    gc.collect()
    assert session.pool.lent_bytes == 0, place


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ACTIONS)
def test_an_interrupt_at_any_moment(name: str, engine: str, request: pytest.FixtureRequest) -> None:
    image = MemoryFileSystem()
    with opened(image, "run", InlineWorkers()) as store:
        commit(store, 1)

    def begun() -> tuple[MemoryFileSystem, Store]:
        fs = image.clone()
        store = opened(fs, "run", ENGINES[engine]())
        commit(store, 2)
        commit(store, 3)
        return fs, store

    _, store = begun()
    with Moments() as counted:
        ACTIONS[name](store)
    store.close()
    assert counted.count > SAMPLE
    every = request.config.getoption("--long")
    for nth in chosen(counted.count, every=every, seed=f"{name} {engine}"):
        fs, store = begun()
        place = interrupted(store, ACTIONS[name], nth)
        transaction = store._transaction
        if transaction is not None:
            transaction.abort()
        poisoned = store._session.context.is_poisoned
        if not poisoned:
            check_goes_on(store, fs, "run", place)
        try:
            store.close()
        except ShardStoreError:
            assert poisoned, place
        least = 3 if poisoned else 9
        for left in (fs.kill(), after_power_cut(fs)):
            with opened(left, "run", InlineWorkers()) as again:
                assert again.head is not None and again.head.step >= least, place
                assert values(again) == expected(again.head.step), place
                commit(again, 10)


@pytest.mark.parametrize("name", ACTIONS)
def test_no_descriptor_stays_open_after_an_interrupt(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def begun(root: Path) -> Store:
        store = opened(PosixFileSystem(), str(root), InlineWorkers())
        for step in (1, 2, 3):
            commit(store, step)
        return store

    store = begun(tmp_path / "count")
    with Moments() as counted:
        ACTIONS[name](store)
    store.close()
    every = request.config.getoption("--long")
    picked = chosen(counted.count, every=every, seed=name)
    for nth in picked if every else picked[::3]:
        before = descriptors()
        root = tmp_path / f"run{nth}"
        store = begun(root)
        place = interrupted(store, ACTIONS[name], nth)
        if store._transaction is not None:
            store._transaction.abort()
        if not store._session.context.is_poisoned:
            check_goes_on(store, PosixFileSystem(), str(root), place)
        store.close()
        assert descriptors() == before, place
