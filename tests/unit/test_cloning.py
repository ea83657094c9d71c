"""Clones: what comes along, beside whom they are made, and what a failure leaves.

Method: stores in memory; every tensor of a small store says which step it is of.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shardstore import Ref, Store
from shardstore.cloning import Advance
from shardstore.errors import (
    CorruptionError,
    StepMovedOnError,
    StorageError,
    StoreExistsError,
    UnavailableError,
    UsageError,
)
from shardstore.format.names import slot_file
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fsck import fsck
from shardstore.history import read_history
from shardstore.recovery import plan
from tests.support.stores import ROOT, SETTINGS, commit, expected, open_store, tree, values

pytestmark = pytest.mark.req("S7")
COPY = "copy"


def open_copy(fs: MemoryFileSystem, path: str = COPY, mode: str = "r+") -> Store:
    return Store.open(path, mode, fs=fs, settings=SETTINGS)  # type: ignore[arg-type]


def started(fs: MemoryFileSystem) -> Store:
    """Six commits, a snapshot that only its manifest names, a deleted one, two branches."""
    store = open_store(fs)
    commit(store, 1)
    store.snapshot("early")
    store.snapshot("gone")
    commit(store, 2)
    commit(store, 3)
    store.branch("trial")
    store.delete("gone")
    for step in (4, 5, 6):
        commit(store, step)
    return store


def damage(fs: MemoryFileSystem, path: str = COPY) -> list[str]:
    return [str(f) for f in fsck(fs, path, deep=True).findings if f.severity != "note"]


def story(fs: MemoryFileSystem, path: str) -> list[tuple[int, str, str]]:
    """Every record but openings."""
    entries = read_history(fs, path, commits_only=False)
    return [(e.seq, e.type, e.id) for e in entries if e.type != "open"]


def test_everything_comes_along_and_both_go_on_alone() -> None:
    fs = MemoryFileSystem()
    with started(fs) as store:
        made = store.clone(COPY)
        assert (made.path, made.position.step) == (COPY, 6)
        kept = {c.seq for c in store.kept}
        commit(store, 7)
        assert story(fs, ROOT)[1:] == story(fs, COPY)
        with open_copy(fs) as copy:
            assert copy.uuid == store.uuid
            assert [c.seq for c in copy.kept] == sorted(kept)
            assert values(copy) == expected(6) and values(copy, "early") == expected(1)
            assert values(copy, "trial") == expected(3)
            copy.undo()
            assert values(copy, "gone") == expected(1)
            for step in range(6, 12):
                commit(copy, step, step + 100)
            assert values(copy, "early") == expected(1)
        assert values(store) == expected(7) and values(store, "trial") == expected(3)
    assert damage(fs) == [] and damage(fs, ROOT) == []


def test_a_clone_has_an_instance_id_of_its_own_and_is_no_copy() -> None:
    fs = MemoryFileSystem()
    with started(fs) as store:
        store.clone(COPY)
    views = [plan(fs, path)[1] for path in (ROOT, COPY)]
    assert views[0].opening["instance"] != views[1].opening["instance"]
    assert views[1].opening["reason"] == "clone" and not views[1].copied


@pytest.mark.parametrize("ref", ["early", "trial", Ref.seq(6)])
def test_one_commit_by_itself(ref: Ref | str) -> None:
    fs = MemoryFileSystem()
    with started(fs) as store:
        step = store.commit_of(ref).step
        made = store.clone(COPY, ref=ref)
        assert made.objects == 3
    with open_copy(fs) as copy:
        assert len(fs.list_directory(f"{COPY}/objects")) == 3
        assert values(copy) == expected(step) and copy.snapshots == [] and len(copy.kept) == 1
        commit(copy, step + 1)
        told = list(read_history(fs, COPY))
        assert [e.step for e in told if e.effective][:2] == [step + 1, step]
        assert {e.step for e in told} >= {1, 2, 3, 4, 5, 6}
    assert damage(fs) == []


class Busy:
    """A writer that goes on while a clone is being made: commits at every object."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.step = 6

    @contextmanager
    def progress(self, total: int) -> Iterator[Advance]:
        assert total > 0

        def advance(_count: int) -> None:
            self.step += 1
            commit(self.store, self.step)

        yield advance


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_writer_goes_on_meanwhile(mode: str) -> None:
    fs = MemoryFileSystem()
    with started(fs) as writer:
        busy = Busy(writer)
        source = writer if mode == "r+" else open_store(fs, "r")
        source.clone(COPY, progress=busy.progress)
        assert busy.step > 12 and values(writer) == expected(busy.step)
        with open_copy(fs, mode="r") as copy:
            assert values(copy) == expected(6) and values(copy, Ref.step(5)) == expected(5)
    assert damage(fs) == [] and writer is not None


def test_without_locks_a_writer_that_goes_on_is_noticed() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    writer = started(fs)
    fs.unlink(f"{ROOT}/PINS")
    with pytest.raises(StepMovedOnError, match="nothing can be pinned here"):
        open_store(faulty, "r").clone(COPY, progress=Busy(writer).progress)
    with pytest.raises(UnavailableError):
        open_copy(fs, mode="r")


@pytest.mark.req("S11")
def test_a_damaged_object_is_not_copied() -> None:
    fs = MemoryFileSystem()
    with started(fs) as store:
        slot = sorted(store._session.state.needed())[-1]
        fs.open(f"{ROOT}/{slot_file(slot, 'raw')}", "write").pwrite(6000, b"\x07")
        with pytest.raises(CorruptionError, match=slot_file(slot, "raw")):
            store.clone(COPY)
    assert fs.list_directory(f"{COPY}/objects") == [] and "STORE" not in fs.list_directory(COPY)


@pytest.mark.req("S18")
@pytest.mark.parametrize(
    ("op", "places"),
    [("open_*", 8), ("pwrite", 10), ("datasync", 10), ("sync_directory", 4), ("rename", 1)],
)
def test_wherever_it_fails_no_store_is_there_and_the_next_try_succeeds(
    op: str, places: int
) -> None:
    fs = MemoryFileSystem()
    started(fs).close()
    for nth in range(1, 1000):
        faulty = FaultyFileSystem(fs)
        faulty.fail(op, f"{COPY}*", nth=nth)
        with Store.open(ROOT, "r", fs=faulty, settings=SETTINGS) as store:
            try:
                store.clone(COPY)
                break
            except StorageError:
                assert "STORE" not in fs.list_directory(COPY)
    assert nth > places
    with open_copy(fs) as copy:
        assert values(copy) == expected(6)
    assert damage(fs) == []


def test_only_a_new_or_empty_directory_is_taken() -> None:
    fs = MemoryFileSystem()
    with started(fs) as store:
        fs.make_directory("empty")
        store.clone("empty")
        before = tree(fs, "empty")
        with pytest.raises(StoreExistsError, match="is a store already"):
            store.clone("empty")
        assert tree(fs, "empty") == before
        fs.make_directory("full")
        fs.open("full/notes", "create").close()
        with pytest.raises(StoreExistsError, match="holds 'notes'"):
            store.clone("full")
        assert fs.list_directory("full") == ["notes"]
        for dest in (ROOT, f"{ROOT}/inside"):
            with pytest.raises(UsageError, match="inside of it"):
                store.clone(dest)


def test_an_empty_store_can_be_cloned() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        store.clone(COPY)
    with open_copy(fs) as copy:
        assert copy.head is None
        commit(copy, 1)
