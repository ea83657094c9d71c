"""Calls that another thread makes, and waiting for them, safe from Ctrl-C at any moment.

The standard library's Event, Condition, Semaphore and thread pool are written in Python over locks:
an interrupt between two lines of theirs leaves a lock taken for ever, and whoever comes next hangs.
Here the caller's thread touches only what the interpreter does in one piece: plain locks, a simple
queue, the start of a thread.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

LOOK_AGAIN_SECONDS = 0.05
"""How long somebody may wait on when another one who waited was interrupted with the gate in
hand."""


class Flag:
    """Raised once and for ever. Any thread may raise it or wait for it."""

    def __init__(self) -> None:
        self._is_set = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._open()

    def wait(self) -> None:
        while not self._is_set:
            if self._gate.acquire(timeout=LOOK_AGAIN_SECONDS):
                self._open()

    def _open(self) -> None:
        with suppress(RuntimeError):  # open already
            self._gate.release()


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
    first thread that calls this.
    """

    def __init__(self, call: Callable[..., T_co], *args: Any) -> None:
        self._call: Callable[[], T_co] | None = partial(call, *args)
        self._mutex = threading.Lock()
        self._over = Flag()
        self._thread = 0
        """Who makes the call: where that is who waits, an interrupt ended it and left no word."""
        self._value: Any = None
        self._error: BaseException | None = None

    def __call__(self) -> None:
        try:
            call = self._take()
            if call is not None:
                self._value = call()
        except KeyboardInterrupt:  # of the caller's own thread, which is told by it
            raise
        except BaseException as error:
            self._error = error
            raise
        finally:
            if self._thread == threading.get_ident():  # who makes it, and not a second one who asks
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


class Pool:
    """Threads that make calls in the order in which they were submitted; any thread may submit.

    They are started as calls come, up to `threads`, and end with `close` or with this object. The
    end of the process does not wait for them.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._calls: SimpleQueue[Once[Any] | None] = SimpleQueue()
        self._threads = [Once(_serve, self._calls) for _ in range(threads)]
        self._name = name
        self._started = 0
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, call: Callable[..., T], *args: Any) -> Job[T]:
        """RuntimeError after `close`, and where the system has no thread to give for the first."""
        job = Once(call, *args)
        with self._lock:
            if self._closed:
                raise RuntimeError("the threads have ended")
            self._start()
            self._calls.put(job)
        return job

    def close(self) -> None:
        """Wait for what was submitted, and for the threads' end."""
        with self._lock:
            self._closed = True
            self._calls.put(None)
        for thread in self._threads:
            thread()  # what was begun by no thread yet is done here
            thread.give_up()

    def __del__(self) -> None:
        self._calls.put(None)

    def _start(self) -> None:
        if self._started == len(self._threads):
            return
        try:
            start_thread(self._threads[self._started], self._name)
        except RuntimeError:
            if self._started == 0:
                raise
            return
        self._started += 1  # an interrupt before this starts the same one again: no harm


def start_thread(call: Once[Any], name: str) -> None:
    """The process may end before it does. RuntimeError where the system has no thread to give."""
    start_new_thread(_begin, (call, name))


def settle_jobs(jobs: Iterable[Job[Any]]) -> None:
    """Wait until all are over, whatever came of them: whoever needs a result is told by it."""
    for job in jobs:
        with suppress(Exception):
            job.result()


def _begin(call: Once[Any], name: str) -> None:
    thread = threading.Thread(target=call, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # there is no other thread to be had; this one will do
        call()


def _serve(calls: SimpleQueue[Once[Any] | None]) -> None:
    while (job := calls.get()) is not None:
        with suppress(Exception, SystemExit):  # whoever waits for it is told
            job()
        del job  # what it holds goes now, not with the next call
    calls.put(None)  # for the next thread
