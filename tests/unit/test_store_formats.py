"""Stores whose objects have several storage formats: slots, damage, buffers, fsck, converting."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardstore import Ref, Store
from shardstore.context import Settings
from shardstore.conversion import convert
from shardstore.errors import (
    CorruptionError,
    MissingLibraryError,
    RefNotFoundError,
    StorageError,
    UsageError,
)
from shardstore.format.names import FORMATS
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.posix import PosixFileSystem
from shardstore.fsck import fsck
from shardstore.wal.reader import read_bytes
from tests.support.stores import (
    PARTS,
    ROOT,
    commit,
    content,
    expected,
    object_files,
    open_store,
    tree,
    value_of,
    values,
)
from tests.unit.fsck_support import change, check, damages

FOREIGN = ("safetensors", "pt")


def head_file(fs: Any, part: tuple[str, str] = ("a", "params"), at: Any = Ref.head) -> str:
    with open_store(fs, "r") as store:
        return f"{ROOT}/{store._find(at).manifest[part].file}"


def endings(fs: Any) -> set[str]:
    return {name.rpartition(".")[2] for name in object_files(fs)}


def nothing(_count: int) -> None:
    """Nobody is watching."""


def put(fs: MemoryFileSystem, path: str, data: bytes) -> None:
    file = fs.open(path, "replace")
    file.pwrite(0, data)
    file.close()


@pytest.mark.req("S9", "S17")
@pytest.mark.parametrize("storage_format", FORMATS)
def test_slots_are_written_again_in_every_format(storage_format: str) -> None:
    fs = MemoryFileSystem()
    with open_store(fs, format=storage_format) as store:
        for step in range(4):
            commit(store, step)
        files = object_files(fs)
        for step in range(4, 12):
            commit(store, step)
    with open_store(fs, format=storage_format) as store:
        commit(store, 12)
    assert object_files(fs) == files and len(files) == 3 * len(PARTS)
    assert endings(fs) == {storage_format}


@pytest.mark.req("S9", "S17")
@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_slot_serves_objects_of_its_size_only(storage_format: str) -> None:
    fs = MemoryFileSystem()
    with open_store(fs, format=storage_format) as store:
        for step in range(9):
            with store.begin(step) as txn:
                txn.stage("s", "p", {"w": np.full(3000 * (step % 4 + 1), step, "f4")})
                txn.commit()
            with store.load("s", "p") as loaded:
                assert (loaded.numpy()["w"] == step).all()
    assert check(fs).clean


@pytest.mark.req("S9", "S17")
def test_a_mixed_store_reads_all_and_gives_the_old_format_up_in_time() -> None:
    fs = MemoryFileSystem()
    for step, storage_format in enumerate(FORMATS, 1):
        with open_store(fs, format=storage_format) as store:
            commit(store, step)
            store.snapshot(storage_format)
            with store.begin(step) as txn:  # one part of this format, two of the last
                txn.stage(*PARTS[0], content(step))
                txn.keep_rest()
                txn.commit()
    numbers = [name.partition(".")[0] for name in object_files(fs)]
    assert len(numbers) == len(set(numbers))
    with open_store(fs, "r") as store:
        for step, storage_format in enumerate(FORMATS, 1):
            assert values(store, storage_format) == expected(step)
            rows = store.objects(storage_format)
            assert {row.format for row in rows} == {storage_format}
            assert [row.bytes for row in rows] == [
                fs.stat(head_file(fs, (row.shard, row.part), storage_format)).size for row in rows
            ]
    assert check(fs).clean
    for step in range(4, 8):
        with open_store(fs) as store:
            commit(store, step)
    with open_store(fs) as store:
        for storage_format in FOREIGN:
            store.delete(storage_format)
        for name in ("one", "two", "three"):
            store.snapshot(name)
            store.delete(name)
    open_store(fs).close()
    assert endings(fs) == {"raw"}


@pytest.mark.req("S11")
@pytest.mark.parametrize("storage_format", FOREIGN)
def test_wrong_bytes_are_never_returned(storage_format: str) -> None:
    fs = MemoryFileSystem()
    with open_store(fs, format=storage_format) as store:
        commit(store, 1)
        file, other = head_file(fs), head_file(fs, ("b", "params"))
        good = read_bytes(fs, file)
        place = good.index(np.full((4, 5), 10, "f4").tobytes())
        wrong = [read_bytes(fs, other), good[:-1], good + b"\0", b"", bytes(len(good))]
        for at in range(0, len(good), 97):
            wrong.append(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        wrong.append(good[:place] + b"\1" + good[place + 1 :])
        for data in wrong:
            put(fs, file, data)
            for act in (store.load, store.size_of if len(data) != len(good) else store.load):
                with pytest.raises(CorruptionError) as caught:
                    act("a", "params")
            for word in ("'a'", "'params'", "step 1", "run", file):
                assert word in str(caught.value), word
            assert damages(fs)
        assert "tensor 'w'" in str(caught.value) and f"offset {place}" in str(caught.value)
        put(fs, file, good)
        assert value_of(store, "a", "params") == 10
    assert check(fs).clean


@pytest.mark.req("S13")
@pytest.mark.parametrize("storage_format", FOREIGN)
def test_fsck_names_tensor_and_owner(storage_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFileSystem()
    with open_store(fs, format=storage_format) as store:
        with store.begin(1) as txn:
            txn.stage("s", "p", {"w": np.arange(200_000, dtype="f4"), "n": np.array(5, "i8")})
            txn.stage("s", "q", {"w": np.ones(200_000, "f4"), "n": np.array(6, "i8")})
            txn.commit()
        store.snapshot("kept")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "shardstore.torch", raising=False)
    file, other = head_file(fs, ("s", "p")), head_file(fs, ("s", "q"))
    begin = read_bytes(fs, file).index(np.arange(200_000, dtype="f4").tobytes())
    at = begin + 700_000
    change(fs, file, at)
    assert check(fs, deep=False).clean  # beyond the beginning
    (found,) = damages(fs)
    assert (found.file, found.offset, found.tensor) == (file, begin, "w")
    assert (found.shard, found.part, found.step, found.snapshots) == ("s", "p", 1, ("kept",))
    change(fs, file, at)
    assert check(fs).clean
    good, another = read_bytes(fs, file), read_bytes(fs, other)
    put(fs, file, another)
    assert damages(fs, deep=False) and damages(fs)
    assert any("another object" in finding.what for finding in damages(fs))
    fs.unlink(file)
    assert [finding.file for finding in damages(fs, deep=False)] == [file]
    put(fs, file, good)
    assert check(fs).clean


@pytest.mark.req("S9")
@pytest.mark.parametrize("storage_format", FOREIGN)
def test_buffers_of_the_caller_and_checkouts(storage_format: str) -> None:
    with open_store(format=storage_format) as store:
        commit(store, 1)
        size = store.size_of("a", "params")
        memory = bytearray(size + 100)
        with store.load("a", "params", into=memory) as loaded:
            arrays = loaded.numpy()
            assert arrays["n"] == 10 and not arrays["w"].flags.writeable
            assert np.shares_memory(np.frombuffer(memory, "u1"), arrays["w"])
        with pytest.raises(UsageError, match="into="):
            store.load("a", "params", into=bytearray(size - 1))
        with store.begin(2) as txn:
            checkout = txn.checkout("a", "params")
            checkout.numpy()["w"][:] += 1
            txn.stage("a", "params", checkout, donate=True)
            with txn.load("a", "params") as loaded:
                assert (loaded.numpy()["w"] == 11).all()
            txn.keep_rest()
            txn.commit()
        with store.load("a", "params") as loaded:
            assert (loaded.numpy()["w"] == 11).all() and loaded.step == 2
        assert {row.format for row in store.objects()} == {storage_format}


@pytest.mark.req("S9", "S14")
@pytest.mark.parametrize("budget", [0, 1 << 26])
@pytest.mark.parametrize("storage_format", FOREIGN)
def test_threads_commits_in_flight_and_the_cache(
    storage_format: str, budget: int, tmp_path: Path
) -> None:
    settings = Settings(prewrite_bytes=32 * 1024, host_budget_bytes=budget, piece_bytes=4096)
    with Store.open(tmp_path, "a", settings=settings, format=storage_format) as store:
        for step in range(6):
            with store.begin(step) as txn:
                txn.stage("s", "p", {"w": np.full(5000, step, "f4")})
                with txn.load("s", "p") as loaded:
                    assert (loaded.numpy()["w"] == step).all()
                ticket = txn.commit_async()
        assert ticket.result().step == 5
        assert store.prefetch([("s", "p")]) <= 1
        memory = bytearray(store.size_of("s", "p"))
        for into in (None, memory, None):
            with store.load("s", "p", into=into) as loaded:
                assert (loaded.numpy()["w"] == 5).all()
        with store.begin(6) as txn:  # the same content once more: written, since nobody compares
            txn.stage("s", "p", {"w": np.full(5000, 5, "f4")})
            assert txn.unchanged == frozenset() and txn.written_bytes == store.objects()[0].bytes
            txn.commit()
    with Store.open(tmp_path, "r+", settings=settings) as store, store.begin(7) as txn:
        txn.stage("s", "p", {"w": np.full(5000, 5, "f4")})
        txn.commit()
        assert [row.format for row in store.objects()] == ["raw"]
    assert fsck(PosixFileSystem(), str(tmp_path), deep=True).clean


@pytest.mark.req("S9")
def test_a_header_longer_than_the_beginning_is_read_all_the_same() -> None:
    tensors = {f"t{index}" + "x" * 900: np.array(index, "i4") for index in range(300)}
    fs = MemoryFileSystem()
    with open_store(fs, format="safetensors") as store:
        with store.begin(1) as txn:
            txn.stage("s", "p", tensors)
            txn.commit()
        assert len(store.tensors()) == 300
        with store.load("s", "p") as loaded:
            assert [int(value) for value in loaded.numpy().values()] == list(range(300))
    assert check(fs).clean and check(fs, deep=False).clean
    change(fs, head_file(fs, ("s", "p")), 290_000)
    assert damages(fs)
    with open_store(fs, "r") as store, pytest.raises(CorruptionError):
        store.tensors()


@pytest.mark.req("S9")
def test_convert_is_one_commit_that_keeps_state_and_metadata() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store, pytest.raises(RefNotFoundError, match="no commit yet"):
        convert(store, nothing)
    with open_store(fs) as store:
        commit(store, 3, metadata={"loss": float("inf")}, blobs={"rng": b"\0\xff"})
        first, digest = store.head, store.state_digest()
    with open_store(fs, format="safetensors") as store:
        seen: list[int] = []
        done = convert(store, seen.append)
        assert first is not None and store.head is not None
        assert (done.seq, done.step, done.state_digest) == (first.seq + 2, 3, digest)
        assert store.head.metadata == first.metadata and store.head.blobs == first.blobs
        assert sum(seen) == sum(row.bytes for row in done.before)
        assert [row.format for row in done.after] == ["safetensors"] * len(PARTS)
        assert values(store) == values(store, Ref.seq(first.seq)) == expected(3)
        again = convert(store, nothing)
        assert again.after == again.before == () and again.seq == done.seq
        with store.begin(4) as txn:
            txn.keep_rest()
            txn.commit()
        assert values(store) == expected(3)


@pytest.mark.req("S9", "S18")
def test_a_convert_that_fails_leaves_the_head() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs) as store:
        commit(store, 1)
        head, before = store.head, tree(fs)
    with open_store(fs, format="safetensors") as store:
        fs.fail("pwrite", "*.safetensors", nth=2)
        with pytest.raises(StorageError, match="writing an object"):
            convert(store, nothing)
        assert store.head == head and values(store) == expected(1)
        assert convert(store, nothing).seq > head.seq if head else False
    assert set(before) - set(tree(fs)) == set()
    assert check(fs).clean


@pytest.mark.req("S9")
def test_without_torch_converting_to_pt_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "shardstore.torch", raising=False)
    with open_store(fs, format="pt") as store:
        head = store.head
        with pytest.raises(MissingLibraryError, match="pip install"):
            convert(store, nothing)
        assert store.head == head and endings(fs) == {"raw"}
