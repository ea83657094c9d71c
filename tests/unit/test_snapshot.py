"""Snapshots, rewinds and undo: what is kept, what comes back, and what is overwritten never."""

from __future__ import annotations

import pytest

from shardstore import Ref
from shardstore.errors import NameTakenError, RefNotFoundError, UsageError
from shardstore.fs.memory import MemoryFileSystem
from tests.support.stores import (
    PARTS,
    commit,
    content,
    expected,
    head_step,
    object_files,
    open_store,
    value_of,
    values,
)


@pytest.mark.req("S5")
def test_a_snapshot_keeps_its_bytes_over_a_hundred_commits() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        commit(store, 2)
        digest = store.state_digest(Ref.step(1))
        made = store.snapshot("best", at=Ref.step(1))
        assert (made.name, made.step) == ("best", 1)
        for step in range(3, 103):
            commit(store, step)
        assert values(store, "best") == expected(1)
        assert store.state_digest("best") == digest
        assert store.commit_of("best").metadata == {}
        files = len(object_files(fs))
    assert files <= 4 * len(PARTS) + 1
    with open_store(fs) as store:
        assert store.state_digest("best") == digest
        assert values(store) == expected(102)


@pytest.mark.req("S5")
def test_a_snapshot_copies_no_data() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        before = object_files(fs)
        store.snapshot("best")
        assert len(object_files(fs)) == len(before) + 1  # its manifest


@pytest.mark.req("S5")
def test_names_of_snapshots() -> None:
    with open_store() as store:
        commit(store, 12)
        assert store.snapshot().name == "step_00000012"
        for taken in ("step_00000012", None, "main"):
            with pytest.raises(NameTakenError, match="taken"):
                store.snapshot(taken)
        store.snapshot("a")
        store.snapshot("B", at="a")
        assert [s.name for s in store.snapshots] == ["B", "a", "step_00000012"]
        with pytest.raises(RefNotFoundError):
            store.snapshot("c", at="nothing")


@pytest.mark.req("S5")
def test_deleting_a_snapshot() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("best")
        commit(store, 2)
        commit(store, 3)
        with pytest.raises(RefNotFoundError, match="other"):
            store.delete("other")
        with pytest.raises(UsageError, match="branch"):
            store.delete("main")
        store.delete("best")
        with pytest.raises(RefNotFoundError):
            store.commit_of("best")
        store.undo()
        assert values(store, "best") == expected(1)
        with pytest.raises(UsageError, match="nothing to undo"):
            store.undo()


@pytest.mark.req("S6")
def test_a_rewind_moves_the_head_and_the_run_goes_on_from_there() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.snapshot("one")
        digest = store.state_digest()
        for step in (2, 3, 4):
            commit(store, step)
        assert store.rewind("one").step == 1
        assert store.state_digest() == digest
        commit(store, 2, value=20)
        assert value_of(store, "a", "params") == 200
    with open_store(fs) as store:
        assert value_of(store, "a", "params") == 200
        store.undo()
        assert values(store) == expected(4)


@pytest.mark.req("S6")
def test_a_rewind_to_the_head_loses_nothing() -> None:
    with open_store() as store:
        commit(store, 1)
        commit(store, 2)
        store.rewind(Ref.head)
        assert [made.step for made in store.kept] == [1, 2]
        assert values(store, Ref.step(1)) == expected(1)


@pytest.mark.req("S6")
def test_each_undo_reverts_the_newest_not_yet_undone() -> None:
    with open_store() as store:
        for step in (1, 2, 3, 4):
            commit(store, step)
            store.snapshot(f"s{step}")
        for name in ("s1", "s2", "s3"):
            store.rewind(name)  # left: 4, 1, 2
        for step in (2, 1, 4):
            store.undo()
            assert head_step(store) == step
            assert values(store) == expected(step)
        with pytest.raises(UsageError, match="nothing to undo"):
            store.undo()


@pytest.mark.req("S6")
def test_what_an_undo_leaves_is_kept_too() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.snapshot("one")
        commit(store, 2)
        store.rewind("one")
        fork = commit(store, 3, value=33)
        store.undo()
        assert head_step(store) == 2
        for step in range(4, 20):
            commit(store, step)
    with open_store(fs) as store:
        assert value_of(store, "a", "params", Ref.seq(fork.seq)) == 330
        store.rewind(Ref.seq(fork.seq))
        assert head_step(store) == 3
        store.undo()
        assert head_step(store) == 19


@pytest.mark.req("S6")
def test_the_heads_left_by_the_last_three_changes_are_kept_and_no_more() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("one")
        left = []
        for value in range(10, 14):
            left.append(commit(store, 2, value=value))
            store.rewind("one")
        for _ in range(5):
            with store.begin(1) as txn:
                txn.keep_rest()
                txn.stage("a", "params", content(0))
                txn.commit()
        with pytest.raises(RefNotFoundError):
            store.commit_of(Ref.seq(left[0].seq))
        for index in (1, 2, 3):
            assert value_of(store, "a", "params", Ref.seq(left[index].seq)) == (10 + index) * 10
        for index in (3, 2, 1):
            store.undo()
            assert value_of(store, "a", "params") == (10 + index) * 10
        with pytest.raises(UsageError):
            store.undo()


@pytest.mark.req("S6")
def test_deletions_and_rewinds_are_undone_in_one_order() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("one")
        commit(store, 2)
        store.rewind("one")
        store.delete("one")
        commit(store, 5)
        store.undo()
        assert values(store, "one") == expected(1) and head_step(store) == 5
        store.undo()
        assert head_step(store) == 2


@pytest.mark.req("S6")
def test_a_deletion_cannot_be_undone_over_a_new_snapshot_of_that_name() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("best")
        store.delete("best")
        commit(store, 2)
        store.snapshot("best")
        with pytest.raises(NameTakenError):
            store.undo()
        assert values(store, "best") == expected(2)


@pytest.mark.req("S17")
def test_what_a_forgotten_deletion_kept_is_written_again() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        for step in range(12):
            commit(store, step)
            store.snapshot("s")
            store.delete("s")
            for more in range(3):
                commit(store, step, value=100 * step + more)
        # The last two, three deleted ones with a manifest each, one being written, one to spare.
        assert len(object_files(fs)) <= (2 + 3 + 2) * len(PARTS) + 5
        store.undo()
        assert values(store, "s") == expected(11)


@pytest.mark.req("S6")
def test_nothing_kept_is_overwritten_while_the_head_moves_about() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        digests: dict[str, str] = {}
        for step in range(1, 6):
            commit(store, step)
            store.snapshot(f"s{step}")
            digests[f"s{step}"] = store.state_digest()
        for turn in range(12):
            store.rewind(f"s{1 + turn % 5}")
            commit(store, 9, value=1000 + turn)
            if turn % 3 == 0:
                store.undo()
            for name, digest in digests.items():
                assert store.state_digest(name) == digest
                values(store, name)


@pytest.mark.req("S6")
def test_a_ref_on_an_empty_store_is_refused() -> None:
    with open_store() as store:
        for call in (store.snapshot, lambda: store.rewind(Ref.head), lambda: store.delete("a")):
            with pytest.raises(RefNotFoundError):
                call()
        with pytest.raises(UsageError, match="nothing to undo"):
            store.undo()


@pytest.mark.req("S6")
def test_what_can_be_undone_is_told_before_and_after() -> None:
    with open_store() as store:
        seqs = {step: commit(store, step).seq for step in (1, 2)}
        store.snapshot("early", at=Ref.step(1))
        assert store.undoable == []
        store.rewind("early")
        store.delete("early")
        deletion, move = store.undoable
        assert (deletion.op, deletion.name, deletion.step, deletion.seq) == (
            "delete", "early", 1, seqs[1],
        )  # fmt: skip
        assert (move.op, move.name, move.step, move.seq) == ("rewind", "main", 2, seqs[2])
        # A snapshot, a rewind and a deletion are one record each, behind the second commit.
        assert (move.record, deletion.record) == (seqs[2] + 2, seqs[2] + 3)
        assert store.undo() == deletion and store.undoable == [move]
        assert store.undo() == move and store.undoable == []
        assert head_step(store) == 2
