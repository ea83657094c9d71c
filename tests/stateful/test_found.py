"""What the stateful machine found, each as a test of its own that says what went wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardstore.errors import StorageError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.store import Store
from tests.support.stores import commit, expected, open_store, values


@pytest.mark.req("S7", "S16", "S18")
@pytest.mark.parametrize("copy", [Store.publish, Store.clone])
@pytest.mark.parametrize("op", ["pread", "open_read", "list_directory", "stat", "open_pins"])
def test_a_copy_that_cannot_read_its_own_log_says_so(
    copy: Callable[[Store, str], object], op: str
) -> None:
    """The system's own error came out where the log could not be read before the state was held."""
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs) as store:
        commit(store, 1)
        fs.fail(op, "run*", times=None)
        with pytest.raises(StorageError, match="run"):
            copy(store, "other")
        fs.clear()
        copy(store, "other")
        with Store.open("other", fs=fs) as other:
            assert values(other) == expected(1)
