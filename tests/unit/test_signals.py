"""Real signals to real processes: SIGCHLD and timers without end, Ctrl-C at random, SIGTERM.

Nothing here depends on when a signal comes: whatever it hits, the same has to hold afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardstore import Store
from shardstore.fs.system import local_file_system
from shardstore.fsck import fsck
from tests.support.stores import expected, values

pytestmark = [pytest.mark.req("S27", "S4"), pytest.mark.timeout(120)]
ROOT = Path(__file__).resolve().parents[2]
STEPS = 40

COMMON = """
import os, random, signal, subprocess, sys
from shardstore import Settings, Store
from shardstore.errors import PoisonedError, ShardStoreError
from tests.support.stores import PARTS, commit, content, expected, values
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)  # who runs the tests may ignore some of them
signal.signal(signal.SIGINT, signal.default_int_handler)
SETTINGS = Settings(prewrite_bytes=65536, host_budget_bytes=1 << 20, io_threads=2,
                    commits_per_segment=8)
root, steps = sys.argv[1], int(sys.argv[2])
def opened():
    return Store.open(root, "a", settings=SETTINGS)
def fly(store, step):
    with store.begin(step) as txn:
        for index, part in enumerate(PARTS):
            txn.stage(*part, content(step * 10 + index))
        return txn.commit_async()
"""

STORM = """
seen = []
for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: seen.append(number))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
with opened() as store:
    for step in range(1, steps + 1):
        child = subprocess.Popen(["true"]) if step % 8 == 0 else None
        commit(store, step) if step % 2 else fly(store, step)
        assert values(store) == expected(step)
        os.kill(os.getpid(), signal.SIGUSR1)
        if child is not None:
            child.wait()
signal.setitimer(signal.ITIMER_REAL, 0)
assert {signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1} <= set(seen)
"""

CTRL_C = """
chance = random.Random(steps)
def interrupt(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
def armed(call):
    "Whether the call ended; the timer may hit it anywhere, or this function itself."
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.004))
            call()
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return False
store, acknowledged, tried, hits = opened(), 0, 0, 0
while acknowledged < steps:
    tried = max(tried, acknowledged) + 1
    step = tried
    ended = False
    def work():
        if step % 2:
            commit(store, step)
        else:
            fly(store, step).result()
    try:
        ended = armed(work)
    except PoisonedError:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    hits += not ended
    if store._transaction is not None:
        store._transaction.abort()
    if store._session.context.is_poisoned:
        store.close()
        store = opened()
    try:
        head = store.head
    except ShardStoreError:
        head = store.head
    at = head.step if head is not None else 0
    assert at >= acknowledged and (not ended or at >= step), (at, acknowledged, step)
    assert head is None or values(store) == expected(at), at
    acknowledged = at if not ended else step
    if hits > 400:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # a machine that is slower than the timer
store.close()
"""

UNTIL_KILLED = """
with opened() as store:
    for step in range(1, 100000):
        commit(store, step) if step % 2 else fly(store, step).result()
        os.write(1, b"%d\\n" % step)
"""


def run(script: str, root: Path, steps: int = STEPS) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMON + script, str(root), str(steps)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["storm", "ctrl c"])
def test_signals_while_committing(name: str, tmp_path: Path) -> None:
    """Handlers that return cost nothing; one that raises costs the step that it hits at most."""
    root = tmp_path / "run"
    with run(STORM if name == "storm" else CTRL_C, root) as child:
        _, told = child.communicate()
        assert child.returncode == 0, told.decode()
    with Store.open(root) as store:
        assert store.head is not None and store.head.step >= STEPS
        assert values(store) == expected(store.head.step)
    assert fsck(local_file_system(), str(root), deep=True).clean


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_that_ends_the_process_loses_nothing(number: int, tmp_path: Path) -> None:
    root = tmp_path / "run"
    with run(UNTIL_KILLED, root) as child:
        assert child.stdout is not None and child.stderr is not None
        told = [child.stdout.readline() for _ in range(7)]
        child.send_signal(number)
        told += child.stdout.readlines()
        errors = child.stderr.read().decode()
        assert child.wait() != 0
    acknowledged = int([line for line in told if line.endswith(b"\n")][-1])
    assert (number == signal.SIGINT) == ("KeyboardInterrupt" in errors), errors
    with Store.open(root, "r+") as store:
        assert store.head is not None and acknowledged <= store.head.step <= acknowledged + 1
        assert values(store) == expected(store.head.step)
    assert fsck(local_file_system(), str(root), deep=True).clean
