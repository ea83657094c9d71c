"""Commands whose disk refuses an operation, each in turn: exit code 8, one line, nothing lost."""

from __future__ import annotations

import errno
import os

import pytest

from shardstore import Retention
from shardstore.fs import posix
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.fsck import fsck
from tests.cli.support import run
from tests.support.stores import commit, expected, open_store, values

pytestmark = [pytest.mark.req("S18"), pytest.mark.timeout(180)]

COMMANDS = {
    "init": ["init", "other"],
    "snapshot": ["snapshot", "run", "new"],
    "delete": ["snapshot", "run", "--delete", "early", "--yes"],
    "rewind": ["rewind", "run", "early", "--yes"],
    "undo": ["undo", "run", "--yes"],
    "branch": ["branch", "run", "trial"],
    "retention": ["retention", "run", "--last", "3", "--yes"],
    "gc": ["gc", "run", "--all", "--yes"],
    "archive": ["archive", "run", "early"],
    "convert": ["convert", "run", "--format", "safetensors", "--yes"],
    "publish": ["publish", "run", "durable"],
    "clone": ["clone", "run", "copy"],
    "recover": ["recover", "run"],
}


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> MemoryFileSystem:
    """A store `run` in the root directory, which is the current one."""
    monkeypatch.chdir("/")
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        for step in range(1, 6):
            commit(store, step)
            if step == 2:
                store.snapshot("early")
        store.rewind("early")
        store.set_retention(Retention(last=1))
    return fs


@pytest.mark.parametrize("name", COMMANDS)
def test_a_refusal_at_every_operation_of_a_command(
    name: str, begin: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = 0
    for nth in range(1, 1000):
        code = (errno.EIO, errno.ENOSPC)[nth % 2]
        fs, left, hit = begin.clone(), nth, ""

        def count(operation: Operation) -> None:
            nonlocal left, hit
            left -= operation.op != "release"
            if left == 0 and not hit:
                hit = operation.path
                raise OSError(code, os.strerror(code), operation.path)  # noqa: B023

        faulty = FaultyFileSystem(fs, before=count)
        with monkeypatch.context() as patched:
            patched.setattr(posix, "PosixFileSystem", lambda: faulty)  # noqa: B023
            try:
                run(*COMMANDS[name])
            except AssertionError:
                result = run_again(patched, begin, name, nth, code)
                failed += 1
                assert hit.rpartition("/")[2] in result or os.strerror(code) in result, result
        if not hit:
            assert failed > 3, "nothing was refused"
            return
        with open_store(fs) as store:  # and it goes on
            assert store.head is not None
            assert values(store) == expected(store.head.step)
            commit(store, 9)
        assert fsck(fs, "run", deep=True).clean
    raise AssertionError("the command has no end")


def run_again(
    patched: pytest.MonkeyPatch, begin: MemoryFileSystem, name: str, nth: int, code: int
) -> str:
    """The same once more, for what it said; anything but exit code 8 and one line fails."""
    left = nth

    def count(operation: Operation) -> None:
        nonlocal left
        left -= operation.op != "release"
        if left == 0:
            raise OSError(code, os.strerror(code), operation.path)

    faulty = FaultyFileSystem(begin.clone(), before=count)
    patched.setattr(posix, "PosixFileSystem", lambda: faulty)
    return run(*COMMANDS[name], code=8).stderr
