"""What a long run may not gather: files, descriptors, memory, bytes of log.

500 commits here, 10,000 with --long; what is bounded does not know how many there were.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardstore import Retention, Settings, Store
from shardstore.fs.posix import PosixFile, PosixFileSystem
from shardstore.fs.protocol import OpenMode
from tests.support.threads import left_over

pytestmark = pytest.mark.req("S27")
OBJECTS = 32
LOG_BYTES_A_COMMIT = 8 * 1024
BLOCKS_GROWTH_MAX = 5000
"""Of Python's memory, whatever their sizes; a commit that left something would leave some each."""
SEGMENTS_ROOM = 3 * 4 * 1024 * 1024
"""Zeros ahead of the log's end, and segments on their way to being compressed."""


class UnsyncedFile(PosixFile):
    def datasync(self) -> None:
        """What is counted here does not depend on it."""


class Unsynced(PosixFileSystem):
    def open(self, path: str, mode: OpenMode, *, direct: bool = False) -> PosixFile:
        file = super().open(path, mode, direct=False)
        file.__class__ = UnsyncedFile
        return file

    def sync_directory(self, path: str) -> None:
        """As above."""


class Run:
    """Commits of 32 small objects, a few of them unchanged."""

    def __init__(self, store: Store, objects: int, *, in_flight: bool) -> None:
        self.store = store
        self.step = 0
        self._in_flight = in_flight
        self._tensors = [{"w": np.zeros(50, "f4")} for _ in range(objects)]

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            with self.store.begin(self.step) as txn:
                for index, tensors in enumerate(self._tensors):
                    tensors["w"][...] = self.step if index % 4 else 1
                    txn.stage(f"block_{index:03d}", "params", tensors)
                if self._in_flight:
                    txn.commit_async(metadata={"loss": 1 / self.step})
                else:
                    txn.commit(metadata={"loss": 1 / self.step})
        self.store.sync()


def measured(store: Store) -> dict[str, int]:
    store._session.pipeline.protocol._upkeep.wait()  # it comes and goes
    root = Path(store.path)
    gc.collect()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "files": len(os.listdir(root / "objects")),
        "blocks": sys.getallocatedblocks(),
        "log": sum(file.stat().st_size for file in (root / "wal").iterdir()),
    }


@pytest.mark.parametrize("kind", ["commit", "in flight", "deferred"])
@pytest.mark.parametrize(
    ("commits", "objects"), [(500, 4), pytest.param(10_000, OBJECTS, marks=pytest.mark.long)]
)
def test_what_a_long_run_may_not_gather(
    commits: int, objects: int, kind: str, tmp_path: Path
) -> None:
    durability: Any = "deferred" if kind == "deferred" else "commit"
    settings = Settings(host_budget_bytes=1 << 22, durability=durability, sync_every=50)
    with Store.open(tmp_path / "run", "a", fs=Unsynced(), settings=settings) as store:
        run = Run(store, objects, in_flight=kind == "in flight")
        store.set_retention(Retention(last=3))
        run.go_on(commits // 5)
        run.go_on(1)
        early, host = measured(store), store.host_bytes
        threads = set(threading.enumerate())
        run.go_on(commits - commits // 5 - 1)
        late = measured(store)
        assert late["descriptors"] == early["descriptors"]
        assert not left_over(threads)
        assert store.host_bytes <= host
        assert late["blocks"] - early["blocks"] < BLOCKS_GROWTH_MAX
        kept = len(store.kept)
        assert late["files"] <= (kept + 2 + (kind == "deferred")) * objects
        assert late["log"] <= commits * LOG_BYTES_A_COMMIT + SEGMENTS_ROOM
    with Store.open(tmp_path / "run") as reader:
        assert reader.head is not None and reader.head.step == commits


def test_a_commit_of_32_objects_takes_two_blocks_of_the_log(tmp_path: Path) -> None:
    """Counted where it is written: from the end of one frame to the end of the next."""
    with Store.open(tmp_path / "run", "a", fs=Unsynced()) as store:
        run = Run(store, OBJECTS, in_flight=False)
        run.go_on(5)
        writer = store._session.pipeline.protocol.writer
        begin = writer.offset
        run.go_on(100)
        assert store._session.pipeline.protocol.writer is writer
        assert (writer.offset - begin) / 100 <= LOG_BYTES_A_COMMIT
