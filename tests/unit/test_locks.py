"""One writer: the second is refused and told who holds the store; a dead one holds nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardstore import Store
from shardstore.errors import ClosedError, LockedError
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.portable import PortableFileSystem
from shardstore.locking import holder_text
from tests.support.stores import SETTINGS, commit, expected, open_store, value_of, values

pytestmark = pytest.mark.req("S1")

WRITER = """
import sys, numpy
from shardstore import Store
store = Store.open(sys.argv[1], "r+")
txn = store.begin(2)
txn.stage("a", "params", {"w": numpy.ones(100000)})
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def writer_process(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the store open, with a transaction half done."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, root],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stdin is not None
    try:
        assert child.stdout.readline() == "open\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "run", "a", settings=SETTINGS) as store:
        commit(store, 1)
    return tmp_path / "run"


def test_a_second_writer_is_refused_and_told_who_has_it(root: Path) -> None:
    with writer_process(root) as child:
        host = os.uname().nodename
        for mode in ("r+", "a"):
            with pytest.raises(
                LockedError, match=rf"process {child.pid} on {host} since 20\d\d-.*Z"
            ):
                Store.open(root, mode)  # type: ignore[arg-type]
        with pytest.raises(LockedError):
            Store.create(root)
        with Store.open(root) as reader:
            assert values(reader) == expected(1)


def test_the_same_process_cannot_write_twice_either(root: Path) -> None:
    with Store.open(root, "r+", settings=SETTINGS) as store:
        with pytest.raises(LockedError, match=f"process {os.getpid()} "):
            Store.open(root, "r+")
        commit(store, 2)  # the refused one took nothing away
    Store.open(root, "r+", settings=SETTINGS).close()


def test_a_writer_that_was_killed_frees_the_store(root: Path) -> None:
    with writer_process(root) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
        with Store.open(root, "r+", settings=SETTINGS) as store:
            assert store.recovered is not None and store.recovered.clean
            assert values(store) == expected(1)
            commit(store, 2)
            assert values(store) == expected(2)


def test_what_a_dead_holder_wrote_about_itself_blocks_nothing(root: Path) -> None:
    """Its process id may be in use again, by anybody, in any namespace."""
    for pid in (os.getpid(), 1, os.getppid()):
        (root / "LOCK").write_text(json.dumps({"pid": pid, "host": "elsewhere", "since": "never"}))
        Store.open(root, "r+", settings=SETTINGS).close()
    (root / "LOCK").write_text("not JSON")
    Store.open(root, "r+", settings=SETTINGS).close()
    (root / "LOCK").unlink()
    Store.open(root, "r+", settings=SETTINGS).close()


def test_a_forked_child_holds_no_lock_and_may_not_use_the_store(root: Path) -> None:
    store = Store.open(root, "r+", settings=SETTINGS)
    start, go = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(go)
            for call in (lambda: store.begin(2), lambda: store.load("a", "params"), store.snapshot):
                with pytest.raises(ClosedError, match="parent process"):
                    call()
            store.close()  # takes nothing from the parent
            os.read(start, 1)
            code = 0
        finally:
            os._exit(code)
    os.close(start)
    with pytest.raises(LockedError):
        Store.open(root, "r+")
    commit(store, 2)
    store.close()
    with Store.open(root, "r+", settings=SETTINGS) as again:  # though the child lives
        assert value_of(again, "a", "params") == 20
    os.close(go)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_of_a_writer_that_was_killed_does_not_keep_the_lock(root: Path) -> None:
    code = WRITER.replace("print(", "import os\nif os.fork() == 0: print(")  # the child says it
    parent = subprocess.Popen(
        [sys.executable, "-c", code, root],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None and parent.stdin is not None
    assert parent.stdout.readline() == "open\n"
    parent.kill()
    parent.wait()
    Store.open(root, "r+", settings=SETTINGS).close()  # the child still waits for its input
    parent.stdin.close()
    assert parent.stdout.read() == ""  # now it ends
    parent.stdout.close()


def test_the_lock_of_a_failed_opening_is_released(root: Path) -> None:
    text = (root / "STORE").read_bytes()
    (root / "STORE").write_bytes(text.replace(b"uuid", b"uuix"))
    with pytest.raises(Exception, match="STORE"):
        Store.open(root, "r+")
    (root / "STORE").write_bytes(text)
    Store.open(root, "r+", settings=SETTINGS).close()


def test_the_portable_lock_does_the_same(tmp_path: Path) -> None:
    fs = PortableFileSystem()
    root = tmp_path / "run"
    with Store.open(root, "a", fs=fs, settings=SETTINGS) as store:
        with pytest.raises(LockedError, match=f"process {os.getpid()} "):
            Store.open(root, "a", fs=fs)
        commit(store, 1)
    with Store.open(root, "r+", fs=fs, settings=SETTINGS) as store:
        assert values(store) == expected(1)


def test_a_holder_that_says_nothing_is_another_process() -> None:
    assert holder_text("") == holder_text("[1]") == "another process"
    fs = MemoryFileSystem()
    store = open_store(fs)
    with pytest.raises(LockedError, match="process 1000 on memory since 2023-"):
        open_store(fs)
    store.close()
    open_store(fs).close()
