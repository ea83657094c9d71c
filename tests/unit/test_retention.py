"""Retention and gc: what stays kept without a name, and what the disk gets back."""

from __future__ import annotations

from typing import Any

import pytest

from shardstore import Best, Ref, Retention, Store
from shardstore.context import Settings
from shardstore.errors import (
    ReadOnlyError,
    RefNotFoundError,
    StorageError,
    TransactionError,
    UsageError,
)
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from tests.support.stores import PARTS, commit, expected, object_files, open_store, values

LOSS = Best(metric="loss")
SMALL_SEGMENTS = Settings(prewrite_bytes=8192, commits_per_segment=3)


def steps(store: Store) -> list[int]:
    return [made.step for made in store.kept]


def run(store: Store, *made: int, **losses: float) -> None:
    for step in made:
        commit(store, step, metadata={"loss": losses[f"s{step}"]} if losses else None)


@pytest.mark.req("S17")
def test_the_default_keeps_the_head_and_its_parent() -> None:
    with open_store() as store:
        assert store.retention == Retention() == Retention(last=2, every=None, best=None)
        run(store, *range(1, 6))
        assert steps(store) == [4, 5]


@pytest.mark.req("S17")
def test_steps_are_numbers_not_text() -> None:
    with open_store() as store:
        store.set_retention(Retention(last=1, every=1000))
        run(store, 999, 1000, 9900, 10000, 10001)
        assert steps(store) == [1000, 10000, 10001]
        store.set_retention(Retention(last=2))
        run(store, 100000)
        assert steps(store) == [10001, 100000]


@pytest.mark.req("S17")
def test_of_a_repeated_step_the_newest_counts() -> None:
    with open_store() as store:
        store.set_retention(Retention(last=1, every=2))
        run(store, 2, 2, 2, 3)
        assert [made.seq for made in store.kept] == [made.seq for made in store.kept][-2:]
        assert steps(store) == [2, 3]


@pytest.mark.req("S17")
def test_the_best_may_be_the_oldest_while_one_is_kept() -> None:
    fs = MemoryFileSystem()
    with open_store(fs, settings=SMALL_SEGMENTS) as store:
        store.set_retention(Retention(last=1, best=LOSS))
        commit(store, 1, metadata={"loss": 0.5})
        store.snapshot("first")
        for step in range(2, 30):
            commit(store, step, metadata={"loss": float(step)})
        assert steps(store) == [1, 29]
        store.delete("first")
        assert values(store, Ref.step(1)) == expected(1)
    with open_store(fs, "r+", settings=SMALL_SEGMENTS) as store:
        commit(store, 30, metadata={"loss": 0.25})
        assert steps(store) == [30]
        store.undo()
        assert values(store, "first") == expected(1)


@pytest.mark.req("S17")
@pytest.mark.parametrize(("mode", "kept"), [("min", [3, 5, 8]), ("max", [2, 7, 8])])
def test_the_best_by_the_least_or_the_most(mode: Any, kept: list[int]) -> None:
    losses: dict[int, Any] = {1: float("nan"), 2: 9, 3: 0.5, 4: True, 5: -1.5, 6: "0", 7: 8, 8: 3}
    with open_store() as store:
        store.set_retention(Retention(last=1, best=Best(metric="metrics.loss", mode=mode, count=2)))
        for step, loss in losses.items():
            commit(store, step, metadata={"metrics": {"loss": loss}, "loss": -100 * step})
        assert steps(store) == kept


def test_of_equal_ones_the_older_stays_and_infinity_is_no_number() -> None:
    with open_store() as store:
        store.set_retention(Retention(last=1, best=LOSS))
        for step, loss in ((1, -float("inf")), (2, 1.0), (3, 1), (4, 1.0), (5, 2.0)):
            commit(store, step, metadata={"loss": loss})
        assert steps(store) == [2, 5]


@pytest.mark.req("S7", "S17")
def test_a_branch_does_not_change_what_another_keeps() -> None:
    with open_store() as store:
        store.set_retention(Retention(last=1, every=10, best=LOSS))
        for step, loss in ((10, 3.0), (11, 2.0), (12, 9.0)):
            commit(store, step, metadata={"loss": loss})
        store.branch("trial")
        store.switch("trial")
        for step, loss in ((13, 1.0), (20, 9.0), (21, 9.0)):
            commit(store, step, metadata={"loss": loss})
        assert steps(store) == [10, 11, 12, 13, 20, 21]  # 11 is the best of main
        store.switch("main")
        store.delete("trial")
        commit(store, 13, metadata={"loss": 0.5})
        kept = [(made.step, made.branch) for made in store.kept]
        assert (13, "main") in kept
        assert (20, "trial") in kept and (13, "trial") in kept  # undo may bring it back


@pytest.mark.req("S6", "S17")
def test_what_a_rewind_left_is_kept_as_undo_would_find_it() -> None:
    with open_store() as store:
        store.set_retention(Retention(last=1, every=2))
        run(store, *range(1, 8))
        store.rewind(Ref.step(2))
        assert steps(store) == [2, 4, 6, 7]
        commit(store, 3, value=9)
        store.undo()
        assert steps(store) == [2, 4, 6, 7, 3]
        for _ in range(3):
            store.rewind(Ref.head)
        assert steps(store) == [2, 4, 6, 7]


@pytest.mark.req("S6", "S17")
def test_what_lies_behind_the_head_after_a_rewind_goes_once_nothing_undoes_it() -> None:
    with open_store() as store:
        store.set_retention(Retention(last=1, every=2, best=LOSS))
        run(store, *range(1, 8), **{f"s{step}": float(-step) for step in range(1, 8)})
        store.rewind(Ref.step(2))
        for _ in range(3):
            store.rewind(Ref.head)
        assert steps(store) == [2]


@pytest.mark.req("S17")
def test_the_rule_stands_in_the_log() -> None:
    fs = MemoryFileSystem()
    rule = Retention(last=3, every=7, best=Best(metric="m", mode="max", count=4))
    with open_store(fs, settings=SMALL_SEGMENTS) as store:
        store.set_retention(rule)
        seq = store._session.pipeline.protocol.writer.seq  # type: ignore[union-attr]
        store.set_retention(Retention(last=3, every=7, best=Best(metric="m", mode="max", count=4)))
        assert store._session.pipeline.protocol.writer.seq == seq  # type: ignore[union-attr]
    with open_store(fs.kill(), "r") as reader:
        assert reader.retention == rule
        with pytest.raises(ReadOnlyError):
            reader.set_retention(Retention())
    for fs_after in list(fs.power_cuts(limit=4, samples=2, subsets_max=2)):
        with open_store(fs_after, "r+", settings=SMALL_SEGMENTS) as store:
            run(store, *range(1, 9))
            assert store.retention == rule and steps(store) == [6, 7, 8]
    with open_store(fs, "r+") as store, store.begin(9), pytest.raises(TransactionError):
        store.set_retention(Retention())


def test_a_new_rule_takes_nothing_before_the_next_commit_or_gc() -> None:
    with open_store() as store:
        store.set_retention(Retention(last=5))
        run(store, *range(1, 8))
        store.set_retention(Retention(last=1))
        assert steps(store) == [3, 4, 5, 6, 7]
        store.set_retention(Retention(last=3))
        run(store, 8)
        assert steps(store) == [6, 7, 8]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retention(last=0), lambda: Retention(last=True), lambda: Retention(every=0),
        lambda: Retention(every=2.0), lambda: Retention(best="loss"),  # type: ignore[arg-type]
        lambda: Best(metric=""), lambda: Best(metric="a..b"), lambda: Best(metric="a", count=0),
        lambda: Best(metric="a", mode="least"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused(make: Any) -> None:
    with pytest.raises(UsageError, match="retention"):
        make()


# ---------------------------------------------------------------------- gc


@pytest.mark.req("S17")
def test_gc_gives_back_what_a_stricter_rule_leaves_over() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        store.set_retention(Retention(last=6))
        run(store, *range(1, 9))
        store.set_retention(Retention())
        before = object_files(fs)
        told = store.gc(dry_run=True)
        assert object_files(fs) == before and len(steps(store)) == 6
        done = store.gc()
        assert done == told and len(done.unkept) == 4
        assert steps(store) == [7, 8]
        assert len(object_files(fs)) == 3 * len(PARTS)  # two kept sets and room for one
        assert done.files == len(before) - len(object_files(fs)) and done.bytes > 0
        assert store.gc() == store.gc(dry_run=True)
        assert store.gc().files == 0
        run(store, *range(9, 20))
        assert len(object_files(fs)) == 3 * len(PARTS)
        assert store.gc(everything=True).files == len(PARTS)
        assert len(object_files(fs)) == 2 * len(PARTS)
        run(store, *range(20, 25))
    with open_store(fs) as store:
        assert values(store) == expected(24) and values(store, Ref.step(23)) == expected(23)


@pytest.mark.req("S17")
def test_gc_touches_nothing_that_is_needed() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        store.set_retention(Retention(last=1, best=LOSS))
        commit(store, 1, metadata={"loss": 0.1})
        commit(store, 2, metadata={"loss": 2.0})
        store.snapshot("two")
        commit(store, 3, metadata={"loss": 3.0})
        store.branch("three")
        commit(store, 4, metadata={"loss": 4.0})
        left = commit(store, 5, metadata={"loss": 5.0})
        store.rewind("three")
        store.snapshot("gone")
        store.delete("gone")
        store.gc(everything=True)
        assert values(store, Ref.step(1)) == expected(1)
        assert values(store, "two") == expected(2)
        assert values(store, "three") == values(store) == expected(3)
        assert values(store, Ref.seq(left.seq)) == expected(5)
        store.undo()
        assert values(store, "gone") == expected(3)
        store.undo()
        assert values(store) == expected(5)


@pytest.mark.req("S17")
def test_gc_stands_back_from_an_open_transaction_and_from_reading() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        run(store, 1, 2, 3)
        with store.begin(4) as txn:
            with pytest.raises(TransactionError, match="cannot collect"):
                store.gc()
            txn.keep_rest()
            txn.commit()
        before = object_files(fs)
    with open_store(fs, "r") as reader:
        assert reader.gc(everything=True, dry_run=True).files > 0
        with pytest.raises(ReadOnlyError):
            reader.gc()
    assert object_files(fs) == before


@pytest.mark.req("S17", "S18")
def test_a_file_that_cannot_be_unlinked_is_told_and_stays_usable() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    with open_store(faulty) as store:
        run(store, 1, 2, 3)
        faulty.fail("unlink", "*/objects/*")
        with pytest.raises(StorageError, match="unlinking object files"):
            store.gc(everything=True)
        faulty.clear()
        run(store, 4, 5, 6)
        assert values(store) == expected(6)
        assert store.gc(everything=True).files > 0
    with open_store(fs, "r+") as store:
        assert values(store) == expected(6)


@pytest.mark.req("S17")
def test_after_gc_a_power_cut_leaves_the_same_state() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        store.set_retention(Retention(last=4))
        run(store, *range(1, 6))
        store.set_retention(Retention(last=1))
        store.gc(everything=True)
        for after in fs.power_cuts(limit=8, samples=4, subsets_max=3):
            with open_store(after, "r+") as again:
                assert steps(again) == [5] and values(again) == expected(5)
                with pytest.raises(RefNotFoundError):
                    again.commit_of(Ref.step(4))
                run(again, 6, 7)
