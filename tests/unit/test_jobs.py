"""Calls that other threads make: waiting, giving up, ends, and Ctrl-C inside of any of it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from shardstore import jobs
from shardstore.errors import ClosedError
from shardstore.jobs import Flag, Once, Pool, start_thread
from shardstore.workers import ThreadWorkers
from tests.support.moments import Moments
from tests.support.threads import left_over

pytestmark = pytest.mark.req("S27")
ROOT = Path(__file__).resolve().parents[2]


def test_a_flag_lets_everybody_through_who_waits_and_who_comes_later() -> None:
    flag, through = Flag(), SimpleQueue[int]()

    def wait(number: int) -> None:
        flag.wait()
        through.put(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    assert not flag.is_set() and through.empty()
    flag.set()
    flag.set()
    for thread in threads:
        thread.join()
    flag.wait()
    assert flag.is_set() and sorted(through.get() for _ in range(5)) == list(range(5))


def test_a_waiter_that_was_interrupted_with_the_gate_in_hand_holds_up_nobody() -> None:
    flag = Flag()
    flag.set()
    assert flag._gate.acquire(blocking=False)  # and never given back
    other = threading.Thread(target=flag.wait)
    other.start()
    flag.wait()
    other.join()


def test_calls_are_made_in_order_and_tell_what_came_of_them() -> None:
    pool, made = Pool(1, "test"), list[int]()
    submitted = [pool.submit(made.append, number) for number in range(100)]
    failing = pool.submit(int, "no number")
    leaving = pool.submit(sys.exit, 3)
    good = pool.submit(int, "7")
    assert good.result() == 7 and good.done()
    assert made == list(range(100)) and all(job.result() is None for job in submitted)
    with pytest.raises(ValueError, match="no number"):
        failing.result()
    with pytest.raises(SystemExit):
        leaving.result()
    pool.close()


def test_a_call_is_made_once_and_a_second_try_does_not_end_the_waiting() -> None:
    gate, begun, made = Flag(), Flag(), list[int]()

    def call() -> None:
        begun.set()
        gate.wait()
        made.append(1)

    once = Once(call)
    start_thread(once, "test")
    begun.wait()
    once()
    assert not once.done()
    gate.set()
    once.give_up()
    assert once.done() and made == [1]


def test_what_was_given_up_is_not_made() -> None:
    made = list[int]()
    once = Once(made.append, 1)
    once.give_up()
    once()
    assert once.done() and made == []


def test_threads_come_with_the_calls_and_end_with_the_pool() -> None:
    before = set(threading.enumerate())
    pool, gate = Pool(3, "test"), Flag()
    pool.submit(gate.wait)
    pool.submit(gate.wait)
    assert len(set(threading.enumerate()) - before) <= 2
    gate.set()
    pool.close()
    assert not left_over(before)
    assert pool._started == 2


def test_a_pool_that_is_forgotten_takes_its_threads_along() -> None:
    pool = Pool(2, "test")
    thread = pool._threads[0]
    assert pool.submit(int, "1").result() == 1
    del pool
    gc.collect()
    thread._wait()
    assert thread.done()


def test_what_a_call_holds_goes_when_it_is_over() -> None:
    class Thing:
        pass

    pool, thing = Pool(1, "test"), Thing()
    known = weakref.ref(thing)
    job: Any = pool.submit(id, thing)
    job.result()
    del job, thing
    pool.submit(int, "1").result()
    gc.collect()
    assert known() is None
    pool.close()


def test_after_the_end_nothing_is_taken() -> None:
    pool = Pool(1, "test")
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="have ended"):
        pool.submit(int, "1")


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    pool = Pool(2, "test")
    pool.submit(int, "1")
    workers = ThreadWorkers(1)
    monkeypatch.setattr(jobs, "start_new_thread", refused)
    assert pool.submit(int, "2").result() == 2  # the one that is there does it
    pool.close()
    with pytest.raises(ClosedError, match=r"no thread .*can't start"):
        workers.io(int, "1")


def test_where_only_a_first_thread_is_given_it_does_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    pool = Pool(1, "test")
    assert pool.submit(int, "1").result() == 1
    pool.close()


LEFT_OPEN = """
import sys
from shardstore.workers import ThreadWorkers
workers = ThreadWorkers(2)
def late():
    for _ in range(200):
        workers.io(int, "1").result()
    print("made", flush=True)
workers.complete(late)
"""


def test_what_was_submitted_is_made_before_the_process_ends() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True,
                          cwd=ROOT, timeout=60, check=False)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "made\n", "")


@pytest.mark.parametrize("name", ["submit", "wait", "close"])
def test_an_interrupt_at_any_moment_leaves_nobody_waiting(name: str) -> None:
    def act(pool: Pool, made: SimpleQueue[int]) -> None:
        if name == "submit":
            pool.submit(made.put, 1)
        elif name == "wait":
            pool.submit(made.put, 1).result()
        else:
            pool.close()

    nth, place = 0, "anywhere"
    while place:
        nth += 1
        pool, made = Pool(1, "test"), SimpleQueue[int]()
        moments = Moments(nth)
        try:
            with moments:
                act(pool, made)
        except KeyboardInterrupt:
            pass
        place = moments.place
        if name != "close":
            pool.submit(made.put, 2).result()
        pool.close()
        found = [made.get() for _ in range(made.qsize())]
        assert found in ([], [1], [2], [1, 2]) and (name == "close") == (2 not in found), place
    assert nth > 5
