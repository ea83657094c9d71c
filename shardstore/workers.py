"""Threads that work for one open store, or none: then every call is made where it is submitted.

Roles: `io` transfers pieces (several threads), `load` drives whole loads, `finish` digests and
labels objects, `complete` makes commits durable; the last two have one thread each, so their
calls are made in the order in which they were submitted. Contract: `io` waits for nothing, `finish`
and `load` wait for `io` only (a roll of the log: for `complete`), `complete` for all of them; no
role waits for itself. Threads are started at the first call and end with `close`. Whoever waits for
what a submitted call will do says so with `wait`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from shardstore.errors import ClosedError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
LOADERS = 2


class Job(Protocol[T_co]):
    """A call that was submitted."""

    def result(self) -> T_co:
        """Wait for the call; what it returned, or raises what it raised."""

    def done(self) -> bool: ...


class Done:
    """A job that was over when it was submitted."""

    def __init__(self, value: Any = None) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value

    def done(self) -> bool:
        return True

    def give_up(self) -> None:
        """Nothing is left to be given up."""


class Once(Generic[T_co]):
    """A call that is known before it is submitted: an interrupt may come between submitting a call
    and learning of it, and then somebody has to wait all the same. It is made once at most, by the
    thread that it is submitted to.
    """

    def __init__(self, call: Callable[..., T_co], *args: Any) -> None:
        self._call: Callable[[], T_co] | None = partial(call, *args)
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._thread = 0
        """Who makes the call: where that is who waits, an interrupt ended it and left no word."""
        self._value: Any = None
        self._error: Exception | None = None

    def __call__(self) -> None:
        try:
            call = self._take()
            if call is not None:
                self._value = call()
        except Exception as error:
            self._error = error
            raise
        finally:
            self._over.set()

    def result(self) -> T_co:
        self._wait()
        if self._error is not None:
            raise self._error
        value: T_co = self._value
        return value

    def done(self) -> bool:
        return self._over.is_set()

    def give_up(self) -> None:
        """It will not be begun any more; where it was, this waits for its end."""
        if self._take() is not None:
            self._over.set()
        self._wait()

    def _take(self) -> Callable[[], T_co] | None:
        with self._mutex:
            self._thread = self._thread or threading.get_ident()
            call, self._call = self._call, None
        return call

    def _wait(self) -> None:
        if self._thread != threading.get_ident():
            self._over.wait()


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

    def wait(self, event: threading.Event) -> None:
        """Until a submitted call has set the event."""

    def close(self) -> None: ...


class InlineWorkers:
    """Calls are made by the caller, and raise there: the order is that of the program."""

    depth = 1
    loads_ahead = False

    def io(self, call: Callable[..., T], *args: Any) -> Job[T]:
        return Done(call(*args))

    load = finish = complete = io

    def wait(self, event: threading.Event) -> None:
        event.wait()

    def close(self) -> None:
        return


class ThreadWorkers:
    """Threads of their own for each role."""

    loads_ahead = True

    def __init__(self, io_threads: int, loaders: int = LOADERS) -> None:
        self.depth = io_threads
        self._counts = {"io": io_threads, "load": loaders, "finish": 1, "complete": 1}
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()
        self._closed = False

    def io(self, call: Callable[..., T], *args: Any) -> Job[T]:
        return self._submit("io", call, *args)

    def load(self, call: Callable[..., T], *args: Any) -> Job[T]:
        return self._submit("load", call, *args)

    def finish(self, call: Callable[..., T], *args: Any) -> Job[T]:
        return self._submit("finish", call, *args)

    def complete(self, call: Callable[..., T], *args: Any) -> Job[T]:
        return self._submit("complete", call, *args)

    def wait(self, event: threading.Event) -> None:
        event.wait()

    def close(self) -> None:
        """Wait for what was submitted and end the threads."""
        for role in ("load", "finish", "complete", "io"):
            pool = self._pools.get(role)
            if pool is not None:
                pool.shutdown(wait=True)
        self._closed = True

    def _submit(self, role: str, call: Callable[..., T], *args: Any) -> Job[T]:
        try:
            return self._pool(role).submit(call, *args)
        except RuntimeError as error:  # another thread closed the store, or the process ends
            raise ClosedError(f"the store's threads have ended: {error}") from error

    def _pool(self, role: str) -> ThreadPoolExecutor:
        pool = self._pools.get(role)
        if pool is None:
            from concurrent.futures import ThreadPoolExecutor  # slow to import; not every command

            if self._closed:
                raise RuntimeError("the store was closed")
            with self._lock:
                if role not in self._pools:
                    self._pools[role] = ThreadPoolExecutor(
                        self._counts[role], thread_name_prefix=f"shardstore-{role}"
                    )
                pool = self._pools[role]
        return pool


class CopyingWorkers(ThreadWorkers):
    """For reading what lies in memory already: one thread loads and moves the pieces itself. More
    would only take the processor from whoever writes what was read."""

    def __init__(self) -> None:
        super().__init__(io_threads=1, loaders=1)

    def io(self, call: Callable[..., T], *args: Any) -> Job[T]:
        return Done(call(*args))


def settle_jobs(jobs: Iterable[Job[Any]]) -> None:
    """Wait until all are over, whatever came of them: whoever needs a result is told by it."""
    for job in jobs:
        with suppress(Exception):
            job.result()


def make_workers(io_threads: int) -> Workers:
    """Threads, or none where `io_threads` is 0."""
    return ThreadWorkers(io_threads) if io_threads else InlineWorkers()
