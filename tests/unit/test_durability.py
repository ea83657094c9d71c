"""Deferred durability: what survives a power cut and a kill, and which slots stay untouched."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from shardstore import Ref, Store
from shardstore.context import Settings
from shardstore.errors import PoisonedError, StorageError, UsageError
from shardstore.format.names import slot_file
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from tests.support.stores import (
    PARTS,
    ROOT,
    after_power_cut,
    commit,
    content,
    expected,
    object_files,
    open_store,
    values,
)
from tests.support.workers import HeldWorkers

pytestmark = pytest.mark.req("S15")


def deferred(**changes: Any) -> Settings:
    base: dict[str, Any] = {"host_budget_bytes": 0, "prewrite_bytes": 32 * 1024}
    return Settings(**{**base, "durability": "deferred", **changes})


def step_after_power_cut(fs: MemoryFileSystem) -> int | None:
    with open_store(after_power_cut(fs), "r") as reader:
        head = reader.head
        if head is not None:
            assert values(reader) == expected(head.step)
        return None if head is None else head.step


def step_after_kill(fs: MemoryFileSystem) -> int | None:
    with open_store(fs.kill(), "r+") as store:
        if store.head is not None:
            assert values(store) == expected(store.head.step)
        return None if store.head is None else store.head.step


def test_a_commit_survives_its_process_and_sync_makes_it_durable() -> None:
    fs = MemoryFileSystem()
    with open_store(fs, settings=deferred()) as store:
        assert not commit(store, 1).durable and store.durable_head is None
        assert (step_after_power_cut(fs), step_after_kill(fs)) == (None, 1)
        store.sync()
        head = store.head
        assert head is not None and head.durable and store.durable_head == head
        assert step_after_power_cut(fs) == 1
        commit(store, 2)
        assert (step_after_power_cut(fs), step_after_kill(fs)) == (1, 2)
        with open_store(fs, "r") as reader:
            assert reader.head is not None and reader.durable_head is not None
            assert (reader.head.step, reader.durable_head.step) == (2, 1)
            assert not reader.head.durable and reader.durable_head.durable
            store.sync()
            reader.refresh()
            assert reader.durable_head == reader.head
    assert step_after_power_cut(fs) == 2


def test_sync_writes_nothing_where_everything_is_durable() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs, settings=deferred()) as store:
        store.sync()
        commit(store, 1)
        store.sync()
        before = fs.counts.copy()
        store.sync()
        assert fs.counts == before


def test_a_deferred_commit_syncs_nothing() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs, settings=deferred()) as store:
        for step in (1, 2, 3):
            commit(store, step)
        before = fs.counts.copy()
        commit(store, 4)
        assert fs.counts["datasync"] == before["datasync"]
        assert fs.counts["sync_directory"] == before["sync_directory"]


@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize("how", ["commit", "in flight"])
def test_every_so_many_commits_one_is_durable(every: int, how: str) -> None:
    fs = MemoryFileSystem()
    chosen = deferred(sync_every=every, workers=HeldWorkers(), commits_in_flight=4)
    with open_store(fs, settings=chosen) as store:
        made = []
        for step in range(1, 13):
            if how == "commit":
                made.append(commit(store, step).durable)
                continue
            with store.begin(step) as txn:
                txn.stage("a", "params", content(step))
                txn.commit_async()
        if how != "commit":
            store._session.pipeline.drain()
            made = [record["durable"] for record in _commits(fs)]
        assert made == [step % every == 0 for step in range(1, 13)]


def _commits(fs: MemoryFileSystem) -> list[Any]:
    from shardstore.wal.reader import read_log

    return [r.body for r in read_log(fs, ROOT).records if r.body["type"] == "commit"]


REFS: dict[str, Callable[[Store], object]] = {
    "snapshot": lambda store: store.snapshot("s"),
    "branch": lambda store: store.branch("other"),
    "switch": lambda store: (store.branch("other"), store.switch("other")),
    "rewind": lambda store: store.rewind("old"),
    "delete": lambda store: store.delete("old"),
    "undo": lambda store: store.undo(),
    "gc": lambda store: store.gc(),
    "close": lambda store: store.close(),
}


@pytest.mark.parametrize("name", REFS)
def test_refs_gc_and_close_make_everything_durable(name: str) -> None:
    fs = MemoryFileSystem()
    store = open_store(fs, settings=deferred())
    commit(store, 1)
    store.snapshot("old")
    store.snapshot("gone")
    store.delete("gone")
    commit(store, 2)
    commit(store, 3)
    assert step_after_power_cut(fs) == 1
    REFS[name](store)
    with open_store(after_power_cut(fs), "r") as reader:
        assert reader.head is not None and reader.head.step == (1 if name == "rewind" else 3)
        assert values(reader, Ref.step(3)) == expected(3)
    store.close()


def _durable_files(store: Store, fs: MemoryFileSystem) -> dict[str, bytes]:
    found = {}
    for slot in sorted(store._session.durable_state.needed()):
        path = f"{ROOT}/{slot_file(slot, 'raw')}"
        data = bytearray(fs.stat(path).size)
        fs.open(path, "read").pread(0, data)
        found[path] = bytes(data)
    return found


@pytest.mark.parametrize("engine", ["inline", "held", "threads"])
def test_what_the_last_durable_step_needs_is_never_written_before_a_newer_one_is(
    engine: str,
) -> None:
    """Watched from below: no write into a slot that a power cut now would need."""
    inner = MemoryFileSystem()
    chosen = deferred(
        sync_every=7, commits_per_segment=5, io_threads=2 if engine == "threads" else 0,
        workers=HeldWorkers() if engine == "held" else None,
    )  # fmt: skip
    fs = FaultyFileSystem(inner)
    with open_store(fs, settings=chosen) as store:
        wrong: list[str] = []

        def watch(operation: Operation) -> None:
            if operation.op == "pwrite" and "/objects/" in operation.path:
                slot = int(operation.path.rpartition("/")[2].partition(".")[0], 16)
                protocol = store._session.pipeline.protocol
                if slot in protocol.durable.needed() | protocol.tail.needed():
                    wrong.append(str(operation))

        fs.before = watch
        for step in range(1, 40):
            with store.begin(step) as txn:
                for index, (shard, part) in enumerate(PARTS):
                    txn.stage(shard, part, content(step * 10 + index))
                txn.commit_async()
            if step % 11 == 0:
                store.snapshot(f"s{step}")
        store.sync()
        assert not wrong
        # the durable set, two kept ones, two in flight, snapshots with their manifests
        assert len(object_files(inner)) <= (1 + 2 + 2 + 3 + 3) * len(PARTS) + 4


@pytest.mark.parametrize("fault", ["no room for the segment", "not visible yet"])
def test_a_roll_frees_nothing_before_the_new_segment_says_that_the_tail_is_durable(
    fault: str,
) -> None:
    """No record of the old segment says so: a power cut takes the store to the last durable one."""
    inner = MemoryFileSystem()
    fs = FaultyFileSystem(inner)
    with open_store(fs, settings=deferred(commits_per_segment=6)) as store:
        commit(store, 1)
        store.sync()
        for step in range(2, 7):
            commit(store, step)
        if fault == "not visible yet":
            seen: list[int | None] = []

            def watch(operation: Operation) -> None:
                if operation.op == "rename":
                    needed = store._session.pipeline.protocol.needed()
                    free = {s for kind in store._session.slots._free.values() for s in kind}
                    seen.append(len(needed & free))
                    seen.append(step_after_power_cut(inner))

            fs.before = watch
            commit(store, 7)
            assert seen == [0, 1]
            return
        fs.fail("open_create", "*/wal/tmp", error=errno.ENOSPC, times=None)
        for step in range(7, 12):
            commit(store, step)
            assert step_after_power_cut(inner) == 1
            assert step_after_kill(inner) == step
        fs.clear()


def test_a_failed_sync_of_a_slot_in_the_log_poisons() -> None:
    inner = MemoryFileSystem()
    fs = FaultyFileSystem(inner)
    store = open_store(fs, settings=deferred())
    commit(store, 1)
    store.sync()
    commit(store, 2)
    fs.fail_datasync("*/objects/*")
    with pytest.raises(PoisonedError):
        store.sync()
    with pytest.raises(PoisonedError):
        commit(store, 3)
    store.close()
    assert step_after_power_cut(inner) == 1


def test_an_early_sync_that_failed_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are synced early where too many are open; the bytes of a failed one are unknown."""
    monkeypatch.setattr("shardstore.slot_files.OPEN_FILES_MAX", 4)
    inner = MemoryFileSystem()
    fs = FaultyFileSystem(inner)
    store = open_store(fs, settings=deferred())
    commit(store, 1)
    store.sync()
    fs.fail_datasync("*/objects/*")
    for step in (2, 3):
        commit(store, step)
    assert fs.rules[0].hits == 1
    with pytest.raises(PoisonedError):
        store.sync()
    store.close()
    assert step_after_power_cut(inner) == 1


def test_an_early_sync_that_failed_before_the_commit_aborts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shardstore.slot_files.OPEN_FILES_MAX", 2)
    inner = MemoryFileSystem()
    fs = FaultyFileSystem(inner)
    with open_store(fs, settings=Settings(host_budget_bytes=0)) as store:
        commit(store, 1)
        fs.fail_datasync("*/objects/*")
        with pytest.raises(StorageError):
            commit(store, 2)
        assert values(store) == expected(1)
        commit(store, 3)
    assert step_after_power_cut(inner) == 3


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_killed_with_the_tail_undurable_then_cut_off(engine: str) -> None:
    """The opening makes durable what it chose before anything is written."""
    fs = MemoryFileSystem()
    store = open_store(fs, settings=deferred(io_threads=2 if engine == "threads" else 0))
    for step in (1, 2, 3):
        commit(store, step)
    killed = fs.kill()
    with open_store(killed, "r+", settings=deferred()) as again:
        assert again.durable_head is not None and again.durable_head.step == 3
        assert step_after_power_cut(killed) == 3
    store.close()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"durability": "sometimes"}, "durability is 'sometimes'"),
    ({"durability": None}, "durability"),
    ({"sync_every": 0}, "sync_every is 0"),
    ({"sync_every": 2.5}, "sync_every is 2.5"),
    ({"host_budget_bytes": -1}, "host_budget_bytes is -1"),
    ({"io_threads": -1}, "io_threads is -1"),
    ({"io_threads": True}, "io_threads is True"),
    ({"piece_bytes": 0}, "piece_bytes is 0"),
    ({"piece_bytes": 5000}, "piece_bytes is 5000"),
    ({"commits_in_flight": 0}, "commits_in_flight is 0"),
    ({"prewrite_bytes": -4096}, "prewrite_bytes"),
    ({"commits_per_segment": 0}, "commits_per_segment"),
    ({"segment_bytes": 0}, "segment_bytes"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Settings(**fields)
