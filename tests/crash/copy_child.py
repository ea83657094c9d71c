"""A process for `test_copy_kills`: `python -m tests.crash.copy_child NUMBER ACTION ACTIVE OTHER`.

It publishes, clones or starts two tiers on the real file system, and dies by SIGKILL just before
its operation of that number which changes anything; it ends with 0 where there are fewer.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from shardstore import Store, open_active
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.fs.posix import PosixFileSystem
from tests.support.stores import SETTINGS

CHANGING = frozenset(
    {"pwrite", "truncate", "datasync", "rename", "unlink", "sync_directory", "make_directory",
     "open_create", "open_replace"}
)  # fmt: skip


class DeadlyFileSystem(FaultyFileSystem):
    """The real one, up to an operation."""

    def __init__(self, number: int) -> None:
        super().__init__(PosixFileSystem(), before=self._count)
        self._left = number
        self._counting = threading.Lock()

    def _count(self, operation: Operation) -> None:
        if operation.op not in CHANGING:
            return
        with self._counting:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    number, action, active, other = sys.argv[1:]
    fs = DeadlyFileSystem(int(number))
    if action == "start":
        open_active(active, other, fs=fs, settings=SETTINGS).close()
        return
    with Store.open(active, "r+", settings=SETTINGS) as store:
        store._session.fs = fs  # what it copies to is counted, its own opening is not
        getattr(store, action)(other)


if __name__ == "__main__":
    main()
