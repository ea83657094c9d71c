"""Branches: two lines of training share what they have in common, and neither changes the other."""

from __future__ import annotations

import pytest

from shardstore import Branch, Ref
from shardstore.errors import (
    InvalidNameError,
    NameTakenError,
    ReadOnlyError,
    RefNotFoundError,
    TransactionError,
    UsageError,
)
from shardstore.fs.memory import MemoryFileSystem
from shardstore.history import read_history
from shardstore.wal.reader import read_log
from tests.support.stores import (
    PARTS,
    ROOT,
    commit,
    content,
    expected,
    head_step,
    object_files,
    open_store,
    value_of,
    values,
)


@pytest.mark.req("S7")
def test_two_branches_diverge_alone_and_share_what_they_have() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        for step in (1, 2, 3):
            commit(store, step)
        files = object_files(fs)
        assert store.branch("trial") == Branch(
            name="trial", seq=store.commit_of(Ref.head).seq, step=3, current=False
        )
        assert object_files(fs) == files and store.current_branch == "main"
        digest = store.state_digest("trial")
        for step in range(4, 14):
            commit(store, step)
        assert store.state_digest("trial") == digest and values(store, "trial") == expected(3)
        main = store.state_digest()
        store.switch("trial")
        assert head_step(store) == 3 and values(store) == expected(3)
        for step in range(4, 14):
            commit(store, step, value=100 + step)
        assert value_of(store, "a", "params") == 1130
        assert store.state_digest("main") == main
    with open_store(fs, "r+") as store:
        assert store.current_branch == "trial" and store.state_digest("main") == main
        assert [(b.name, b.step, b.current) for b in store.branches] == [
            ("main", 13, False), ("trial", 13, True),
        ]  # fmt: skip
        store.switch("main")
        commit(store, 14)
        assert values(store) == expected(14)
        assert value_of(store, "a", "params", "trial") == 1130


@pytest.mark.req("S7")
def test_disk_grows_only_by_what_differs() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.branch("trial")
        store.switch("trial")
        files = len(object_files(fs))
        for step in range(2, 12):
            with store.begin(step) as txn:
                txn.stage("b", "params", content(step))
                txn.keep_rest()
                txn.commit()
        assert len(object_files(fs)) <= files + 3  # head, parent and a spare, of one part
        shared = [store._find(name).manifest["a", "params"] for name in ("main", "trial")]
        assert shared[0] == shared[1]


@pytest.mark.req("S7")
def test_a_branch_begins_at_any_kept_commit() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("one")
        for step in (2, 3, 4):
            commit(store, step)
        store.branch("from_snapshot", "one")
        store.branch("from_step", Ref.step(3))
        store.branch("from_branch", "from_step")
        store.delete("one")
        for name, step in (("from_snapshot", 1), ("from_step", 3), ("from_branch", 3)):
            store.switch(name)
            assert values(store) == expected(step)
            commit(store, step)  # steps never decrease along a line, and each has its own
            with pytest.raises(TransactionError, match="never decrease"):
                store.begin(step - 1)


@pytest.mark.req("S7")
def test_names_of_branches_and_snapshots_are_one_namespace() -> None:
    with open_store() as store:
        with pytest.raises(RefNotFoundError):
            store.branch("trial")
        commit(store, 1)
        store.snapshot("best")
        store.branch("trial")
        for name in ("best", "trial", "main"):
            with pytest.raises(NameTakenError, match=name):
                store.branch(name)
            with pytest.raises(NameTakenError, match=name):
                store.snapshot(name)
        for name in ("head", "a b", "", "-x"):
            with pytest.raises(InvalidNameError):
                store.branch(name)
        with pytest.raises(RefNotFoundError, match="snapshot, not a branch"):
            store.switch("best")
        with pytest.raises(RefNotFoundError, match="branches are main, trial"):
            store.switch("nothing")
        with pytest.raises(UsageError, match="already"):
            store.switch("main")


@pytest.mark.req("S7")
def test_an_open_transaction_or_reading_stands_in_the_way() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.branch("trial")
        with store.begin(2):
            for call in (lambda: store.branch("x"), lambda: store.switch("trial"),
                         lambda: store.delete("trial")):  # fmt: skip
                with pytest.raises(TransactionError, match="transaction of step 2"):
                    call()
    with open_store(fs, "r") as reader, pytest.raises(ReadOnlyError):
        reader.switch("trial")


@pytest.mark.req("S6", "S7")
def test_undo_of_a_switch_switches_back_wherever_the_branch_is_by_then() -> None:
    with open_store() as store:
        commit(store, 1)
        store.branch("trial")
        store.switch("trial")
        commit(store, 2, value=7)
        left = store.head
        entry = store.undo()
        assert (entry.op, entry.name) == ("switch", "main")
        assert store.current_branch == "main" and values(store) == expected(1)
        assert left is not None and store.commit_of(Ref.seq(left.seq)).id == left.id
        commit(store, 2)
        assert value_of(store, "a", "params", "trial") == 70
        with pytest.raises(UsageError, match="nothing to undo"):
            store.undo()


@pytest.mark.req("S6", "S7")
def test_the_head_that_a_switch_left_is_kept_while_it_can_be_undone() -> None:
    """Main moves on after switching back; the head that the first switch left stays."""
    with open_store() as store:
        commit(store, 1)
        store.branch("trial")
        left = commit(store, 2)
        store.switch("trial")
        store.switch("main")
        for step in range(3, 9):
            commit(store, step)
        assert values(store, Ref.seq(left.seq)) == expected(2)
        store.undo()
        assert store.current_branch == "trial"
        store.undo()
        assert store.current_branch == "main" and values(store) == expected(8)
        for _ in range(2):  # two more, and one of these forgets the first
            store.switch("trial")
            store.switch("main")
        with pytest.raises(RefNotFoundError):
            store.commit_of(Ref.seq(left.seq))


@pytest.mark.req("S6", "S7")
def test_undo_brings_a_deleted_branch_back() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.branch("trial")
        store.switch("trial")
        for step in (2, 3):
            commit(store, step, value=step + 50)
        digest = store.state_digest()
        with pytest.raises(UsageError, match="current branch"):
            store.delete("trial")
        store.switch("main")
        store.delete("trial")
        with pytest.raises(RefNotFoundError):
            store.switch("trial")
        for step in range(2, 8):
            commit(store, step)
    with open_store(fs, "r+") as store:
        assert store.undo().name == "trial"
        assert store.state_digest("trial") == digest
        store.switch("trial")
        made = commit(store, 4, value=60)
        assert store.commit_of(Ref.step(4)).id == made.id  # not main's step 4
        assert values(store, "main") == expected(7)
        store.undo()
        assert values(store) == expected(7)


@pytest.mark.req("S6", "S7")
def test_a_deleted_branch_is_forgotten_after_three_more_changes() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.branch("trial")
        store.switch("trial")
        left = commit(store, 2)
        store.switch("main")
        store.delete("trial")
        for name in ("x", "y"):
            store.snapshot(name)
            store.delete(name)
        assert store.commit_of(Ref.seq(left.seq)).id == left.id
        store.snapshot("z")
        store.delete("z")
        with pytest.raises(RefNotFoundError):
            store.commit_of(Ref.seq(left.seq))
        store.gc(everything=True)
        assert len(object_files(fs)) == len(PARTS) + 3  # the head, and three deleted manifests


@pytest.mark.req("S6", "S7")
def test_undo_does_not_overwrite_a_name_that_was_given_again() -> None:
    with open_store() as store:
        commit(store, 1)
        store.branch("trial")
        store.delete("trial")
        store.snapshot("trial")
        with pytest.raises(NameTakenError, match="trial"):
            store.undo()
        store.delete("trial")
        assert store.undo().kind == "snapshot"


@pytest.mark.req("S7", "S22")
def test_history_tells_the_branches_apart() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.branch("trial")
        commit(store, 2)
        store.switch("trial")
        commit(store, 2, value=5)
        store.rewind(Ref.step(1))
    entries = list(read_history(fs, ROOT))
    assert [(e.step, e.status) for e in entries] == [
        (2, "rewound"), (2, "branched"), (1, "effective"),
    ]  # fmt: skip
    everything = {e.type: e for e in read_history(fs, ROOT, commits_only=False)}
    assert everything["branch"].step == 1 and everything["branch"].to_json()["name"] == "trial"
    assert everything["switch"].to_json()["name"] == "trial"


@pytest.mark.req("S7")
def test_a_switch_leaves_each_branch_on_its_own_line() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.branch("trial")
        made = {"main": commit(store, 5, value=1)}
        store.switch("trial")
        made["trial"] = commit(store, 5, value=2)
        for name in ("main", "trial", "main"):
            store.switch(name)
            assert store.commit_of(Ref.step(5)).id == made[name].id
        state = read_log(fs, ROOT).state
        assert len({line for _, line in state.branches.values()}) == 2
