"""Commits in flight: their order, what reads see of them, and what a failure among them leaves.

Method: one thread with completions held back shows every state in between; real threads run the
same; faults hit each operation in the background in turn.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shardstore import Ref, Store
from shardstore.context import Settings
from shardstore.errors import (
    PoisonedError,
    ShardStoreError,
    StorageError,
    TransactionError,
)
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.staged import settle
from shardstore.ticket import Ticket
from shardstore.workers import InlineWorkers, Workers
from tests.support.stores import (
    PARTS,
    after_power_cut,
    commit,
    content,
    expected,
    object_files,
    open_store,
    values,
)
from tests.support.workers import HeldWorkers

pytestmark = pytest.mark.req("S14")
ENGINES = ["held", "inline", "threads"]


def settings(engine: str = "held", **changes: Any) -> Settings:
    workers: dict[str, Workers | None] = {"held": HeldWorkers(), "inline": InlineWorkers()}
    changes = {"host_budget_bytes": 0, "prewrite_bytes": 32 * 1024, **changes}
    return Settings(workers=workers.get(engine), io_threads=3, **changes)


def begin_commit(store: Store, step: int, **options: Any) -> Ticket:
    with store.begin(step) as txn:
        for index, (shard, part) in enumerate(PARTS):
            txn.stage(shard, part, content(step * 10 + index))
        return txn.commit_async(**options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_commits_are_made_in_their_order(engine: str, in_flight: int) -> None:
    fs = MemoryFileSystem()
    with open_store(fs, settings=settings(engine, commits_in_flight=in_flight)) as store:
        tickets = [begin_commit(store, step) for step in range(1, 13)]
        made = [ticket.result() for ticket in tickets]
        assert [ticket.step for ticket in tickets] == [c.step for c in made] == list(range(1, 13))
        assert all(ticket.done() for ticket in tickets)
        assert [c.seq for c in made] == sorted(c.seq for c in made)
        assert all(c.durable for c in made)
        assert len(object_files(fs)) <= (2 + 1 + in_flight) * len(PARTS)
    with open_store(after_power_cut(fs), "r") as reader:
        assert reader.head is not None and reader.head.id == made[-1].id
        assert values(reader) == expected(12)


def test_the_oldest_is_waited_for_where_too_many_are_in_flight() -> None:
    held = settings(commits_in_flight=3)
    workers = held.workers
    assert isinstance(workers, HeldWorkers)
    with open_store(settings=held) as store:
        for step, waiting in ((1, 1), (2, 2), (3, 3), (4, 3), (5, 3)):
            begin_commit(store, step)
            assert workers.held == waiting


def test_reads_see_what_is_staged_and_in_flight() -> None:
    fs = MemoryFileSystem()
    with open_store(fs, settings=settings(host_budget_bytes=1 << 20)) as store:
        commit(store, 1)
        ticket = begin_commit(store, 2)
        assert store.head is not None and store.head.step == 2 and not ticket.done()
        assert store.durable_head is not None and store.durable_head.step == 1
        assert values(store) == expected(2) and values(store, Ref.step(1)) == expected(1)
        assert len(store.tensors()) == 2 * len(PARTS)
        with store.begin(3) as txn:
            with txn.load("a", "params") as loaded:
                assert int(loaded.numpy()["n"]) == 20
            changed = txn.checkout("a", "params")
            for array in changed.numpy().values():
                array[...] = 77
            txn.stage("a", "params", changed, donate=True)
            with txn.load("a", "params") as loaded:
                assert int(loaded.numpy()["n"]) == 77
            assert values(store) == expected(2)
            txn.keep_rest()
            assert not ticket.done()
            later = txn.commit_async()
        assert not ticket.done() and values(store)["a", "params"] == 77
        with open_store(fs, "r") as reader:
            assert reader.head is not None and reader.head.step == 1
        assert later.result().step == 3 and ticket.done()
        assert values(store)["a", "params"] == 77


class Blocked(FaultyFileSystem):
    """Writes into objects wait until they are let through."""

    def __init__(self, inner: MemoryFileSystem) -> None:
        super().__init__(inner, before=self._hold)
        self.gate = threading.Event()
        self.gate.set()

    def _hold(self, operation: Operation) -> None:
        if operation.op == "pwrite" and "/objects/" in operation.path:
            self.gate.wait()


@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_an_object_whose_file_is_not_written_yet_can_be_read(budget: int) -> None:
    """The file would be found damaged: the buffer answers, or the write is waited for."""
    fs = Blocked(MemoryFileSystem())
    with open_store(fs, settings=settings("threads", host_budget_bytes=budget)) as store:
        commit(store, 1)
        with store.begin(2) as txn:
            if budget:
                fs.gate.clear()
            txn.stage("a", "params", content(42))
            if not budget:
                fs.gate.clear()
            txn.keep_rest()
            ticket = txn.commit_async()
        if budget:
            assert values(store)["a", "params"] == 42
            assert not ticket.done()
        assert [row.tensor for row in store.tensors()] == ["n", "w"] * 3 or budget == 0
        opener = threading.Timer(0, fs.gate.set)
        opener.start()
        with store.load("a", "params") as loaded:
            assert int(loaded.numpy()["n"]) == 42
        opener.join()
        assert ticket.result().step == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_the_failure_of_one_fails_those_after_it_alone(engine: str) -> None:
    inner = MemoryFileSystem()
    fs = FaultyFileSystem(inner)
    chosen = settings(engine, commits_in_flight=9)
    with open_store(fs, settings=chosen) as store:
        commit(store, 1)
        gate = threading.Event()
        if engine == "threads":  # everything is begun before the first is completed
            store._session.context.workers.complete(gate.wait)
        fs.fail_datasync("*/objects/*", nth=1 + len(PARTS))
        tickets = []
        failure: StorageError | None = None
        for step in (2, 3, 4, 5):
            try:
                tickets.append(begin_commit(store, step))
            except StorageError as error:
                failure = error
                break
        gate.set()
        assert tickets[0].result().step == 2
        for ticket in tickets[1:]:
            with pytest.raises(StorageError) as caught:
                ticket.result()
            assert caught.value is tickets[1]._change.error and failure in (None, caught.value)
        assert store.head is not None and store.head.step == 2
        assert values(store) == expected(2)
        assert commit(store, 6).step == 6
    with open_store(after_power_cut(inner), "r") as reader:
        assert values(reader) == expected(6)


def test_an_error_before_the_record_fails_no_earlier_commit() -> None:
    """The second is found impossible while the first still waits to be completed."""
    with open_store(settings=settings()) as store:
        commit(store, 1)
        first = begin_commit(store, 2)
        with store.begin(3) as txn:
            txn.stage("a", "params", content(1))
            txn.keep_rest()
            broken = next(iter(txn._staged.values()))
            broken.finished = _Broken()
            second = txn.commit_async()
        assert first.result().step == 2
        with pytest.raises(MemoryError):
            second.result()
        assert values(store) == expected(2)
        assert commit(store, 4).step == 4


class _Broken:
    def result(self) -> None:
        raise MemoryError("no room for digests")

    def done(self) -> bool:
        return True

    def give_up(self) -> None:
        """It is over."""


CALLS: dict[str, Callable[[Store], object]] = {
    "begin": lambda store: store.begin(9),
    "head": lambda store: store.head,
    "load": lambda store: store.load("a", "params"),
    "snapshot": lambda store: store.snapshot("s"),
    "sync": lambda store: store.sync(),
    "gc": lambda store: store.gc(),
    "close": lambda store: store.close(),
}


@pytest.mark.parametrize("engine", ["held", "threads"])
@pytest.mark.parametrize("name", CALLS)
def test_a_failure_nobody_was_told_of_is_raised_by_the_next_call_once(
    name: str, engine: str
) -> None:
    inner = MemoryFileSystem()
    fs = FaultyFileSystem(inner)
    store = open_store(fs, settings=settings(engine))
    commit(store, 1)
    files = object_files(inner)
    fs.fail("datasync", "*/objects/*", error=errno.ENOSPC)
    ticket = begin_commit(store, 2)
    if engine == "threads" or name in ("begin", "head", "load"):
        store._session.pipeline.wait(ticket._change)
    with pytest.raises(StorageError, match="space") as caught:
        CALLS[name](store)
    assert caught.value is ticket._change.error
    if name != "close":
        assert store.head is not None and store.head.step == 1 and values(store) == expected(1)
        assert set(files) <= set(object_files(inner))
        store.close()
    with open_store(inner, "r") as reader:
        assert values(reader) == expected(1)


def test_a_failure_told_by_the_ticket_is_not_told_again() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs, settings=settings()) as store:
        commit(store, 1)
        fs.fail("datasync", "*/objects/*")
        ticket = begin_commit(store, 2)
        with pytest.raises(StorageError):
            ticket.result()
        with pytest.raises(StorageError):
            ticket.result()
        assert commit(store, 2).step == 2


@pytest.mark.parametrize("end", ["commit", "commit_async", "stage"])
def test_a_transaction_on_a_commit_that_failed_refuses(end: str) -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs, settings=settings()) as store:
        commit(store, 1)
        fs.fail("datasync", "*/objects/*")
        ticket = begin_commit(store, 2)
        with store.begin(3) as txn:
            txn.stage("a", "params", content(5))
            txn.keep_rest()
            with pytest.raises(StorageError):
                ticket.result()
            with pytest.raises(TransactionError, match="builds on a commit that failed"):
                if end == "stage":
                    txn.stage("b", "params", content(5))
                else:
                    getattr(txn, end)()
        assert store.head is not None and store.head.step == 1
        assert commit(store, 2).step == 2 and values(store) == expected(2)


def test_another_thread_cannot_take_the_failure_from_a_commit_that_depends_on_it() -> None:
    """It is told while the dependent commit is under way: that one must not go on."""
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs, settings=settings()) as store:
        commit(store, 1)
        fs.fail("datasync", "*/objects/*")
        ticket = begin_commit(store, 2)
        with store.begin(3) as txn:
            txn.stage("a", "params", content(5))
            txn.keep_rest()
            make, _ = txn._finish(None, None)  # checked, and not yet begun
            with pytest.raises(StorageError):
                ticket.result()
            store._session.pipeline.surface()
            with pytest.raises(TransactionError, match="builds on a commit that failed"):
                store._session.pipeline.publish(make, list(txn._staged.values()))
        assert values(store) == expected(1)


def test_a_snapshot_waits_for_what_it_names() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    events: list[str] = []

    def note(event: str, _fields: object) -> None:
        events.append(event)

    with open_store(fs, settings=settings(trace=note)) as store:
        commit(store, 1)
        begin_commit(store, 2)
        assert store.snapshot("two").step == 2
        fs.fail("datasync", "*/objects/*")
        ticket = begin_commit(store, 3)
        with pytest.raises(StorageError):
            store.snapshot("three")
        assert events.count("snapshot") == 1, "nothing was written for it"
        assert ticket.done() and [s.name for s in store.snapshots] == ["two"]


def test_closing_finishes_what_is_in_flight() -> None:
    for engine in ENGINES:
        fs = MemoryFileSystem()
        store = open_store(fs, settings=settings(engine, commits_in_flight=4))
        tickets = [begin_commit(store, step) for step in (1, 2, 3)]
        store.close()
        assert all(ticket.result().durable for ticket in tickets)
        with open_store(after_power_cut(fs), "r") as reader:
            assert values(reader) == expected(3)


def test_closing_makes_earlier_commits_durable_though_a_later_one_failed() -> None:
    fs = MemoryFileSystem()
    store = open_store(fs, settings=settings(durability="deferred", commits_in_flight=4))
    begin_commit(store, 1)
    begin_commit(store, 2)
    with store.begin(3) as txn:
        txn.stage("a", "params", content(1))
        txn.keep_rest()
        next(iter(txn._staged.values())).finished = _Broken()
        txn.commit_async()
    assert store.durable_head is None
    with pytest.raises(MemoryError):
        store.close()
    with open_store(after_power_cut(fs), "r") as reader:
        assert values(reader) == expected(2)


class BackgroundFault:
    """Fails the n-th operation of a commit that was begun: on its threads, or held back."""

    def __init__(self, inner: MemoryFileSystem, code: int) -> None:
        self.fs = FaultyFileSystem(inner, before=self._count)
        self.code = code
        self.left = 0
        self.hit: Operation | None = None
        self._mutex = threading.Lock()

    def _count(self, operation: Operation) -> None:
        with self._mutex:
            self.left -= 1
            if self.left:
                return
            self.hit = operation
        raise OSError(self.code, os.strerror(self.code), operation.path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("durability", ["commit", "deferred"])
def test_a_refusal_of_any_operation_in_the_background(
    engine: str, code: int, durability: Any
) -> None:
    """Three commits, the second over a roll: the error comes out, and no step is mixed or lost."""
    image = MemoryFileSystem()
    chosen: dict[str, Any] = {"commits_per_segment": 4, "durability": durability, "sync_every": 3}
    with open_store(image, settings=settings(engine, **chosen)) as store:
        commit(store, 1)
    for nth in range(1, 400):
        inner = image.clone()
        fault = BackgroundFault(inner, code)
        store = open_store(fault.fs, settings=settings(engine, **chosen))
        commit(store, 2)
        commit(store, 3)
        fault.left = nth
        raised = _go_on(store, [4, 5, 6])
        place = f"operation {nth}: {fault.hit}, {raised!r}"
        fault.left = 0
        if fault.hit is None:
            assert nth > 20 and raised is None
            store.close()
            return
        poisoned = store._session.context.is_poisoned
        if not poisoned:
            assert store.head is not None and values(store) == expected(store.head.step), place
            commit(store, 7)
            assert values(store) == expected(7), place
        try:
            store.close()
        except ShardStoreError as error:
            assert raised is not None and poisoned, (place, error)
        assert store.durable_head is not None
        least = store.durable_head.step if poisoned else 7
        for left, at_least in ((inner.kill(), max(3, least)), (after_power_cut(inner), least)):
            with open_store(left, settings=settings(engine, **chosen)) as again:
                assert again.head is not None
                step = again.head.step
                assert at_least <= step <= (6 if poisoned else 7), place
                assert values(again) == expected(step), place
    raise AssertionError("the commits have no end")


def _go_on(store: Store, steps: list[int]) -> ShardStoreError | None:
    """Begin commits until one refuses, then wait for all; the first error."""
    first: ShardStoreError | None = None
    tickets: list[Ticket] = []
    for step in steps:
        try:
            tickets.append(begin_commit(store, step))
        except (StorageError, PoisonedError) as error:
            first = first or error
            break
    for ticket in tickets:
        try:
            ticket.result()
        except (StorageError, PoisonedError) as error:
            first = first or error
    return first


@pytest.mark.timeout(120)
def test_threads_load_while_another_commits() -> None:
    """Every load is one step whole, or says that the step moved on."""
    from shardstore.errors import StepMovedOnError

    chosen = settings("threads", host_budget_bytes=8 << 20, commits_per_segment=7)
    with open_store(settings=chosen) as store:
        commit(store, 1)
        over = threading.Event()
        seen: list[list[int]] = [[], []]
        wrong: list[BaseException] = []

        def read(found: list[int]) -> None:
            try:
                while not over.is_set():
                    try:
                        with store.load("b", "params") as loaded:
                            arrays = loaded.numpy()
                            assert (arrays["w"] == arrays["n"]).all()
                            found.append(int(arrays["n"]))
                        store.prefetch([("a", "params"), ("a", "optim")])
                        assert store.head is not None
                    except StepMovedOnError:
                        continue
            except BaseException as error:
                wrong.append(error)

        readers = [threading.Thread(target=read, args=(found,)) for found in seen]
        for reader in readers:
            reader.start()
        for step in range(2, 120):
            begin_commit(store, step)
        store.sync()
        over.set()
        for reader in readers:
            reader.join()
        assert not wrong, wrong
        for found in seen:
            assert found == sorted(found) and set(found) <= {s * 10 + 2 for s in range(1, 120)}


def test_a_slot_is_not_freed_twice_where_a_transaction_begins_while_a_commit_lands() -> None:
    """Beginning looks for slots that nobody has; those of a landing commit are about to be freed.
    Freed twice, one of them would be written while the head is in it."""
    landing, begun = threading.Event(), threading.Event()
    holds = False

    def note(event: str, _fields: object) -> None:
        if event == "slot_freed" and holds:
            landing.set()
            begun.wait()

    with open_store(MemoryFileSystem(), settings=settings("threads", trace=note)) as store:
        for step in (1, 2, 3):
            commit(store, step)
        holds = True
        ticket = begin_commit(store, 4)
        landing.wait()
        with store.begin(5) as txn:
            for index, part in enumerate(PARTS):
                txn.stage(*part, content(50 + index))
            for staged in store._session.staging.out():
                settle(staged)  # in a slot
            begun.set()
            ticket.result()
            txn.commit()
        holds = False
        free = [slot for pool in store._session.slots._free.values() for slot in pool]
        assert len(free) == len(set(free))
        assert not set(free) & store._session.pipeline.protocol.needed()
        commit(store, 6)
        store.clear_cache()
        assert values(store, Ref.step(5)) == expected(5) and values(store) == expected(6)
