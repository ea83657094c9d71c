"""Threads that work for one open store, or none: then every call is made where it is submitted.

Roles: `io` transfers pieces (several threads), `load` drives whole loads, `finish` digests and
labels objects, `complete` makes commits durable; the last two have one thread each, so their
calls are made in the order in which they were submitted. Contract: `io` waits for nothing, `finish`
and `load` wait for `io` only (a roll of the log: for `complete`), `complete` for all of them; no
role waits for itself. Threads are started at the first call and end with `close`. Whoever waits for
what a submitted call will do says so with `wait`.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from shardstore.errors import ClosedError
from shardstore.jobs import Done, Flag, Job, Pool

T = TypeVar("T")
LOADERS = 2


class Workers(Protocol):
    """See the module's docstring. Any thread may submit."""

    depth: int
    """Pieces that may usefully be in flight; 1 where `io` calls are made at once."""
    loads_ahead: bool
    """Whether `load` returns before the call is over."""

    def io(self, call: Callable[..., T], *args: Any) -> Job[T]: ...

    def load(self, call: Callable[..., T], *args: Any) -> Job[T]: ...

    def finish(self, call: Callable[..., T], *args: Any) -> Job[T]: ...

    def complete(self, call: Callable[..., T], *args: Any) -> Job[T]: ...

    def wait(self, flag: Flag) -> None:
        """Until a submitted call has set the flag."""

    def close(self) -> None: ...


class InlineWorkers:
    """Calls are made by the caller, and raise there: the order is that of the program."""

    depth = 1
    loads_ahead = False

    def io(self, call: Callable[..., T], *args: Any) -> Job[T]:
        return Done(call(*args))

    load = finish = complete = io

    def wait(self, flag: Flag) -> None:
        flag.wait()

    def close(self) -> None:
        return


class ThreadWorkers:
    """Threads of their own for each role."""

    loads_ahead = True

    def __init__(self, io_threads: int, loaders: int = LOADERS) -> None:
        self.depth = io_threads
        self._counts = {"io": io_threads, "load": loaders, "finish": 1, "complete": 1}
        self._pools: dict[str, Pool] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        _OPEN.add(self)

    def io(self, call: Callable[..., T], *args: Any) -> Job[T]:
        return self._submit("io", call, *args)

    def load(self, call: Callable[..., T], *args: Any) -> Job[T]:
        return self._submit("load", call, *args)

    def finish(self, call: Callable[..., T], *args: Any) -> Job[T]:
        return self._submit("finish", call, *args)

    def complete(self, call: Callable[..., T], *args: Any) -> Job[T]:
        return self._submit("complete", call, *args)

    def wait(self, flag: Flag) -> None:
        flag.wait()

    def close(self) -> None:
        """Wait for what was submitted and end the threads. A forked child has none."""
        if os.getpid() != self._process:
            return
        for role in ("load", "finish", "complete", "io"):
            pool = self._pools.get(role)
            if pool is not None:
                pool.close()
        self._closed = True

    def _submit(self, role: str, call: Callable[..., T], *args: Any) -> Job[T]:
        try:
            return self._pool(role).submit(call, *args)
        except RuntimeError as error:
            raise ClosedError(f"the store has no thread for its work: {error}") from error

    def _pool(self, role: str) -> Pool:
        pool = self._pools.get(role)
        if pool is None:
            if self._closed:
                raise RuntimeError("the store was closed")
            with self._lock:
                if role not in self._pools:
                    self._pools[role] = Pool(self._counts[role], f"shardstore-{role}")
                pool = self._pools[role]
        return pool


class CopyingWorkers(ThreadWorkers):
    """For reading what lies in memory already: one thread loads and moves the pieces itself. More
    would only take the processor from whoever writes what was read."""

    def __init__(self) -> None:
        super().__init__(io_threads=1, loaders=1)

    def io(self, call: Callable[..., T], *args: Any) -> Job[T]:
        return Done(call(*args))


def make_workers(io_threads: int) -> Workers:
    """Threads, or none where `io_threads` is 0."""
    return ThreadWorkers(io_threads) if io_threads else InlineWorkers()


_OPEN: weakref.WeakSet[ThreadWorkers] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """What was submitted is made, also where nobody closed the store."""
    for workers in list(_OPEN):
        workers.close()
