"""The store's face: modes, loading, readers beside a writer, closing, space."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardstore import Ref, Store
from shardstore.context import Settings
from shardstore.errors import (
    ClosedError,
    CorruptionError,
    NotAStoreError,
    PartNotFoundError,
    ReadOnlyError,
    StepMovedOnError,
    StorageError,
    StoreExistsError,
    UsageError,
)
from shardstore.fs.memory import MemoryFileSystem
from tests.support.stores import (
    PARTS,
    ROOT,
    SETTINGS,
    commit,
    content,
    expected,
    object_files,
    open_store,
    tree,
    value_of,
    values,
)

# ------------------------------------------------------------------ modes


@pytest.mark.req("S1")
def test_modes(tmp_path: Path) -> None:
    root = tmp_path / "run"
    for mode in ("r", "r+"):
        with pytest.raises(NotAStoreError, match="is not a store"):
            Store.open(root, mode)
        assert not root.exists()
    with pytest.raises(UsageError, match="mode 'w'"):
        Store.open(root, "w")  # type: ignore[arg-type]
    with Store.open(root, "a", settings=SETTINGS) as store:
        uuid = store.uuid
        commit(store, 1)
        assert store.mode == "r+"
    with Store.open(root, "a", settings=SETTINGS) as store:
        assert store.uuid == uuid and values(store) == expected(1)
        commit(store, 2)
    with Store.open(root, "r+", settings=SETTINGS) as store:
        commit(store, 3)
    with Store.open(str(root)) as store:
        assert store.mode == "r" and values(store) == expected(3)


@pytest.mark.req("S1")
def test_what_is_there_already_is_not_touched(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="no file STORE"):
        Store.open(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    for call in (lambda: Store.open(tmp_path, "a"), lambda: Store.create(tmp_path)):
        with pytest.raises(StoreExistsError, match=r"notes\.txt"):
            call()
    with pytest.raises(NotAStoreError):
        Store.open(tmp_path, "r+")
    assert os.listdir(tmp_path) == ["notes.txt"]
    for mode in ("a", "r+", "r"):
        with pytest.raises((StoreExistsError, StorageError, NotAStoreError)):
            Store.open(tmp_path / "notes.txt", mode)  # type: ignore[arg-type]
    Store.create(tmp_path / "run").close()
    with pytest.raises(StoreExistsError, match="already"):
        Store.create(tmp_path / "run")


@pytest.mark.req("S1")
def test_a_reader_changes_no_byte_and_may_not_write() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.snapshot("best")
        commit(store, 2)
    before = tree(fs)
    operations = len(fs.log)
    with open_store(fs, "r") as store:
        assert values(store) == expected(2) and values(store, "best") == expected(1)
        assert store.recovered is None
        for call in (
            lambda: store.begin(3),
            store.snapshot,
            lambda: store.rewind("best"),
            lambda: store.delete("best"),
            store.undo,
        ):
            with pytest.raises(ReadOnlyError, match=r"mode='r\+'"):
                call()
        store.refresh()
    assert tree(fs) == before
    assert len(fs.log) == operations


@pytest.mark.req("S1")
def test_the_place_is_that_of_the_opening(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open("run", "a", settings=SETTINGS) as store:
        monkeypatch.chdir("/")
        commit(store, 1)
        assert values(store) == expected(1)
    assert os.path.exists(tmp_path / "run" / "STORE")
    with Store.open(os.fsencode(tmp_path / "run")) as store:  # type: ignore[arg-type]
        assert values(store) == expected(1)


def test_a_missing_file_of_a_store_is_damage_and_not_an_absent_store() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
    fs.unlink(f"{ROOT}/objects/000000.raw")
    with open_store(fs) as store, pytest.raises(CorruptionError, match=r"000000\.raw.*missing"):
        values(store)
    for name in fs.list_directory(f"{ROOT}/wal"):
        fs.unlink(f"{ROOT}/wal/{name}")
    for mode in ("r", "r+", "a"):
        with pytest.raises(CorruptionError, match="no segment"):
            open_store(fs, mode)


@pytest.mark.req("S26")
def test_importing_and_writing_does_without_torch(tmp_path: Path) -> None:
    code = """
import sys
import shardstore
assert not {"torch", "numpy"} & set(sys.modules), "imported too early"
sys.modules["torch"] = None
import numpy
with shardstore.Store.open(sys.argv[1], "a") as store:
    with store.begin(1) as txn:
        txn.stage("a", "p", {"w": numpy.arange(3)})
        txn.commit()
    with store.load("a", "p") as loaded:
        assert loaded.numpy()["w"].tolist() == [0, 1, 2]
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


# ------------------------------------------------------------------ loading


def test_loading_gives_views_by_every_library() -> None:
    with open_store() as store:
        commit(store, 1)
        with store.load("a", "params") as loaded:
            assert (loaded.shard, loaded.part, loaded.step) == ("a", "params", 1)
            assert loaded.numpy()["w"].dtype == np.float32
            assert loaded.torch()["w"].shape == (4, 5)
            assert bytes(loaded.raw("n")) == (10).to_bytes(8, "little")
        with pytest.raises(ClosedError):
            loaded.numpy()
        for shard, part in (("a", "other"), ("c", "params"), ("", "")):
            with pytest.raises(PartNotFoundError):
                store.load(shard, part)
            with pytest.raises(PartNotFoundError):
                store.size_of(shard, part)


@pytest.mark.req("S10")
@pytest.mark.parametrize("make", [bytearray, lambda n: memoryview(bytearray(n)),
                                  lambda n: np.zeros((2, n // 2), "u1"),
                                  lambda n: np.zeros(n // 4 + 100, "f4"),
                                  lambda n: torch.zeros(n, dtype=torch.uint8).numpy()])  # fmt: skip
def test_bytes_land_in_the_callers_buffer(make: Any) -> None:
    with open_store() as store:
        commit(store, 1)
        memory = make(store.size_of("a", "params"))
        with store.load("a", "params", into=memory) as loaded:
            values_ = loaded.numpy()
            assert values_["n"] == 10 and (values_["w"] == 10).all()
            assert np.shares_memory(np.frombuffer(memory, "u1"), values_["w"])


@pytest.mark.parametrize("make", [bytes, lambda n: bytearray(n - 1), lambda n: None or "x" * n,
                                  lambda n: np.zeros(2 * n, "u1")[::2],
                                  lambda n: torch.zeros(n, dtype=torch.uint8)])  # fmt: skip
def test_a_buffer_that_does_not_do_is_refused(make: Any) -> None:
    with open_store() as store:
        commit(store, 1)
        with pytest.raises(UsageError, match="into="):
            store.load("a", "params", into=make(store.size_of("a", "params")))


@pytest.mark.req("S11")
def test_wrong_bytes_are_never_returned() -> None:
    """Every kind of wrong file: changed, swapped with another part's, cut, an older version."""
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        file = f"{ROOT}/objects/000000.raw"
        good, other = tree(fs)[file], tree(fs)[f"{ROOT}/objects/000001.raw"]
        flipped = bytearray(good)
        for at in (0, 100, 4096, len(good) - 1):
            flipped = bytearray(good)
            flipped[at] ^= 1
            _put(fs, file, bytes(flipped))
            with pytest.raises(CorruptionError) as caught:
                store.load("a", "params")
            for word in ("'a'", "'params'", "step 1", "run", "000000.raw", "offset"):
                assert word in str(caught.value), word
            assert at < 4096 or "tensor" in str(caught.value) or "padding" in str(caught.value)
        for wrong in (other, good[:4096], b"", bytes(len(good))):
            _put(fs, file, wrong)
            with pytest.raises(CorruptionError):
                store.load("a", "params")
        _put(fs, file, good)
        assert value_of(store, "a", "params") == 10
        commit(store, 2)
        commit(store, 3)
        commit(store, 4)  # writes over slots of step 1
        newest = next(f for f, data in tree(fs).items() if data == _head_bytes(fs, store))
        _put(fs, newest, good)
        with pytest.raises(CorruptionError):
            store.load("a", "params")


def _head_bytes(fs: MemoryFileSystem, store: Store) -> bytes:
    memory = bytearray(store.size_of("a", "params"))
    store.load("a", "params", into=memory).close()
    return bytes(memory)


def _put(fs: MemoryFileSystem, path: str, data: bytes) -> None:
    file = fs.open(path, "replace")
    file.pwrite(0, data)
    file.close()


def test_closing_names_the_loaded_objects_that_are_open() -> None:
    store = open_store()
    commit(store, 1)
    kept = store.load("a", "params")
    store.load("b", "params").close()
    with store.begin(2) as txn:
        seen = txn.load("a", "optim")
    views = kept.numpy()
    with pytest.raises(UsageError, match=r"2 loaded objects.*a/params, a/optim"):
        store.close()
    store.close()
    assert (views["w"] == 10).all() and not seen.closed
    kept.close()
    for call in (lambda: store.load("a", "params"), lambda: store.begin(2), store.refresh):
        with pytest.raises(ClosedError, match="closed"):
            call()


def test_closing_names_nothing_when_an_error_is_on_its_way() -> None:
    fs = MemoryFileSystem()
    with pytest.raises(KeyError), open_store(fs) as store:
        commit(store, 1)
        store.load("a", "params")
        raise KeyError
    open_store(fs).close()  # the lock was released


def test_tensors_and_the_state_digest() -> None:
    with open_store() as first, open_store(MemoryFileSystem(seed=9)) as second:
        commit(first, 1)
        commit(second, 5, value=7)
        commit(second, 6, value=1, metadata={"other": 1}, blobs={"x": b"y"})
        rows = first.tensors()
        assert [(r.shard, r.part, r.tensor) for r in rows] == sorted(
            (shard, part, tensor) for shard, part in PARTS for tensor in ("w", "n")
        )
        assert {(r.dtype, r.shape) for r in rows} == {("F32", (4, 5)), ("I64", ())}
        assert first.state_digest() == second.state_digest()
        with second.begin(6) as txn:
            txn.keep_rest()
            txn.stage("a", "params", content(11))
            txn.commit()
        assert first.state_digest() != second.state_digest()


# ------------------------------------------------------------------ readers beside a writer


@pytest.mark.req("S1")
def test_a_reader_learns_that_its_step_moved_on() -> None:
    fs = MemoryFileSystem()
    writer = open_store(fs)
    commit(writer, 1)
    writer.snapshot("best")
    with open_store(fs, "r") as reader:
        commit(writer, 2)
        assert values(reader) == expected(1)
        reader.refresh()
        commit(writer, 3)
        assert values(reader) == expected(2)
        for step in range(4, 8):
            commit(writer, step)
        with pytest.raises(StepMovedOnError, match="refresh"):
            values(reader)
        with pytest.raises(StepMovedOnError):
            reader.tensors()
        assert values(reader, "best") == expected(1)
        reader.refresh()
        assert values(reader) == expected(7)
    writer.close()


@pytest.mark.req("S1")
def test_a_reader_learns_that_a_snapshots_manifest_is_gone() -> None:
    """Its commit is kept again as the head, the object with its descriptor is written over."""
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        commit(writer, 1)
        writer.snapshot("best")
        for step in (2, 3, 4):
            commit(writer, step)
        with open_store(fs, "r") as reader:
            writer.rewind("best")
            writer.delete("best")
            for name in ("x", "y", "z"):
                writer.snapshot(name)
                writer.delete(name)
            writer.snapshot("last")
            with pytest.raises(StepMovedOnError):
                reader.commit_of("best")


@pytest.mark.req("S1")
def test_a_thread_of_the_writer_learns_that_its_step_moved_on(monkeypatch: Any) -> None:
    with open_store() as store:
        commit(store, 1)
        find = store._find

        def find_and_lose(ref: Ref | str) -> Any:
            found = find(ref)
            for step in range(2, 6):
                commit(store, step)
            return found

        monkeypatch.setattr(store, "_find", find_and_lose)
        with pytest.raises(StepMovedOnError):
            store.load("a", "params")


@pytest.mark.req("S1")
def test_a_reader_in_another_process_while_the_writer_goes_on(tmp_path: Path) -> None:
    code = """
import sys
from shardstore import Settings, Store
from shardstore.errors import StepMovedOnError
with Store.open(sys.argv[1], settings=Settings(host_budget_bytes=0)) as store:
    print("open", flush=True)
    seen = 0
    for line in sys.stdin:
        try:
            if line == "refresh\\n":
                store.refresh()
            with store.load("a", "params") as loaded:
                array = loaded.numpy()
                assert (array["w"] == array["n"]).all()
                print(int(array["n"]), store.head.step, flush=True)
        except StepMovedOnError:
            print("moved on", flush=True)
"""
    root = tmp_path / "run"
    with Store.open(root, "a", settings=SETTINGS) as store:
        commit(store, 1)
        child = subprocess.Popen(
            [sys.executable, "-c", code, root],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdin is not None and child.stdout is not None

        def ask(line: str) -> str:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(line + "\n")
            child.stdin.flush()
            return child.stdout.readline().strip()

        assert child.stdout.readline() == "open\n"
        for step in range(2, 12):
            commit(store, step)
            assert ask("load") == f"{10 * (step - 1)} {step - 1}"
            for other in (1, 2, 0):  # not the parent's bytes: those would be kept
                commit(store, step, step + 100 * other)
            assert ask("load") == "moved on"
            assert ask("refresh") == f"{10 * step} {step}"
        child.stdin.close()
        assert child.wait() == 0
        child.stdout.close()


def test_loading_in_threads_beside_commits() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("best")
        problems: list[BaseException] = []
        stop = threading.Event()

        def read() -> None:
            try:
                while not stop.is_set():
                    assert values(store, "best") == expected(1)
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for step in range(2, 30):
            commit(store, step)
        stop.set()
        for thread in threads:
            thread.join()
        assert not problems
        assert values(store) == expected(29)


# ------------------------------------------------------------------ space and the log


@pytest.mark.req("S17")
def test_the_steady_state_makes_no_file() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        for step in range(3):
            commit(store, step)
        files = object_files(fs)
        assert len(files) == 3 * len(PARTS)
        fs.log.clear()
        for step in range(3, 20):
            commit(store, step)
        assert object_files(fs) == files
        assert {op.op for op in fs.log} == {"pwrite", "datasync"}
    for step in range(20, 30):
        with open_store(fs) as store:
            commit(store, step)
    assert object_files(fs) == files


@pytest.mark.req("S17")
def test_what_a_crash_left_half_made_is_removed_at_the_next_opening() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
    for size in (0, 4096, 5 * 4096):
        _put(fs, f"{ROOT}/objects/{100 + size:06x}.raw", bytes(size))
    _put(fs, f"{ROOT}/objects/foreign", b"mine")
    with open_store(fs) as store:
        assert len(object_files(fs)) == len(PARTS) + 1 and "foreign" in object_files(fs)
        commit(store, 2)
        assert values(store, Ref.step(1)) == expected(1) and values(store) == expected(2)


@pytest.mark.req("S3")
def test_the_log_rolls_and_old_segments_stay() -> None:
    fs = MemoryFileSystem()
    settings = Settings(prewrite_bytes=8192, commits_per_segment=3)
    with open_store(fs, settings=settings) as store:
        commit(store, 0)
        store.snapshot("first")
        for step in range(1, 12):
            commit(store, step)
    segments = fs.list_directory(f"{ROOT}/wal")
    assert segments == [f"{index:016x}.wal" for index in range(5)]
    with open_store(fs, "r") as store:
        assert values(store) == expected(11) and values(store, "first") == expected(0)


def test_a_commit_larger_than_the_space_written_ahead() -> None:
    fs = MemoryFileSystem()
    with open_store(fs, settings=Settings(prewrite_bytes=4096)) as store:
        for step in range(4):
            commit(store, step, metadata={"text": "x" * 20000})
    with open_store(fs, "r") as store:
        assert values(store) == expected(3)


def test_the_trace_tells_the_steps_of_the_protocol() -> None:
    events: list[str] = []
    with open_store(trace=lambda event, fields: events.append(event)) as store:
        assert events == ["create", "replay", "segment"]
        events.clear()
        commit(store, 1)
        assert events == ["stage"] * 3 + ["sync_objects", "append", "sync"]
        commit(store, 2)
        events.clear()
        commit(store, 3)
        assert events == ["stage"] * 3 + ["sync_objects", "append", "sync", "slot_freed"]
        events.clear()
        with store.begin(4) as txn:
            txn.stage("a", "params", content(1))
        assert events == ["stage", "abort"]
