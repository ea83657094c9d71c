"""Processes for `test_pin_processes`: `python -m tests.crash.pin_child ROLE ROOT [COUNT]`.

Each says "ready", works when a line comes, and ends with a line of what it saw. Every byte of a
part says which step wrote it, so that a view with bytes of two steps is found at once.
"""

from __future__ import annotations

import os
import select
import signal
import sys

import numpy as np

from shardstore import PinnedView, Store
from shardstore.errors import StepMovedOnError

PARTS = (("a", "params"), ("a", "optim"), ("b", "params"))
ELEMENTS = 3000


def commit(store: Store) -> None:
    """The next step."""
    step = store.head.step + 1 if store.head else 1
    with store.begin(step) as txn:
        for number, key in enumerate(PARTS):
            txn.stage(*key, {"w": np.full(ELEMENTS, step * 10 + number, "i8")})
        txn.commit({"step": step})


def check(view: PinnedView) -> None:
    """Everything in a view is of its step."""
    assert view.pinned and view.commit.metadata == {"step": view.commit.step}
    for number, key in enumerate(PARTS):
        with view.load(*key) as loaded:
            wrong = set(loaded.numpy()["w"].tolist()) - {view.commit.step * 10 + number}
        assert not wrong, f"{key} of {view} holds {wrong}"


def unkeep(store: Store, name: str) -> None:
    """Delete a snapshot and let undo forget it: only pins hold its slots then."""
    store.delete(name)
    for other in ("x", "y", "z"):
        store.snapshot(other)
        store.delete(other)


def write(root: str, count: int) -> str:
    with Store.open(root, "r+") as store:
        ready()
        unkeep(store, "base")
        for _ in range(count):
            commit(store)
        assert store.head is not None
        return f"step {store.head.step}"


def read_one(root: str, _count: int) -> str:
    """One view, read until told to stop and once more."""
    reads = 0
    with Store.open(root) as store, store.pin("base") as view:
        digest = view.state_digest()
        check(view)
        ready()
        while not told_to_stop() or not reads:
            check(view)
            assert view.state_digest() == digest
            reads += 1
        check(view)
    return f"step {view.commit.step} reads {reads}"


def read_heads(root: str, _count: int) -> str:
    """A new view of the head each time, read twice. The head may be too fast to be had."""
    steps: list[int] = []
    missed = 0
    with Store.open(root) as store:
        ready()
        while not told_to_stop() or not steps:
            try:
                view = store.pin()
            except StepMovedOnError:
                missed += 1
                continue
            with view:
                check(view)
                check(view)
                steps.append(view.commit.step)
    assert steps == sorted(steps)
    return f"views {len(steps)} steps {len(set(steps))} missed {missed}"


def die(root: str, count: int) -> str:
    """Forks readers that pin and wait, and kills them; every other one whatever it is at."""
    left, started = count, 0
    ready()
    while left:
        batch = [fork(root) for _ in range(min(left, 10))]
        left -= len(batch)
        for _, pipe in batch[::2]:
            assert os.read(pipe, 1) == b"p"
        print("pinned", flush=True)
        await_line()
        for pid, pipe in batch:
            os.kill(pid, signal.SIGKILL)
            started += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
            os.close(pipe)
        print("killed", flush=True)
        await_line()
    return f"killed {started}"


def fork(root: str) -> tuple[int, int]:
    pipe, mine = os.pipe()
    pid = os.fork()
    if pid:
        os.close(mine)
        return pid, pipe
    try:
        view = Store.open(root).pin()
        check(view)
        os.write(mine, b"p")
        signal.pause()
    finally:
        os._exit(1)


def ready() -> None:
    print("ready", flush=True)
    await_line()


def await_line() -> None:
    """Unbuffered: the next line must stay visible to `told_to_stop`."""
    assert os.read(0, 1) == b"\n"


def told_to_stop() -> bool:
    return bool(select.select([0], [], [], 0)[0])


ROLES = {"write": write, "read_one": read_one, "read_heads": read_heads, "die": die}

if __name__ == "__main__":
    role, path, *rest = sys.argv[1:]
    print(ROLES[role](path, int(rest[0]) if rest else 0), flush=True)
