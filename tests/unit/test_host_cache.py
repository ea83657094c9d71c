"""The store's memory: a budget that bounds and never blocks, a cache that is never stale (rule 9),
exclusive checkouts, prefetching."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from shardstore import Ref, Store
from shardstore.context import Settings
from shardstore.errors import CorruptionError, PartNotFoundError, StorageError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from tests.support.stores import PARTS, ROOT, commit, content, expected, open_store, values
from tests.support.workers import HeldWorkers

pytestmark = pytest.mark.req("S10")
LARGE = 64 << 20
OBJECT = 3 * 4096
"""Bytes of a part of `wide`: a header, 8,192 bytes of data."""


def settings(budget: int = LARGE, engine: str = "inline", **changes: Any) -> Settings:
    base: dict[str, Any] = {"prewrite_bytes": 32 * 1024, "host_budget_bytes": budget}
    base["io_threads"] = 2 if engine == "threads" else 0
    base["workers"] = HeldWorkers() if engine == "held" else None
    return Settings(**{**base, **changes})


def wide(value: int) -> dict[str, Any]:
    return {"w": np.full(8192, value % 251, np.uint8)}


def commit_wide(store: Store, step: int, count: int, *, asynchronous: bool = False) -> None:
    with store.begin(step) as txn:
        for index in range(count):
            txn.stage(f"s{index}", "p", wide(step + index))
        txn.commit_async() if asynchronous else txn.commit()


def reads(fs: FaultyFileSystem) -> int:
    return fs.counts["open_read"]


# ---------------------------------------------------------------------------- the budget


@pytest.mark.parametrize("engine", ["inline", "held", "threads"])
@pytest.mark.parametrize("budget", [0, 5 * OBJECT, LARGE])
def test_any_budget_does(budget: int, engine: str) -> None:
    with open_store(settings=settings(budget, engine, commits_in_flight=3)) as store:
        for step in range(1, 8):
            commit_wide(store, step, 6, asynchronous=step % 3 != 0)
        for index in range(6):
            with store.load(f"s{index}", "p") as loaded:
                assert (loaded.numpy()["w"] == 7 + index).all()


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_callers_may_hold_more_than_the_budget(engine: str) -> None:
    with open_store(settings=settings(2 * OBJECT, engine)) as store:
        commit_wide(store, 1, 20)
        held = [store.load(f"s{index}", "p") for index in range(20)]
        commit_wide(store, 2, 20, asynchronous=True)
        store.sync()
        with store.begin(3) as txn:
            checkouts = [txn.checkout(f"s{index}", "p") for index in range(20)]
            assert all((c.numpy()["w"] == 2 + i).all() for i, c in enumerate(checkouts))
        for index, loaded in enumerate(held):
            assert (loaded.numpy()["w"] == 1 + index).all()
            loaded.close()


@pytest.mark.req("S14")
@pytest.mark.parametrize("engine", ["held", "threads"])
def test_staging_ahead_stays_within_the_budget(engine: str) -> None:
    """Commits whose data would need twelve times the budget: the oldest writes are waited for."""
    budget = 4 * OBJECT
    with open_store(settings=settings(budget, engine, commits_in_flight=8)) as store:
        for step in range(1, 9):
            commit_wide(store, step, 6, asynchronous=True)
            assert store.host_bytes <= budget + OBJECT
        store.sync()
        assert store.host_bytes <= budget + OBJECT


@pytest.mark.parametrize("engine", ["inline", "held", "threads"])
@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("budget", [0, 10 * OBJECT, LARGE])
def test_the_steady_state_allocates_nothing(budget: int, donate: bool, engine: str) -> None:
    chosen = settings(budget, engine, commits_per_segment=17)
    with open_store(settings=chosen) as store:
        commit_wide(store, 1, 4)
        seen = []
        for step in range(2, 62):
            with store.begin(step) as txn:
                for index in range(4):
                    if donate:
                        checkout = txn.checkout(f"s{index}", "p")
                        checkout.numpy()["w"][...] = step % 251
                        txn.stage(f"s{index}", "p", checkout, donate=True)
                    else:
                        txn.stage(f"s{index}", "p", wide(step + index))
                txn.commit_async() if engine == "held" else txn.commit()
            with store.load("s1", "p") as loaded:
                assert loaded.numpy()["w"][0] == (step if donate else step + 1) % 251
            seen.append(store.host_bytes)
        assert len(set(seen[10:])) == 1, seen


# ---------------------------------------------------------------------------- the cache


def test_what_was_committed_or_loaded_is_served_without_reading() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs, settings=settings()) as store:
        commit(store, 1)
        before = reads(fs)
        assert values(store) == expected(1) and reads(fs) == before
        store.clear_cache()
        assert values(store) == expected(1) and reads(fs) == before + len(PARTS)
        assert values(store) == expected(1) and reads(fs) == before + len(PARTS)
        with store.load("a", "params") as one, store.load("a", "params") as two:
            assert one.raw("w").obj is not two.raw("w").obj
            assert one.numpy()["w"].ctypes.data == two.numpy()["w"].ctypes.data
        buffer = bytearray(store.size_of("a", "params"))
        with store.load("a", "params", into=buffer) as loaded:
            assert int(loaded.numpy()["n"]) == 10
        path = f"{ROOT}/objects/000000.raw"
        data = bytearray(len(buffer))
        fs.open(path, "read").pread(0, data)
        assert buffer == data


@pytest.mark.parametrize("retention", [1, 2])
def test_a_slot_that_was_written_again_is_never_answered_with_what_it_held(retention: int) -> None:
    from shardstore import Retention

    fs = MemoryFileSystem()
    with open_store(fs, settings=settings()) as store:
        store.set_retention(Retention(last=retention))
        for step in range(1, 12):
            commit(store, step)
            for kept in store.kept:
                assert values(store, Ref.seq(kept.seq)) == expected(kept.step)
            if step == 4:
                store.snapshot("four")
            if step == 8:
                store.rewind("four")
                assert values(store) == expected(4)
                store.undo()
        assert values(store, "four") == expected(4)


def test_a_late_reader_cannot_put_back_what_a_slot_held() -> None:
    """The read of an old object ends after its slot was written again."""
    with open_store(settings=settings()) as store:
        commit(store, 1)
        old = store.commit_of().parts, store._find(Ref.head)
        for step in (2, 3, 4):
            commit(store, step)
        store.clear_cache()
        cache, pool = store._session.cache, store._session.pool
        slot = {ref.slot: part for part, ref in store._find(Ref.head).manifest.items()}
        reused = {part: ref for part, ref in old[1].manifest.items() if ref.slot in slot}
        assert reused
        for reference in reused.values():
            with store.load(*slot[reference.slot]) as now:
                buffer = pool.acquire(now._open_buffer().size)
                cache.put(reference, buffer, now.header)
        assert values(store) == expected(4)


def test_views_of_closed_objects_keep_their_bytes() -> None:
    with open_store(settings=settings(2 * OBJECT)) as store:
        commit_wide(store, 1, 2)
        loaded = store.load("s0", "p")
        view = loaded.numpy()["w"]
        loaded.close()
        store.clear_cache()
        for step in range(2, 8):
            commit_wide(store, step, 2)
            store.load("s1", "p").close()
            assert (view == 1).all()


def test_a_checkout_is_exclusive() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs, settings=settings()) as store:
        commit_wide(store, 1, 1)
        with store.load("s0", "p") as loaded, store.begin(2) as txn:
            view = loaded.numpy()["w"]
            checkout = txn.checkout("s0", "p")
            checkout.numpy()["w"][...] = 99
            assert (view == 1).all()
            with store.load("s0", "p") as again:
                assert (again.numpy()["w"] == 1).all()
            txn.stage("s0", "p", checkout, donate=True)
            txn.commit()
            assert (view == 1).all()
        del view
        before = reads(fs)
        with store.begin(3) as txn:  # nobody looks: the cache's own memory is handed out
            with store.load("s0", "p") as now:
                address = now.numpy()["w"].ctypes.data
            checkout = txn.checkout("s0", "p")
            assert checkout.numpy()["w"].ctypes.data == address and reads(fs) == before
            checkout.numpy()["w"][...] = 5
            with store.load("s0", "p") as now:
                assert (now.numpy()["w"] == 99).all()
            assert reads(fs) == before + 1


def test_an_abort_throws_away_what_was_checked_out() -> None:
    with open_store(settings=settings()) as store:
        commit_wide(store, 1, 1)
        for donate in (False, True):
            with store.begin(2) as txn:
                checkout = txn.checkout("s0", "p")
                checkout.numpy()["w"][...] = 99
                if donate:
                    txn.stage("s0", "p", checkout, donate=True)
            with store.load("s0", "p") as loaded:
                assert (loaded.numpy()["w"] == 1).all()


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_a_donated_buffer_that_somebody_can_still_write_to_serves_no_reader(engine: str) -> None:
    with open_store(settings=settings(engine=engine)) as store:
        commit_wide(store, 1, 1)
        with store.begin(2) as txn:
            checkout = txn.checkout("s0", "p")
            view = checkout.numpy()["w"]
            view[...] = 50
            txn.stage("s0", "p", checkout, donate=True)
            txn.commit()
        view[...] = 66  # a broken promise: the store's own copy is on the disk
        with store.load("s0", "p") as loaded:
            assert (loaded.numpy()["w"] == 50).all()


def test_a_failed_commit_leaves_nothing_in_the_cache() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs, settings=settings()) as store:
        commit(store, 1)
        fs.fail("datasync", "*/objects/*")
        with pytest.raises(StorageError):
            commit(store, 2)
        assert values(store) == expected(1)
        assert commit(store, 3).step == 3 and values(store) == expected(3)


# ---------------------------------------------------------------------------- prefetching


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_what_was_prefetched_is_there(engine: str) -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs, settings=settings()) as store:
        commit(store, 1)
    with open_store(fs, settings=settings(engine=engine)) as store:
        assert store.prefetch(PARTS) == 3 and store.prefetch(PARTS) == 3
        assert values(store) == expected(1)
        before = reads(fs)
        assert before <= 3 + 20 and values(store) == expected(1) and reads(fs) == before
        with pytest.raises(PartNotFoundError):
            store.prefetch([("a", "none")])


def test_prefetching_is_bounded() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs, settings=settings(0)) as store:
        commit_wide(store, 1, 9)
    parts = [(f"s{index}", "p") for index in range(9)]
    with open_store(fs, "r", settings=settings(4 * OBJECT)) as store:
        before = reads(fs)
        assert store.prefetch(parts) == 4 and reads(fs) == before + 4
        assert store.host_bytes == 4 * OBJECT
        for index in range(9):
            with store.load(f"s{index}", "p") as loaded:
                assert (loaded.numpy()["w"] == 1 + index).all()
        assert reads(fs) == before + 9
        assert len(store._session._ahead) == 0
    with open_store(fs, "r", settings=settings(0)) as store:
        assert store.prefetch(parts) == 0


def test_prefetching_that_nobody_asks_for_leaves_nothing_behind() -> None:
    with open_store(settings=settings()) as store:
        for step in range(1, 30):
            commit(store, step)
            store.clear_cache()
            store.prefetch(PARTS)
        assert len(store._session._ahead) <= len(PARTS)


@pytest.mark.parametrize("engine", ["inline", "threads"])
@pytest.mark.parametrize("kind", ["refused", "damaged"])
def test_an_error_ahead_is_told_by_the_load(kind: str, engine: str) -> None:
    inner = MemoryFileSystem()
    with open_store(inner, settings=settings()) as store:
        commit(store, 1)
    fs = FaultyFileSystem(inner)
    with open_store(fs, settings=settings(engine=engine)) as store:
        if kind == "damaged":
            inner.open(f"{ROOT}/objects/000000.raw", "write").pwrite(5000, b"\x01\x02\x03")
        else:
            fs.fail("pread", "*/000000.raw", times=None)
        assert store.prefetch(PARTS) == 3
        with pytest.raises((StorageError, CorruptionError)):
            store.load("a", "params")
        fs.clear()
        if kind == "refused":
            assert values(store) == expected(1)


def test_a_load_waits_for_the_prefetch_and_reads_once() -> None:
    gate, fs = threading.Event(), FaultyFileSystem(MemoryFileSystem())
    with open_store(fs, settings=settings()) as store:
        commit(store, 1)
    with open_store(fs, settings=settings(engine="threads")) as store:

        def hold(operation: Operation) -> None:
            if operation.op == "pread" and "/objects/" in operation.path:
                gate.wait()

        fs.before = hold
        before = reads(fs)
        assert store.prefetch(PARTS) == 3
        found: list[dict[Any, int]] = []
        reader = threading.Thread(target=lambda: found.append(values(store)))
        reader.start()
        gate.set()
        reader.join()
        assert found == [expected(1)] and reads(fs) == before + 3


def test_prefetching_while_the_slots_are_written_again_gives_no_stale_bytes() -> None:
    with open_store(settings=settings(engine="threads")) as store:
        commit(store, 1)
        for step in range(2, 40):
            store.clear_cache()
            store.prefetch(PARTS)
            with store.begin(step) as txn:
                for index, (shard, part) in enumerate(PARTS):
                    txn.stage(shard, part, content(step * 10 + index))
                txn.commit_async()
            assert values(store) == expected(step)
