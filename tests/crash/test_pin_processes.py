"""Pins between real processes: a writer that never waits, readers that see one step, dead readers.

Goal: what the memory file system shows holds for the kernel's locks. Method: processes that do what
`pin_child` says; a view is wrong at the first byte of another step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from shardstore import Store
from tests.crash.pin_child import PARTS, commit

pytestmark = [pytest.mark.req("S8"), pytest.mark.timeout(600)]
TOP = Path(__file__).resolve().parents[2]
KEPT = 2
"""Commits that the store keeps by itself; a third set of slots is being written."""


class Child:
    """One process, spoken to in lines."""

    def __init__(self, role: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.pin_child", role, *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=TOP,
        )  # fmt: skip

    def expect(self, line: str) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == f"{line}\n", f"{said!r}: {self._errors()}"

    def go(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pytest.fail(self._errors())

    def result(self) -> dict[str, int]:
        """The last line, after the end."""
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        assert self._process.wait() == 0, self._errors()
        return dict(zip(words[::2], map(int, words[1::2]), strict=True))

    def _errors(self) -> str:
        self._process.kill()
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            with suppress(BrokenPipeError):  # what was written to the dead is nobody's loss
                stream.close()


@contextmanager
def child(role: str, *arguments: object) -> Iterator[Child]:
    process = Child(role, *arguments)
    try:
        process.expect("ready")
        yield process
    finally:
        process.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "run", "a") as store:
        commit(store)
        store.snapshot("base")
        for _ in range(3):
            commit(store)
    return tmp_path / "run"


def object_files(root: Path) -> list[str]:
    return sorted(os.listdir(root / "objects"))


def locks_on(path: Path) -> list[str]:
    """The kernel's locks on a file."""
    inode = os.stat(path).st_ino
    return [line for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line]


def test_views_are_one_step_while_a_writer_commits_into_reused_slots(root: Path) -> None:
    """The snapshot is deleted and forgotten first: only the pin holds its slots."""
    count = 500
    with ExitStack() as stack:
        one = stack.enter_context(child("read_one", root))
        heads = stack.enter_context(child("read_heads", root))
        writer = stack.enter_context(child("write", root, count))
        heads.go()
        one.go()
        writer.go()
        assert writer.result() == {"step": 4 + count}
        for reader in (one, heads):
            reader.go()  # the second line stops it
        seen = one.result()
        assert seen["step"] == 1 and seen["reads"] > 10
        seen = heads.result()
        assert seen["views"] > 10 and seen["steps"] > 5
    sets = KEPT + 1 + 3  # the deleted snapshot's, and what the readers of the head held at most
    assert len(object_files(root)) <= sets * len(PARTS) + 5  # and small manifest objects
    assert locks_on(root / "PINS") == []


def _kill_readers(root: Path, count: int) -> None:
    with Store.open(root, "r+") as store:
        names = sorted(os.listdir(root))
        with child("die", root, count) as readers:
            readers.go()
            for _ in range(-(-count // 10)):
                readers.expect("pinned")
                assert store.pinned_slots()
                assert locks_on(root / "PINS")
                for _ in range(3):
                    commit(store)
                readers.go()
                readers.expect("killed")
                assert store.pinned_slots() == set()
                assert locks_on(root / "PINS") == []
                readers.go()
            assert readers.result() == {"killed": count}
        assert sorted(os.listdir(root)) == names
        _check_every_slot_is_written_again(store, root)


def _check_every_slot_is_written_again(store: Store, root: Path) -> None:
    """Views of ever newer heads take the free slots one set after the other: before the store
    grows, all are in use."""
    before = object_files(root)
    views = []
    while object_files(root) == before and len(views) <= len(before):
        views.append(store.pin())
        commit(store)
    used = store.pinned_slots() | store._session.state.needed()
    unused = [name for name in before if int(name.split(".")[0], 16) not in used]
    sizes = {(root / "objects" / name).stat().st_size for name in unused}
    assert len(views) > 1 and len(sizes) <= 1 and len(unused) < len(PARTS), unused
    for view in views:
        view.close()


def test_killed_readers_leave_nothing(root: Path) -> None:
    _kill_readers(root, 20)


@pytest.mark.long
def test_many_killed_readers_leave_nothing(root: Path) -> None:
    _kill_readers(root, 200)
