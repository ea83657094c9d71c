"""Unchanged shards cost nothing; what differs is written, however late the difference stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardstore import Ref, Store
from shardstore.context import Settings
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from tests.support.stores import ROOT, open_store
from tests.support.workers import HeldWorkers

pytestmark = pytest.mark.req("S19")
FROZEN = 600_000
ENGINES = ["inline", "held", "threads"]


def settings(engine: str, budget: int = 1 << 24) -> Settings:
    return Settings(
        host_budget_bytes=budget, prewrite_bytes=32 * 1024, piece_bytes=64 * 1024,
        io_threads=2 if engine == "threads" else 0,
        workers=HeldWorkers() if engine == "held" else None,
    )  # fmt: skip


def frozen(last: int = 0, first: int = 0) -> dict[str, Any]:
    data = np.arange(FROZEN, dtype=np.uint32).astype(np.uint8)
    data[0], data[-1] = first, last
    return {"w": data}


class Written:
    """Bytes written into objects' files, by slot."""

    def __init__(self, inner: MemoryFileSystem) -> None:
        self.fs = FaultyFileSystem(inner, before=self._count)
        self.bytes = 0

    def _count(self, operation: Operation) -> None:
        if operation.op == "pwrite" and "/objects/" in operation.path:
            self.bytes += int(operation.detail[1])

    def taken(self) -> int:
        count, self.bytes = self.bytes, 0
        return count


def head_of(store: Store, at: Ref = Ref.head) -> Any:
    with store.load("f", "p", at) as loaded:
        return loaded.numpy()["w"].copy()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("budget", [0, 1 << 24])
def test_equal_bytes_are_not_written(engine: str, budget: int) -> None:
    inner = MemoryFileSystem()
    written = Written(inner)
    with open_store(written.fs, settings=settings(engine, budget)) as store:
        with store.begin(1) as txn:
            txn.stage("f", "p", frozen())
            txn.stage("m", "p", {"w": np.zeros(100, "u1")})
            assert txn.unchanged == frozenset()
            txn.commit()
        first = dict(store._find(Ref.head).manifest)
        written.taken()
        for step in (2, 3, 4):
            with store.begin(step) as txn:
                txn.stage("f", "p", frozen())
                txn.stage("m", "p", {"w": np.full(100, step, "u1")})
                assert txn.unchanged == {("f", "p")}
                assert txn.written_bytes == 8192
                with txn.load("f", "p") as loaded:
                    assert (loaded.numpy()["w"] == frozen()["w"]).all()
                txn.commit()
            assert written.taken() == 8192
            assert store._find(Ref.head).manifest["f", "p"] == first["f", "p"]
            assert (head_of(store) == frozen()["w"]).all()
            into = bytearray(store.size_of("f", "p"))
            store.load("f", "p", into=into).close()
            on_disk = bytearray(len(into))
            inner.open(f"{ROOT}/{first['f', 'p'].file}", "read").pread(0, on_disk)
            assert into == on_disk, "with the header that the file has"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("donate", [False, True])
def test_equal_to_a_commit_in_flight(engine: str, donate: bool) -> None:
    written = Written(MemoryFileSystem())
    with open_store(written.fs, settings=settings(engine)) as store:
        for step in (1, 2, 3, 4):
            with store.begin(step) as txn:
                if donate and step > 1:
                    txn.stage("f", "p", txn.checkout("f", "p"), donate=True)
                else:
                    txn.stage("f", "p", frozen())
                txn.commit_async()
        store.sync()
        assert written.taken() == store.size_of("f", "p")
        assert len({store._find(Ref.step(s)).manifest["f", "p"] for s in (3, 4)}) == 1
        store.clear_cache()
        assert (head_of(store) == frozen()["w"]).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("change", [{"last": 7}, {"first": 7}])
def test_a_difference_anywhere_is_written(
    engine: str, donate: bool, change: dict[str, int]
) -> None:
    """The first 256 KiB agree: then the whole is compared before anything is believed."""
    written = Written(MemoryFileSystem())
    with open_store(written.fs, settings=settings(engine)) as store:
        with store.begin(1) as txn:
            txn.stage("f", "p", frozen())
            txn.commit()
        written.taken()
        with store.begin(2) as txn:
            if donate:
                checkout = txn.checkout("f", "p")
                checkout.numpy()["w"][...] = frozen(**change)["w"]
                txn.stage("f", "p", checkout, donate=True)
            else:
                txn.stage("f", "p", frozen(**change))
            assert txn.unchanged == frozenset()
            assert txn.written_bytes == store.size_of("f", "p")
            txn.commit()
        assert written.taken() == store.size_of("f", "p")
        store.clear_cache()
        assert (head_of(store) == frozen(**change)["w"]).all()
        assert (head_of(store, Ref.step(1)) == frozen()["w"]).all()


def test_equal_bytes_under_another_name_or_shape_are_written() -> None:
    written = Written(MemoryFileSystem())
    with open_store(written.fs, settings=settings("inline")) as store:
        with store.begin(1) as txn:
            txn.stage("f", "p", frozen())
            txn.commit()
        for step, tensors in (
            (2, {"other": frozen()["w"]}),
            (3, {"other": frozen()["w"].reshape(2, -1)}),
            (4, {"other": frozen()["w"].reshape(2, -1).view(np.int8)}),
        ):
            written.taken()
            with store.begin(step) as txn:
                txn.stage("f", "p", tensors)
                assert txn.unchanged == frozenset()
                txn.commit()
            assert written.taken() == store.size_of("f", "p")
            with store.load("f", "p") as loaded:
                array = loaded.numpy()["other"]
                assert (array.shape, array.dtype) == (
                    tensors["other"].shape,
                    tensors["other"].dtype,
                )


def test_a_damaged_parent_is_no_reason_to_keep_it() -> None:
    inner = MemoryFileSystem()
    with open_store(inner, settings=settings("inline", 0)) as store:
        with store.begin(1) as txn:
            txn.stage("f", "p", frozen())
            txn.commit()
        slot = store._find(Ref.head).manifest["f", "p"].file
        inner.open(f"{ROOT}/{slot}", "write").pwrite(100, b"damage")
        with store.begin(2) as txn:
            txn.stage("f", "p", frozen())
            assert txn.unchanged == frozenset()
            txn.commit()
        assert (head_of(store) == frozen()["w"]).all()


def test_an_abort_and_a_second_staging_leave_the_parents_object_alone() -> None:
    inner = MemoryFileSystem()
    with open_store(inner, settings=settings("inline", 0)) as store:
        with store.begin(1) as txn:
            txn.stage("f", "p", frozen())
            txn.commit()
        with store.begin(2) as txn:
            txn.stage("f", "p", frozen())
            txn.stage("f", "p", frozen(last=3))
            txn.stage("f", "p", frozen())
        with store.begin(2) as txn:
            txn.stage("f", "p", frozen(last=1))
            txn.commit()
        assert (head_of(store) == frozen(last=1)["w"]).all()
        assert (head_of(store, Ref.step(1)) == frozen()["w"]).all()
