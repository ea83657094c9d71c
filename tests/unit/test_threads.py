"""One store, many threads: whatever they ask while one of them commits, nobody sees a mixture."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardstore import Settings, Store
from shardstore.errors import RefNotFoundError, StepMovedOnError
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.portable import PortableFileSystem
from shardstore.fs.posix import PosixFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import fsck
from shardstore.status import read_status
from tests.support.stores import PARTS, commit, content, expected, value_of, values

pytestmark = pytest.mark.req("S27", "S14")
STEPS = 40
MAKERS: dict[str, Callable[[], FileSystem]] = {
    "posix": PosixFileSystem,
    "portable": PortableFileSystem,
    "memory": MemoryFileSystem,
}


class Crowd:
    """Threads that repeat their call until the writer is done; what went wrong is kept."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.wrong: list[BaseException] = []
        self.rounds: dict[str, int] = {}
        self._threads: list[threading.Thread] = []

    def add(self, name: str, call: Callable[[], object]) -> None:
        self._threads.append(threading.Thread(target=self._repeat, args=(name, call), name=name))

    def _repeat(self, name: str, call: Callable[[], object]) -> None:
        self.rounds[name] = 0
        last = False
        while not last and not self.wrong:
            last = self.over.is_set()  # once more at the end, so that each gets its turn
            try:
                call()
            except (StepMovedOnError, RefNotFoundError):
                pass  # a commit that is kept no longer: the documented answer
            except BaseException as error:
                self.wrong.append(error)
                return
            self.rounds[name] += 1

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()


def write(store: Store) -> None:
    """Synchronous and asynchronous commits, donated and copied, names, moves and gc between."""
    for step in range(2, STEPS + 1):
        if step % 3 == 0:
            commit(store, step)
        else:
            with store.begin(step) as txn:
                for index, part in enumerate(PARTS):
                    if step % 3 == 1:
                        checkout = txn.checkout(*part)
                        arrays = checkout.numpy()
                        arrays["w"][...] = arrays["n"][...] = step * 10 + index
                        txn.stage(*part, checkout, donate=True)
                    else:
                        txn.stage(*part, content(step * 10 + index))
                txn.commit_async()
        if step % 10 == 0:
            store.snapshot(f"s{step}")
            store.rewind(f"s{step}")
            store.gc()
        if step % 10 == 5 and step > 10:
            store.delete(f"s{step - 5}")
            store.sync()


def look(store: Store) -> None:
    head = store.head
    assert head is not None and head.parts == set(PARTS)
    assert store.durable_head is not None
    names = [snapshot.name for snapshot in store.snapshots]
    assert names == sorted(names)
    kept = [commit.seq for commit in store.kept]
    assert kept == sorted(kept)
    assert store.host_bytes >= 0 and store.undoable is not None
    assert store.pinned_slots() is not None and store.current_branch == "main"


def load(store: Store) -> None:
    for shard, part in PARTS:
        value_of(store, shard, part)  # of whichever step, but all of one


def look_ahead(store: Store) -> None:
    store.prefetch(PARTS)
    store.size_of(*PARTS[0])
    with store.load(*PARTS[0]) as loaded:
        arrays = loaded.numpy()
        assert (arrays["w"] == arrays["n"]).all()


def pinned(store: Store) -> None:
    with store.pin() as view:
        found = {}
        for part in PARTS:
            with view.load(*part) as loaded:
                found[part] = int(loaded.numpy()["n"])
        assert found == {part: view.commit.step * 10 + index for index, part in enumerate(PARTS)}


@pytest.fixture(params=MAKERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[FileSystem, str]]:
    fs = MAKERS[request.param]()
    yield fs, "run" if isinstance(fs, MemoryFileSystem) else str(tmp_path / "run")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("durability", ["commit", "deferred"])
def test_threads_ask_while_one_commits(place: tuple[FileSystem, str], durability: Any) -> None:
    fs, root = place
    settings = Settings(
        prewrite_bytes=64 * 1024, host_budget_bytes=1 << 18, io_threads=2, durability=durability,
        commits_per_segment=16, sync_every=7,
    )  # fmt: skip
    with Store.open(root, "a", fs=fs, settings=settings) as store:
        commit(store, 1)
        store.sync()
        crowd = Crowd()
        with Store.open(root, fs=fs, settings=settings) as reader:
            crowd.add("look", lambda: look(store))
            crowd.add("load", lambda: load(store))
            crowd.add("ahead", lambda: look_ahead(store))
            crowd.add("status", lambda: read_status(fs, root))
            if not isinstance(fs, PortableFileSystem) or isinstance(fs, PosixFileSystem):
                crowd.add("pinned", lambda: pinned(store))
                crowd.add("pinned elsewhere", lambda: pinned(reader))
            with crowd:
                write(store)
        assert crowd.wrong == []
        assert min(crowd.rounds.values()) > 0
        assert values(store) == expected(STEPS)
    assert fsck(fs, root, deep=True).clean


@pytest.mark.timeout(60)
def test_threads_that_change_the_store_take_turns(tmp_path: Path) -> None:
    """Names from many threads at once; each is there afterwards, and in the log once."""
    with Store.open(tmp_path / "run", "a", settings=Settings(host_budget_bytes=1 << 20)) as store:
        commit(store, 1)
        crowd = [
            threading.Thread(target=lambda n=n: [store.snapshot(f"of{n}_{i}") for i in range(5)])
            for n in range(4)
        ]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        assert {s.name for s in store.snapshots} == {
            f"of{n}_{i}" for n in range(4) for i in range(5)
        }
    with Store.open(tmp_path / "run") as reader:
        assert len(reader.snapshots) == 20


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_gc_beside_a_pinned_reader(tmp_path: Path, kind: str) -> None:
    """Every kept step goes meanwhile; the view reads its own until it is closed."""
    settings = Settings(prewrite_bytes=64 * 1024, host_budget_bytes=0)
    with Store.open(tmp_path / "run", "a", settings=settings) as writer:
        commit(writer, 1)
        with Store.open(tmp_path / "run") as reader, reader.pin() as view:
            assert view.pinned
            crowd = Crowd()
            crowd.add("view", lambda: check_view(view))
            with crowd:
                for step in range(2, 30):
                    commit(writer, step)
                    if kind == "async":
                        with writer.begin(step) as txn:
                            txn.keep_rest()
                            txn.commit_async()
                    writer.gc(everything=True)
            assert crowd.wrong == [] and crowd.rounds["view"] > 0
            held = writer.pinned_slots()
            assert len(held) >= len(PARTS)
        freed = writer.gc(everything=True)
        assert freed.files >= len(PARTS)


def check_view(view: Any) -> None:
    for index, part in enumerate(PARTS):
        with view.load(*part) as loaded:
            assert int(loaded.numpy()["n"]) == 10 + index
