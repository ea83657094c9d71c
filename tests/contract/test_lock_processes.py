"""Goal: a writer's lock belongs to one process, and dies with it. Method: other processes, forks.

`test_filesystem` has the rest of what `shardstore.fs.protocol` says of locks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shardstore.fs.protocol import LockHeld
from tests.contract.test_filesystem import Place, real

__all__ = ["real"]
pytestmark = pytest.mark.req("S30")
ROOT = Path(__file__).resolve().parents[2]


def test_a_released_lock_is_free_whoever_has_a_copy_of_its_descriptor(real: Place) -> None:
    lock = real.fs.lock(real.path("LOCK"), "one")
    copied = os.dup(lock.fileno())  # type: ignore[attr-defined]
    lock.release()
    real.fs.lock(real.path("LOCK"), "two").release()
    os.close(copied)


CHILD = """
    import os, sys
    from shardstore.fs.portable import PortableFileSystem
    from shardstore.fs.posix import PosixFileSystem
    path, name, fork = sys.argv[1], sys.argv[2], sys.argv[3] == "fork"
    lock = globals()[name]().lock(path, "the child")
    if fork:
        if os.fork() == 0:
            print("forked", os.getpid(), flush=True)
            sys.stdin.read()
            os._exit(0)
        os._exit(0)
    print("locked", flush=True)
    sys.stdin.read()
"""


def start_holder(place: Place, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(CHILD),
            place.path("LOCK"),
            type(place.fs).__name__,
            how,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.req("S1")
def test_a_lock_dies_with_its_process(real: Place) -> None:
    with start_holder(real, "alone") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(LockHeld) as held:
            real.fs.lock(real.path("LOCK"), "me")
        assert held.value.holder == "the child"
        holder.kill()
        holder.wait()
        real.fs.lock(real.path("LOCK"), "me").release()


@pytest.mark.req("S1", "S27")
def test_a_forked_child_does_not_keep_its_parents_lock(real: Place) -> None:
    """The parent dies without releasing; its child, still alive, must not stand for it."""
    with start_holder(real, "fork") as holder:
        assert holder.stdout is not None and holder.stdin is not None
        line = holder.stdout.readline()
        assert line.startswith("forked ")
        assert holder.wait() == 0
        os.kill(int(line.split()[1]), 0)  # the child is alive
        real.fs.lock(real.path("LOCK"), "me").release()
        holder.stdin.close()
