"""Status of pins and of two tiers: what readers hold, what only they keep, what was published.

Method: stores in memory, whose open pin files are processes of their own as far as pins go. Real
processes are in `tests/cli/test_pinning.py`.
"""

from __future__ import annotations

import pytest

from shardstore import Store, open_active
from shardstore.format.frames import BLOCK
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.fs.protocol import FileSystem
from shardstore.status import read_status
from shardstore.who_pins import Pinned, PinnedCommit
from tests.support.stores import PARTS, ROOT, SETTINGS, commit, content, open_store, tree

pytestmark = pytest.mark.req("S8", "S31")
OBJECT = 2 * BLOCK
DURABLE = "durable"


def pinned(fs: FileSystem) -> Pinned:
    found = read_status(fs, ROOT).pinned
    assert found is not None
    return found


def commits(store: Store, *steps: int) -> None:
    for step in steps:
        commit(store, step)


def test_a_view_of_the_head_is_seen_until_it_is_closed() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer, open_store(fs, "r") as reader:
        commits(writer, 1, 2)
        assert pinned(fs) == Pinned()
        with reader.pin() as view:
            before, done = tree(fs), len(fs.log)
            found = pinned(fs)
            assert tree(fs) == before and len(fs.log) == done
            assert found.commits == [PinnedCommit(step=2, seq=view.commit.seq)]
            assert len(found.slots) == len(PARTS) and found.bytes == len(PARTS) * OBJECT
            assert found.held_back == () and found.snapshots == ()
            commit(writer, 3)  # nobody was disturbed
        assert pinned(fs) == Pinned()


def test_what_only_a_pin_keeps_is_told_apart_with_its_steps() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer, open_store(fs, "r") as reader:
        commits(writer, 1, 2, 3)
        with reader.pin():
            commits(writer, *range(4, 10))
            found = pinned(fs)
            assert found.commits == [] and found.held_back == found.slots
            assert found.held_back_bytes == found.bytes == len(PARTS) * OBJECT
            assert found.held_back_steps == (3,)
            assert read_status(fs, ROOT).healthy
        assert pinned(fs) == Pinned()
        commits(writer, *range(10, 13))


def test_steps_are_known_from_the_opening_too() -> None:
    """The log was begun anew: the commit is in its summary only, with a part of an older one."""
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        commit(writer, 1)
        with writer.begin(2) as txn:
            txn.stage("a", "params", content(2))
            txn.keep_rest()
            txn.commit()
    with open_store(fs, "r") as reader, reader.pin(), open_store(fs) as writer:
        commits(writer, *range(3, 9))
        assert pinned(fs).held_back_steps == (1, 2)
        assert len(pinned(fs).held_back) == len(PARTS)


def test_a_snapshot_is_named_and_so_is_what_is_left_of_a_deleted_one() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer, open_store(fs, "r") as reader:
        commit(writer, 1)
        writer.snapshot("base")
        commits(writer, *range(2, 6))
        with reader.pin("base"):
            found = pinned(fs)
            assert found.snapshots == ("base",) and found.commits == []
            assert len(found.slots) == len(PARTS) + 1 and found.held_back == ()
            writer.delete("base")
            assert pinned(fs).snapshots == () and pinned(fs).held_back == ()  # undo needs it
            for name in ("x", "y", "z"):
                writer.snapshot(name)
                writer.delete(name)
            found = pinned(fs)
            assert found.held_back == found.slots and found.held_back_steps == (1,)


def test_readers_of_one_commit_are_not_told_apart_and_the_last_one_counts() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer, open_store(fs, "r") as reader:
        commit(writer, 1)
        first, second = reader.pin(), writer.pin()
        seen = pinned(fs)
        first.close()
        assert pinned(fs) == seen != Pinned()
        second.close()
        assert pinned(fs) == Pinned()


def test_a_commit_of_which_a_part_is_pinned_is_not_said_to_be() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer, open_store(fs, "r") as reader:
        commit(writer, 1)
        with reader.pin():
            with writer.begin(2) as txn:
                txn.stage("b", "params", content(2))
                txn.keep_rest()
                txn.commit()
            assert [found.step for found in pinned(fs).commits] == [1]


@pytest.mark.parametrize("op", ["open_pins", "pinned"])
def test_pins_that_cannot_be_asked_about_are_unknown_and_no_damage(op: str) -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        commit(writer, 1)
    faulty = FaultyFileSystem(fs)
    faulty.fail(op, nth=1, times=None)
    status = read_status(faulty, ROOT)
    assert status.pinned is None and status.healthy and status.acknowledged is not None


def test_a_store_without_the_file_has_no_pins() -> None:
    fs = MemoryFileSystem()
    open_store(fs).close()
    fs.unlink(f"{ROOT}/PINS")
    assert pinned(fs) == Pinned()


def test_a_commit_made_meanwhile_is_not_held_back_by_a_pin() -> None:
    """The reader pins a commit that the writer made after the look began."""
    fs = MemoryFileSystem()
    with open_store(fs) as writer, open_store(fs, "r") as reader:
        commits(writer, *range(1, 6))  # slots to be written again are there
        views = []
        moved = FaultyFileSystem(fs)

        def go_on(operation: Operation) -> None:
            if operation.op == "open_pins":
                commit(writer, 6)
                views.append(reader.pin())

        moved.before = go_on
        found = read_status(moved, ROOT).pinned
        assert len(views) == 1 and views[0].commit.step == 6
        assert found is not None and found.held_back == ()
        assert [each.step for each in found.commits] == [6]


# ---------------------------------------------------------------------- two tiers


@pytest.mark.req("S16")
def test_the_last_publication_is_told_in_both_tiers() -> None:
    fs = MemoryFileSystem()
    with open_active(ROOT, DURABLE, fs=fs, settings=SETTINGS) as store:
        commits(store, 1, 2)
        assert read_status(fs, ROOT).published is None
        store.publish(DURABLE)
        commit(store, 3)
        told, behind = read_status(fs, ROOT).published, read_status(fs, DURABLE).published
        assert told is not None and (told.tier, told.step) == ("active", 2)
        assert behind is not None and (behind.tier, behind.step) == ("durable", 2)
        assert told.age_seconds >= 0 and behind.age_seconds >= 0
        store.publish(DURABLE)
        told, behind = read_status(fs, ROOT).published, read_status(fs, DURABLE).published
        assert told is not None and behind is not None and told.step == behind.step == 3


@pytest.mark.req("S16")
def test_an_active_store_made_of_the_durable_one_says_where_it_began() -> None:
    fs = MemoryFileSystem()
    with open_active(ROOT, DURABLE, fs=fs, settings=SETTINGS) as store:
        commits(store, 1, 2)
        store.publish(DURABLE)
    fs.rename(ROOT, "lost")
    with open_active(ROOT, DURABLE, fs=fs, settings=SETTINGS) as store:
        commit(store, 3)
    told = read_status(fs, ROOT).published
    assert told is not None and (told.tier, told.step) == ("active", 2)
