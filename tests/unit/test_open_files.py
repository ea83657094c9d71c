"""More staged parts than files may be open: files are synced early, in no thread's way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardstore import Store
from shardstore.context import Settings
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.fs.posix import PosixFileSystem
from tests.support.stores import open_store

pytestmark = pytest.mark.req("S14")

MANY = """
import resource, sys
import numpy as np
from shardstore import Store
from shardstore.context import Settings
resource.setrlimit(resource.RLIMIT_NOFILE, (190, 190))
parts = int(sys.argv[2])
settings = Settings(durability=sys.argv[3], io_threads=int(sys.argv[4]), commits_in_flight=2)
with Store.open(sys.argv[1], "a", settings=settings) as store:
    for step in (1, 2, 3):
        with store.begin(step) as txn:
            for index in range(parts):
                txn.stage(f"s{index}", "p", {"w": np.full(9, step * index % 251, "u1")})
            txn.commit_async()
    store.sync()
    for index in range(parts):
        with store.load(f"s{index}", "p") as loaded:
            assert (loaded.numpy()["w"] == 3 * index % 251).all()
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("parts", "durability", "threads"),
    [(150, "commit", 2), (150, "deferred", 2), (150, "commit", 0), (1100, "deferred", 2)],
)
def test_more_parts_than_descriptors(
    tmp_path: Path, parts: int, durability: str, threads: int
) -> None:
    subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path / "run"), str(parts), durability, str(threads)],
        check=True, timeout=170,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip


def settings(**changes: Any) -> Settings:
    return Settings(**{"host_budget_bytes": 1 << 24, "io_threads": 2, **changes})


def small(value: int) -> dict[str, Any]:
    return {"w": np.full(50, value % 251, np.uint8)}


def check(store: Store, count: int, step: int) -> None:
    store.clear_cache()
    for index in range(count):
        with store.load(f"s{index}", "p") as loaded:
            assert (loaded.numpy()["w"] == (step + index) % 251).all()


class Gated(FaultyFileSystem):
    """Reads of objects wait until `gate` is set."""

    def __init__(self, inner: MemoryFileSystem) -> None:
        super().__init__(inner, before=self._hold)
        self.gate = threading.Event()
        self.gate.set()
        self.waits = threading.Event()

    def _hold(self, operation: Operation) -> None:
        if operation.op == "open_read" and "/objects/" in operation.path:
            self.waits.set()
            self.gate.wait()


@pytest.mark.timeout(60)
def test_the_finishing_thread_waits_for_no_object_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A donated object is compared with its twin while as many files as may be are opened, all of
    them behind it in the finishing thread's queue; then it needs a file too."""
    monkeypatch.setattr("shardstore.slot_files.OPEN_FILES_MAX", 3)
    fs = Gated(MemoryFileSystem())
    with open_store(fs, settings=settings()) as store:
        big = np.arange(400_000, dtype=np.uint32).astype(np.uint8)
        with store.begin(1) as txn:
            txn.stage("big", "p", {"w": big})
            txn.commit()
        with store.begin(2, expect=[("big", "p")]) as txn:
            checkout = txn.checkout("big", "p")
            checkout.numpy()["w"][-1] ^= 1
            fs.waits.clear()
            fs.gate.clear()
            txn.stage("big", "p", checkout, donate=True)
            fs.waits.wait()
            opener = threading.Thread(target=fs.gate.set)
            for index in range(2):
                txn._open_set = True
                txn.stage(f"s{index}", "p", small(2 + index))
            opener.start()
            for index in range(2, 9):
                txn.stage(f"s{index}", "p", small(2 + index))
            txn.commit()
            opener.join()
        check(store, 9, 2)


@pytest.mark.timeout(60)
def test_no_file_is_closed_while_its_object_is_being_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Donated objects queue behind each other while one more is copied piece by piece."""
    monkeypatch.setattr("shardstore.slot_files.OPEN_FILES_MAX", 4)
    chosen = settings(piece_bytes=4096)
    with open_store(settings=chosen) as store:
        with store.begin(1) as txn:
            for index in range(9):
                txn.stage(f"s{index}", "p", small(1 + index))
            txn.stage("big", "p", {"w": np.zeros(3_000_000, np.uint8)})
            txn.commit()
        for step in range(2, 6):
            with store.begin(step) as txn:
                for index in range(9):
                    checkout = txn.checkout(f"s{index}", "p")
                    checkout.numpy()["w"][...] = (step + index) % 251
                    txn.stage(f"s{index}", "p", checkout, donate=True)
                txn.stage("big", "p", {"w": np.full(3_000_000, step, np.uint8)})
                txn.commit_async()
            store.sync()
            check(store, 9, step)
            with store.load("big", "p") as loaded:
                assert (loaded.numpy()["w"] == step).all()


@pytest.mark.parametrize("durability", ["commit", "deferred"])
@pytest.mark.parametrize("end", ["close", "fault", "abort"])
def test_every_descriptor_is_closed(tmp_path: Path, durability: Any, end: str) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    fs = FaultyFileSystem(PosixFileSystem())
    before = count()
    store = Store.open(tmp_path / "run", "a", fs=fs, settings=settings(durability=durability))
    for step in range(1, 6):
        with store.begin(step) as txn:
            for index in range(7):
                txn.stage(f"s{index}", "p", small(step + index if index else 0))
            if step == 4 and end == "abort":
                continue
            if step == 4 and end == "fault":
                fs.fail("pwrite", "*/wal/*")
            try:
                txn.commit()
            except Exception:
                assert end == "fault"
                break
    if durability == "commit" and end == "close":
        assert count() <= before + 6, "only the log and the lock stay open"
    store.close()
    assert count() <= before
