"""A disk without room for the zeros ahead of the log: opening, deleting and going on all the same.

Method: a memory file system of a limited capacity, filled up to a few blocks.
"""

from __future__ import annotations

import errno

import pytest

from shardstore import Store
from shardstore.context import Settings
from shardstore.errors import StorageError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from tests.support.stores import ROOT, commit, expected, open_store, tree, values

pytestmark = pytest.mark.req("S18")
AHEAD = Settings(prewrite_bytes=4 << 20, host_budget_bytes=0)
BLOCK = 4096


def filled(blocks: int) -> MemoryFileSystem:
    """A store with two snapshots, and room for so many blocks."""
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        for step in (1, 2, 3):
            commit(store, step)
            store.snapshot(f"s{step}")
    fs.capacity_bytes = 1 << 40
    used = fs.capacity_bytes - fs.free_bytes(ROOT)
    fs.capacity_bytes = used + blocks * BLOCK
    return fs


def test_a_full_disk_does_not_keep_out_who_wants_to_delete() -> None:
    fs = filled(blocks=16)
    with Store.open(ROOT, "r+", fs=fs, settings=AHEAD) as store:
        store.delete("s1")
        commit(store, 4)
        assert values(store) == expected(4)
    with Store.open(ROOT, fs=fs, settings=AHEAD) as store:
        assert values(store) == expected(4) and [s.name for s in store.snapshots] == ["s2", "s3"]


def test_where_nothing_fits_the_failed_opening_leaves_nothing() -> None:
    fs = filled(blocks=0)
    before = tree(fs, ROOT)
    with pytest.raises(StorageError):
        Store.open(ROOT, "r+", fs=fs, settings=AHEAD)
    assert tree(fs, ROOT) == before
    fs.capacity_bytes += 1 << 24
    with Store.open(ROOT, "r+", fs=fs, settings=AHEAD) as store:
        assert values(store) == expected(3)


@pytest.mark.parametrize("error", [errno.EFBIG, errno.EDQUOT])
def test_other_limits_are_taken_alike(error: int) -> None:
    fs = FaultyFileSystem(filled(blocks=5000))
    fs.fail("pwrite", "*/wal/tmp", nth=2, error=error)
    with Store.open(ROOT, "r+", fs=fs, settings=AHEAD) as store:
        commit(store, 4)
        assert values(store) == expected(4)
