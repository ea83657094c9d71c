"""Pinned views: what they hold, what a writer does around them, and what is left when they go.

Method: stores in memory, whose readers and writers are processes of their own as far as pins go.
Orders in time are in `tests/crash/test_pin_order.py`, real processes in `test_pin_processes.py`.
"""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from shardstore import PinnedView, Ref, Store
from shardstore.errors import (
    ClosedError,
    CorruptionError,
    PartNotFoundError,
    RefNotFoundError,
    StepMovedOnError,
    StorageError,
)
from shardstore.format.names import slot_file
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.portable import PortableFileSystem
from tests.support.stores import (
    PARTS,
    ROOT,
    SETTINGS,
    commit,
    expected,
    object_files,
    open_store,
    tree,
    values,
)

pytestmark = pytest.mark.req("S8")


def seen(view: PinnedView) -> dict[tuple[str, str], int]:
    """What every part of a view holds, after checking that all of it says so."""
    found = {}
    for key in sorted(view.commit.parts):
        with view.load(*key) as loaded:
            arrays = loaded.numpy()
            found[key] = int(arrays["n"])
            assert (arrays["w"] == found[key]).all()
    return found


def go_on(store: Store, first: int, count: int = 8) -> int:
    for step in range(first, first + count):
        commit(store, step)
    return first + count


def test_a_view_stays_at_its_step_while_the_writer_goes_on() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer, open_store(fs, "r") as reader:
        go_on(writer, 1, 3)
        with reader.pin() as view:
            assert view.pinned and (view.commit.step, view.commit.parts) == (3, frozenset(PARTS))
            digest, tensors = view.state_digest(), view.tensors()
            go_on(writer, 4)
            assert seen(view) == expected(3)
            assert (view.state_digest(), view.tensors()) == (digest, tensors)
        with pytest.raises(RefNotFoundError):
            reader.pin(Ref.step(3))
        assert reader.pin().commit.step == 11


def test_what_a_view_offers_is_what_the_store_offers() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1, metadata={"loss": 2.5}, blobs={"note": b"x"})
        with store.pin("main") as view:
            assert view.commit == store.head
            assert view.tensors() == store.tensors()
            assert view.state_digest() == store.state_digest()
            size = view.size_of("a", "params")
            assert size == store.size_of("a", "params")
            memory = np.zeros(size, "u1")
            with view.load("a", "params", into=memory) as loaded:
                assert int(loaded.numpy()["n"]) == 10
            for call in (view.load, view.size_of):
                with pytest.raises(PartNotFoundError, match=r"step 1 .*'b' part 'optim'"):
                    call("b", "optim")


def test_the_ref_is_looked_up_on_the_log_as_it_is_now() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        commit(writer, 1)
        with open_store(fs, "r") as reader:
            commit(writer, 2)
            writer.snapshot("later")
            commit(writer, 3)
            for ref, step in ((Ref.head, 3), ("later", 2), (Ref.step(2), 2)):
                with reader.pin(ref) as view:
                    assert seen(view) == expected(step)
            with pytest.raises(RefNotFoundError, match="'nobody'"):
                reader.pin("nobody")
            assert reader.head is not None and reader.head.step == 1  # until it is refreshed


def test_a_snapshots_view_outlives_its_deletion() -> None:
    """The manifest object is pinned with the rest, and undo has forgotten the deletion."""
    fs = MemoryFileSystem()
    with open_store(fs) as writer, open_store(fs, "r") as reader:
        commit(writer, 1)
        writer.snapshot("one")
        step = go_on(writer, 2, 3)
        view = reader.pin("one")
        writer.delete("one")
        for name in ("x", "y", "z"):
            writer.snapshot(name)
            writer.delete(name)
        step = go_on(writer, step)
        assert seen(view) == expected(1)
        assert len(writer.pinned_slots()) == len(PARTS) + 1
        view.close()
        assert writer.pinned_slots() == set()


def test_a_view_outlives_a_rewind_and_a_new_writer() -> None:
    fs = MemoryFileSystem()
    writer = open_store(fs)
    commit(writer, 1)
    writer.snapshot("one")
    commit(writer, 2)
    with open_store(fs, "r") as reader, reader.pin() as view:
        for _ in range(4):  # the first one's undo entry is forgotten
            writer.rewind("one")
            commit(writer, 3)
        writer.close()
        with open_store(fs) as again:
            go_on(again, 4)
            assert seen(view) == expected(2)


def test_an_opening_for_writing_unlinks_nothing_that_is_pinned() -> None:
    """Files of a size that nothing needs any more are removed, unless somebody reads them."""
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        commit(writer, 1)
        reader = open_store(fs, "r")
        view = reader.pin()
        for step in (2, 3):
            with writer.begin(step) as txn:
                for key in PARTS:
                    txn.stage(*key, {"w": np.zeros(5000)})
                txn.commit()
    old = object_files(fs)
    open_store(fs).close()
    assert object_files(fs) == old
    assert seen(view) == expected(1)
    reader.close()
    open_store(fs).close()
    assert len(object_files(fs)) == len(old) - len(PARTS)


def test_a_view_in_the_writers_own_process_holds_too() -> None:
    with open_store() as store:
        go_on(store, 1, 3)
        view = store.pin()
        go_on(store, 4)
        assert seen(view) == expected(3)


def test_pinned_slots_are_used_again_once_they_are_let_go() -> None:
    """A pin costs one set of slots; closing gives it back and no file is left over."""
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        step = go_on(writer, 1, 6)
        steady = object_files(fs)
        with open_store(fs, "r") as reader, reader.pin():
            step = go_on(writer, step)
            grown = object_files(fs)
            assert len(grown) == len(steady) + len(PARTS)
            with reader.pin(), reader.pin():
                step = go_on(writer, step)
        more = object_files(fs)
        for _ in range(3):
            with open_store(fs, "r") as reader, reader.pin():
                step = go_on(writer, step)
        assert object_files(fs) == more
        assert writer.pinned_slots() == set()


def test_closing() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        commit(writer, 1)
        reader = open_store(fs, "r")
        view = reader.pin()
        assert writer.pinned_slots() == {0, 1, 2}
        view.close()
        view.close()
        for call in (view.tensors, view.state_digest, lambda: view.load("a", "params")):
            with pytest.raises(ClosedError, match=r"view of step 1 .*closed; pin"):
                call()
        second = reader.pin()
        loaded = second.load("a", "params")
        second.close()
        assert int(loaded.numpy()["n"]) == 10  # what was loaded stays
        loaded.close()
        third = reader.pin()
        reader.close()  # takes every pin with it
        assert writer.pinned_slots() == set()
        with pytest.raises(ClosedError):
            third.load("a", "params")
        with pytest.raises(ClosedError):
            reader.pin()
        third.close()


def test_damage_in_a_view_is_damage_even_after_the_step_moved_on() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer, open_store(fs, "r") as reader:
        commit(writer, 1)
        view = reader.pin()
        go_on(writer, 2)
        for name in object_files(fs)[: len(PARTS)]:
            path = f"{ROOT}/objects/{name}"
            fs.open(path, "write").pwrite(fs.stat(path).size - 4096, b"\x55")
        with pytest.raises(CorruptionError, match="step 1"):
            seen(view)


def test_pinning_changes_no_byte() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        commit(writer, 1)
        before, operations = tree(fs), len(fs.log)
        with open_store(fs, "r") as reader, reader.pin() as view:
            seen(view)
        assert (tree(fs), len(fs.log)) == (before, operations)


# Where no lock can be had


def _without(kind: str, path: Path) -> tuple[MemoryFileSystem | PortableFileSystem, str]:
    if kind == "portable":
        return PortableFileSystem(), str(path / "run")
    return MemoryFileSystem(pins=False), ROOT


@pytest.mark.parametrize("kind", ["portable", "memory"])
def test_without_locks_a_view_reads_its_step_or_says_that_it_moved_on(
    kind: str, tmp_path: Path
) -> None:
    fs, root = _without(kind, tmp_path)
    with Store.open(root, "a", fs=fs, settings=SETTINGS) as writer:
        commit(writer, 1)
        with Store.open(root, fs=fs, settings=SETTINGS) as reader, reader.pin() as view:
            assert not view.pinned
            assert seen(view) == expected(1)
            commit(writer, 2)
            assert seen(view) == expected(1)  # retained
            go_on(writer, 3)
            for call in (lambda: seen(view), view.tensors):
                with pytest.raises(StepMovedOnError, match="step 1"):
                    call()
            assert writer.pinned_slots() == set()


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EACCES])
def test_a_pins_file_that_cannot_be_opened_gives_an_unpinned_view(error: int) -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        commit(writer, 1)
        faulty = FaultyFileSystem(fs)
        faulty.fail("open_pins", error=error)
        with open_store(faulty, "r") as reader:
            assert not reader.pin().pinned
            assert reader.pin().pinned


def test_any_other_failure_to_pin_is_told_and_leaves_nothing_pinned() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        commit(writer, 1)
        for op, after in (("open_pins", False), ("pin", False), ("pin", True)):
            faulty = FaultyFileSystem(fs)
            faulty.fail(op, after=after)
            with open_store(faulty, "r") as reader:
                with pytest.raises(StorageError, match="pinning failed on run/PINS"):
                    reader.pin()
                assert writer.pinned_slots() == set()


def test_a_failed_look_at_the_log_leaves_nothing_pinned() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        commit(writer, 1)
        faulty = FaultyFileSystem(fs)
        with open_store(faulty, "r") as reader:
            faulty.fail("pread", "*/wal/*")
            with pytest.raises(StorageError, match="reading the log"):
                reader.pin()
        assert writer.pinned_slots() == set()


def test_a_writer_that_cannot_ask_writes_to_no_slot_that_may_be_pinned() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    with open_store(faulty) as writer, open_store(fs, "r") as reader:
        step = go_on(writer, 1, 4)
        view = reader.pin()
        faulty.fail("pinned", times=None)
        before = len(object_files(fs))
        step = go_on(writer, step, 3)
        assert len(object_files(fs)) == before + 3 * len(PARTS)
        assert seen(view) == expected(4)
        faulty.clear()
        go_on(writer, step, 3)
        assert len(object_files(fs)) == before + 3 * len(PARTS)


# The file


def test_a_store_without_the_file_gets_it_at_the_next_opening_for_writing() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        commit(writer, 1)
    fs.unlink(f"{ROOT}/PINS")
    with open_store(fs, "r") as reader:
        assert not reader.pin().pinned
    assert "PINS" not in fs.list_directory(ROOT)
    with open_store(fs) as writer, open_store(fs, "r") as reader, reader.pin() as view:
        assert view.pinned
        go_on(writer, 2)
        assert seen(view) == expected(1)


def test_creation_makes_the_file_first_and_takes_over_a_half_made_one() -> None:
    fs = MemoryFileSystem()
    open_store(fs).close()
    made = [op.path for op in fs.log if op.op in ("lock", "open_create", "make_directory")]
    assert made.index(f"{ROOT}/LOCK") < made.index(f"{ROOT}/PINS") < made.index(f"{ROOT}/wal")
    half = MemoryFileSystem()
    half.make_directory(ROOT)
    half.open(f"{ROOT}/PINS", "create").close()
    with open_store(half) as store:
        commit(store, 1)
        assert values(store) == expected(1)


def test_slots_stand_for_bytes_by_their_number() -> None:
    """FORMAT.md section 6.1: what another implementation has to lock."""
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        commit(writer, 1)
        with open_store(fs, "r") as reader, reader.pin():
            other = fs.open_pins(f"{ROOT}/PINS")
            slots = other.pinned(range(100))
            assert {slot_file(slot, "raw") for slot in slots} == {
                f"objects/{name}" for name in object_files(fs)
            }
