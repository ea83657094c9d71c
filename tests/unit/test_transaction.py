"""Transactions: what is said of each part, what is refused, and what a commit carries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from shardstore import Store
from shardstore.errors import (
    ClosedError,
    IncompleteCommitError,
    InvalidNameError,
    InvalidTensorError,
    PartNotFoundError,
    TransactionError,
    UsageError,
)
from shardstore.fs.memory import MemoryFileSystem
from shardstore.metadata import BLOBS_BYTES_MAX, METADATA_BYTES_MAX, METADATA_DEPTH_MAX
from tests.support.stores import (
    PARTS,
    commit,
    content,
    expected,
    object_files,
    open_store,
    value_of,
    values,
)


@pytest.mark.req("S2")
def test_a_commit_publishes_all_parts_of_a_step() -> None:
    with open_store() as store:
        assert store.head is None
        made = commit(store, 3, metadata={"loss": 9.1}, blobs={"rng": b"\0\1"})
        assert store.head == made
        assert (made.step, made.branch, made.durable) == (3, "main", True)
        assert made.metadata == {"loss": 9.1} and made.blobs == {"rng": b"\0\1"}
        assert made.parts == set(PARTS)
        assert values(store) == expected(3)


@pytest.mark.req("S2")
def test_silence_about_a_part_of_the_parent_is_refused_with_the_list() -> None:
    with open_store() as store:
        before = commit(store, 1)
        with store.begin(2) as txn:
            txn.stage("a", "params", content(5))
            with pytest.raises(IncompleteCommitError, match="a/optim, b/params") as caught:
                txn.commit()
            assert caught.value.missing == (("a", "optim"), ("b", "params"))
            assert store.head == before
            txn.keep("a", "optim")  # the transaction is still open
            txn.remove("b", "params")
            assert txn.commit().parts == {("a", "params"), ("a", "optim")}
        assert value_of(store, "a", "params") == 5 and value_of(store, "a", "optim") == 11


@pytest.mark.req("S2")
def test_what_is_expected_must_be_staged_and_nothing_else_may_be() -> None:
    with open_store() as store:
        with store.begin(1, expect=[("a", "p"), ("b", "p")]) as txn:
            txn.stage("a", "p", content(1))
            with pytest.raises(PartNotFoundError, match="not expected"):
                txn.stage("c", "p", content(1))
            with pytest.raises(IncompleteCommitError, match="b/p"):
                txn.commit()
            with pytest.raises(PartNotFoundError):
                txn.keep("b", "p")
            txn.stage("b", "p", content(2))
            txn.commit()
        with store.begin(2, expect=iter([("c", "p")])) as txn:  # the parent's parts count too
            txn.stage("c", "p", content(3))
            with pytest.raises(IncompleteCommitError, match="a/p, b/p"):
                txn.commit()
            txn.keep_rest()
            assert len(txn.commit().parts) == 3


def test_an_expected_part_may_be_staged_and_then_removed() -> None:
    with open_store() as store, store.begin(1, expect=[("a", "p"), ("b", "p")]) as txn:
        txn.stage("a", "p", content(1))
        txn.stage("b", "p", content(1))
        txn.remove("b", "p")
        with pytest.raises(PartNotFoundError):
            txn.load("b", "p")
        assert txn.commit().parts == {("a", "p")}


@pytest.mark.parametrize("expect", [[["a", "p"]], ["ap"], [("a",)], [("a", "p", "q")], [1]])
def test_expect_takes_pairs(expect: Any) -> None:
    with open_store() as store:
        with pytest.raises(InvalidNameError):
            store.begin(1, expect=expect)
        commit(store, 1)


@pytest.mark.req("S2")
@pytest.mark.parametrize("how", ["leave", "raise", "abort", "close"])
def test_leaving_without_commit_aborts_and_gives_the_slots_back(how: str) -> None:
    fs = MemoryFileSystem()
    store = open_store(fs)
    before = commit(store, 1)
    commit(store, 2)
    files: set[str] = set()
    for _ in range(3):
        with pytest.raises(KeyError) if how == "raise" else _nothing(), store.begin(3) as txn:
            for shard, part in PARTS:
                txn.stage(shard, part, content(99))
            files |= set(object_files(fs))
            if how == "abort":
                txn.abort()
            if how == "raise":
                raise KeyError
            if how == "close":
                store.close()
                store = open_store(fs)
        assert txn.finished
        with pytest.raises(TransactionError, match="finished"):
            txn.stage("a", "params", content(1))
        assert values(store) == expected(2) and values(store, "main") == expected(2)
        assert store.head is not None and store.head.parts == before.parts
    assert len(files) == 3 * len(PARTS)
    commit(store, 3)
    assert values(store) == expected(3)
    store.close()


class _nothing:
    def __enter__(self) -> None:
        return

    def __exit__(self, *details: object) -> None:
        return


def test_an_abort_after_the_commit_changes_nothing() -> None:
    """An interrupt between the commit and its return leads there: the slots are the head's now."""
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        with store.begin(1) as txn:
            txn.stage("a", "p", content(1))
            txn.commit()
            txn.finished = False
        for value in (2, 3, 4):
            with store.begin(2) as txn:
                txn.stage("a", "p", content(value))
                txn.abort()
        assert value_of(store, "a", "p") == 1


def test_the_last_word_about_a_part_counts() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        with store.begin(2) as txn:
            for value in (7, 8, 9):
                txn.stage("a", "params", content(value))
            txn.stage("a", "optim", content(1))
            txn.keep("a", "optim")
            txn.keep_rest()
            txn.remove("b", "params")
            txn.remove("a", "optim")
            txn.stage("a", "optim", content(6))
            txn.keep_rest()  # neither what was staged nor what was removed
            txn.commit()
        assert values(store) == {("a", "params"): 9, ("a", "optim"): 6}
        assert len(object_files(fs)) <= 2 * len(PARTS) + 1


def test_what_is_staged_again_reuses_its_own_slot() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store, store.begin(1) as txn:
        for value in range(20):
            txn.stage("a", "p", content(value))
        txn.commit()
        assert len(object_files(fs)) == 2
        assert value_of(store, "a", "p") == 19


def test_a_transaction_sees_what_is_staged_and_else_the_parent() -> None:
    with open_store() as store:
        commit(store, 1)
        with store.begin(2) as txn:
            with txn.load("a", "params") as loaded:
                assert int(loaded.numpy()["n"]) == 10
            txn.stage("a", "params", content(77))
            with txn.load("a", "params") as loaded:
                assert int(loaded.numpy()["n"]) == 77
            assert value_of(store, "a", "params") == 10
            txn.remove("a", "optim")
            with pytest.raises(PartNotFoundError):
                txn.load("a", "optim")
            with pytest.raises(PartNotFoundError):
                txn.checkout("c", "params")
            with pytest.raises(PartNotFoundError):
                txn.keep("c", "params")
            with pytest.raises(PartNotFoundError):
                txn.remove("c", "params")


def test_a_checked_out_buffer_is_changed_and_donated() -> None:
    with open_store() as store:
        commit(store, 1)
        with store.begin(2) as txn:
            optim = txn.checkout("a", "optim")
            tensors = optim.torch()
            assert tensors["n"].item() == 11
            tensors["w"].fill_(5)
            tensors["n"].fill_(5)
            assert value_of(store, "a", "optim") == 11
            with pytest.raises(TransactionError, match="donate=True"):
                txn.stage("a", "optim", optim)
            with pytest.raises(TransactionError, match="cannot be donated"):
                txn.stage("a", "params", optim, donate=True)
            txn.stage("a", "optim", optim, donate=True)
            with pytest.raises(ClosedError, match="donated"):
                optim.torch()
            with pytest.raises(ClosedError):
                txn.stage("a", "optim", optim, donate=True)
            tensors["w"].fill_(6)  # a view that was kept changes nothing any more
            again = txn.checkout("a", "optim")
            assert again.numpy()["n"] == 5 and (again.numpy()["w"] == 5).all()
            txn.keep_rest()
            txn.commit()
        with pytest.raises(ClosedError):
            again.numpy()
        assert value_of(store, "a", "optim") == 5


def test_an_abort_throws_checkouts_away() -> None:
    with open_store() as store:
        commit(store, 1)
        with store.begin(2) as txn:
            optim = txn.checkout("a", "optim")
            optim.numpy()["n"][...] = 3
        with pytest.raises(ClosedError):
            optim.numpy()
        with store.begin(2) as txn, pytest.raises(ClosedError):
            txn.stage("a", "optim", optim, donate=True)
        assert values(store) == expected(1)


def test_only_what_was_checked_out_can_be_donated() -> None:
    with (
        open_store() as store,
        store.begin(1) as txn,
        pytest.raises(TransactionError, match="checkout"),
    ):
        txn.stage("a", "p", content(1), donate=True)


def test_staging_copies_before_it_returns() -> None:
    with open_store() as store:
        array, tensor = np.arange(6.0).reshape(2, 3), torch.arange(4.0)
        with store.begin(1) as txn:
            half = torch.ones(2, dtype=torch.bfloat16)
            txn.stage("a", "p", {"x": array.T, "y": tensor, "z": half})
            array[:] = -1
            tensor.zero_()
            txn.commit()
        with store.load("a", "p") as loaded:
            found = loaded.torch()
            assert found["x"].tolist() == [[0, 3], [1, 4], [2, 5]]
            assert found["y"].tolist() == [0, 1, 2, 3]
            assert found["z"].dtype == torch.bfloat16
            with pytest.raises(ValueError, match="read-only"):
                np.frombuffer(loaded.raw("x"))[0] = 1


def test_what_cannot_be_stored_is_refused_by_name_and_changes_nothing() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store, store.begin(1) as txn:
        txn.stage("a", "p", content(1))
        before = len(fs.log)
        for bad in ({"w": [1.0]}, {"w": np.array(["x"])}, {"w": np.array([object()])}):
            with pytest.raises(InvalidTensorError, match=r"'a'.*'p'.*'w'"):
                txn.stage("a", "p", bad)
        assert len(fs.log) == before
        txn.commit()
        assert value_of(store, "a", "p") == 1


@pytest.mark.req("S2")
def test_one_transaction_at_a_time_and_no_ref_moves_beside_it() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("best")
        with store.begin(2) as txn:
            for call in (
                lambda: store.begin(2),
                lambda: store.rewind("best"),
                lambda: store.snapshot("other"),
                lambda: store.delete("best"),
                store.undo,
            ):
                with pytest.raises(TransactionError, match="transaction of step 2 is open"):
                    call()
            txn.stage("a", "params", content(1))
            txn.keep_rest()
            txn.commit()
        assert [snapshot.name for snapshot in store.snapshots] == ["best"]
        store.rewind("best")


@pytest.mark.parametrize("step", [-1, 2**63, 1.0, "1", True, None])
def test_a_step_is_a_number_that_fits(step: Any) -> None:
    with open_store() as store:
        with pytest.raises(UsageError, match="step"):
            store.begin(step)
        commit(store, 2**63 - 1, value=1)


def test_steps_never_decrease_along_a_line() -> None:
    with open_store() as store:
        commit(store, 5)
        commit(store, 5, value=6)
        with pytest.raises(TransactionError, match="never decrease"):
            store.begin(4)
        commit(store, 9)


def test_a_commit_without_any_part_is_a_commit() -> None:
    with open_store() as store:
        with store.begin(0) as txn:
            assert txn.commit(metadata={"empty": True}).parts == frozenset()
        commit(store, 1)


# ------------------------------------------------------------------ metadata and blobs


@pytest.mark.req("S21")
def test_metadata_comes_back_exactly() -> None:
    fs, metadata = MemoryFileSystem(), {
        "nan": math.nan, "inf": math.inf, "minus": -math.inf, "zero": -0.0, "tiny": 5e-324,
        "third": 1 / 3, "big": 2**200, "text": 'ä\0\ud800"\n', "": [None, True, False, [], {}],
        "nested": {"a": {"b": [1, 1.0, "1"]}},
    }  # fmt: skip
    with open_store(fs) as store:
        commit(store, 1, metadata=metadata)
        store.snapshot("s")
        commit(store, 2)
        commit(store, 3)
    with open_store(fs, "r") as store:
        found = dict(store.commit_of("s").metadata)
    assert repr(found) == repr({key: metadata[key] for key in sorted(metadata)})
    assert [type(x) for x in found["nested"]["a"]["b"]] == [int, float, str]
    assert math.copysign(1, found["zero"]) == -1


@pytest.mark.req("S21")
@pytest.mark.parametrize(
    "metadata",
    [
        {"a": (1, 2)}, {"a": {1}}, {1: "a"}, {"a": {None: 1}}, {"a": b"x"}, {"a": np.float32(1)},
        {"a": [{"b": object()}]}, {"a": torch.ones(1)}, [1], "text", 3, (), {"a": 10**5000},
    ],
    ids=[*("tuple", "set", "number as key", "None as key", "bytes", "numpy scalar", "object"),
         *("tensor", "list", "string", "number", "empty tuple", "huge number")],
)  # fmt: skip
def test_metadata_that_would_not_come_back_is_refused(metadata: Any) -> None:
    with open_store() as store, store.begin(1) as txn:
        txn.stage("a", "p", content(1))
        with pytest.raises(InvalidTensorError, match="metadata"):
            txn.commit(metadata=metadata)
        txn.commit()


@pytest.mark.req("S21")
def test_metadata_that_is_nested_too_deep_or_in_itself_is_refused() -> None:
    """What a shallow stack can write a deep one must be able to read."""
    with open_store() as store, store.begin(1) as txn:
        txn.stage("a", "p", content(1))
        circular: dict[str, Any] = {}
        circular["a"] = circular
        with pytest.raises(InvalidTensorError, match="deep"):
            txn.commit(metadata=circular)
        deep: Any = 1
        for _ in range(METADATA_DEPTH_MAX):
            deep = {"a": deep}
        with pytest.raises(InvalidTensorError, match="deep"):
            txn.commit(metadata={"a": deep})
        assert txn.commit(metadata=deep).metadata == deep


@pytest.mark.req("S21")
def test_metadata_belongs_to_the_commit_and_not_to_the_caller() -> None:
    fs, metadata = MemoryFileSystem(), {"loss": [1.0]}
    with open_store(fs) as store:
        made = commit(store, 1, metadata=metadata)
        metadata["loss"].append(2.0)
        made.metadata["loss"].append(3.0)
        assert store.head is not None
        store.head.metadata["loss"].append(4.0)
        store.snapshot("best")
        assert store.head.metadata == {"loss": [1.0]}
    with open_store(fs) as store:
        assert store.commit_of("best").metadata == {"loss": [1.0]}


@pytest.mark.req("S21")
def test_metadata_and_blobs_have_a_limit_with_advice() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        with store.begin(1) as txn:
            txn.stage("a", "p", content(1))
            room = METADATA_BYTES_MAX - len('{"a":""}')
            with pytest.raises(InvalidTensorError, match="stage what is large as a part"):
                txn.commit(metadata={"a": "x" * (room + 1)})
            half = BLOBS_BYTES_MAX // 2
            with pytest.raises(InvalidTensorError, match="stage what is large as a part"):
                txn.commit(blobs={"a": bytes(half), "b": bytes(half + 1)})
            wide = memoryview(np.zeros(BLOBS_BYTES_MAX // 8 + 1, "i8"))
            with pytest.raises(InvalidTensorError, match="stage what is large as a part"):
                txn.commit(blobs={"a": wide})
            blobs = {"a": bytes(half), "b": bytearray(half)}
            txn.commit(metadata={"a": "x" * room}, blobs=blobs)
        store.snapshot("large")
    with open_store(fs) as store:
        assert store.commit_of("large").blobs == blobs


@pytest.mark.req("S21")
@pytest.mark.parametrize("blobs", [{"a": "text"}, {"a": [1]}, {"a": None}, [b"x"], b"x"])
def test_blobs_are_bytes(blobs: Any) -> None:
    with open_store() as store, store.begin(1) as txn:
        with pytest.raises(InvalidTensorError, match="blob"):
            txn.commit(blobs=blobs)
        strided = memoryview(b"a-b-c-")[::2]
        assert txn.commit(blobs={"a": strided}).blobs == {"a": b"abc"}


def test_transactions_of_a_closed_store_are_finished() -> None:
    store: Store = open_store()
    txn = store.begin(1)
    store.close()
    with pytest.raises(TransactionError):
        txn.commit()
    with pytest.raises(ClosedError):
        store.begin(1)
