"""How a deep check reads: pieces of several files at once, and nothing that is found depends on it.

Method: one store of several formats, objects of several pieces each; every damage is looked for by
threads and without them, in pieces small and large, and the lists have to be the same ones.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardstore.errors import StorageError
from shardstore.format.names import FORMATS
from shardstore.fs.faulty import FaultyFileSystem, Hook
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.fs.posix import PosixFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import Finding, Report, fsck, object_check
from shardstore.wal.reader import read_bytes, read_log
from tests.support.damaged_store import HealthyStore
from tests.support.stores import ROOT, open_store
from tests.support.threads import left_over
from tests.unit.fsck_support import change, newest

PIECE = 8192
SEEDS = {"w": 30_001, "v": 20_000, "u": 3}


def make(fs: FileSystem) -> None:
    for storage_format in FORMATS:
        with open_store(fs, format=storage_format) as store:
            with store.begin((store.head.step if store.head else 0) + 1) as txn:
                for part in ("p", "q"):
                    txn.stage(storage_format, part, {
                        name: np.random.default_rng(size).integers(1, 255, size, dtype=np.uint8)
                        for name, size in SEEDS.items()
                    })  # fmt: skip
                txn.keep_rest()
                txn.commit()
            store.snapshot(f"kept-{storage_format}")


@pytest.fixture
def fs() -> MemoryFileSystem:
    made = MemoryFileSystem()
    make(made)
    return made


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_check, "PIECE_BYTES", PIECE)


def path_of(fs: FileSystem, shard: str, part: str = "p") -> str:
    state = read_log(fs, ROOT).state
    return f"{ROOT}/{state.commits[max(state.commits)].manifest[shard, part].file}"


class Watched(FaultyFileSystem):
    """Counts the files that are open."""

    def __init__(self, inner: FileSystem, *, parallel: bool, before: Hook | None = None) -> None:
        super().__init__(inner, before=before, after=self._count)
        self.parallel = parallel
        self.opened = 0

    def _count(self, operation: Operation) -> None:
        self.opened += operation.op == "open_read"


def told(
    fs: FileSystem,
    monkeypatch: pytest.MonkeyPatch,
    faults: Callable[[FaultyFileSystem], object] = lambda _: None,
    sizes: tuple[int, ...] = (4096, PIECE, 1 << 20),
) -> list[Finding]:
    """What each way of reading finds; they agree, close what they open and end their threads."""
    lists = []
    for parallel in (False, True):
        for size in sizes:
            monkeypatch.setattr(object_check, "PIECE_BYTES", size)
            faulty = Watched(fs, parallel=parallel)
            faults(faulty)
            with nothing_left_behind(faulty):
                lists.append(fsck(faulty, ROOT, deep=True).findings)
    assert all(found == lists[0] for found in lists)
    return [finding for finding in lists[0] if finding.is_damage]


@contextmanager
def nothing_left_behind(fs: Watched) -> Any:
    threads = set(threading.enumerate())
    yield
    assert not left_over(threads)
    assert fs.counts["close"] == fs.opened > 0


@pytest.mark.req("S13")
def test_all_damage_of_an_object_is_told_in_the_order_of_the_file(
    fs: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(fs, "raw")
    data = read_bytes(fs, path)
    begins = {
        name: data.index(np.random.default_rng(size).integers(1, 255, size, np.uint8).tobytes())
        for name, size in SEEDS.items()
    }
    gap = begins["w"] + SEEDS["w"] + 7
    for at in (begins["w"], begins["w"] + 29_000, gap, begins["u"] + 1, len(data) - 1):
        change(fs, path, at)
    found = [(f.tensor, f.offset) for f in told(fs, monkeypatch)]
    assert found == [
        ("w", begins["w"]), (None, gap), ("u", begins["u"]), (None, len(data) - 1)
    ]  # fmt: skip


def header_flipped(fs: FileSystem, path: str) -> None:
    change(fs, path, 40)


def length_flipped(fs: FileSystem, path: str) -> None:
    change(fs, path, 2)


def several_flipped(fs: FileSystem, path: str) -> None:
    size = fs.stat(path).size
    for at in (size // 3, size // 3 + 1, size // 2, size - 5000, size - 4090):
        change(fs, path, at)


def cut(fs: FileSystem, path: str) -> None:
    file = fs.open(path, "write")
    file.truncate(9000)
    file.close()


def longer(fs: FileSystem, path: str) -> None:
    change(fs, path, fs.stat(path).size, b"\0" * 100)
    change(fs, path, 20_000)


def emptied(fs: FileSystem, path: str) -> None:
    fs.open(path, "replace").close()


def gone(fs: FileSystem, path: str) -> None:
    fs.unlink(path)


def another(fs: FileSystem, path: str) -> None:
    change(fs, path, 0, read_bytes(fs, path_of(fs, path.rpartition(".")[2], "q")))


SPOILS = (header_flipped, length_flipped, several_flipped, cut, longer, emptied, gone, another)


@pytest.mark.req("S11", "S13")
@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("storage_format", FORMATS)
def test_threads_find_what_one_after_the_other_finds(
    fs: MemoryFileSystem,
    monkeypatch: pytest.MonkeyPatch,
    storage_format: str,
    spoil: Callable[[FileSystem, str], None],
) -> None:
    path = path_of(fs, storage_format)
    spoil(fs, path)
    assert {f.file for f in told(fs, monkeypatch)} == {path}


@pytest.mark.req("S13")
def test_damage_of_several_objects_and_the_log_is_told_in_one_order(
    fs: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [path_of(fs, shard, part) for shard in FORMATS for part in ("q", "p")]
    for path in paths:
        several_flipped(fs, path)
    assert list(dict.fromkeys(f.file for f in told(fs, monkeypatch))) == sorted(paths)
    change(fs, newest(fs), read_log(fs, ROOT).segment.records[-1].frame.offset + 200)
    # Objects are checked against themselves now.
    places = {finding.file for finding in told(fs, monkeypatch)}
    assert newest(fs) in places and len(places) > 3


@pytest.mark.req("S13")
def test_the_damaged_stores_of_a_directory(tmp_path: Path) -> None:
    store = HealthyStore.make(tmp_path / "run")
    for path in sorted(store.root.glob("objects/*")):
        content = store.files[path]
        for at in (3, 100, 4096, 4196, len(content) - 1):
            path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
            reports = [
                fsck(Watched(PosixFileSystem(), parallel=parallel), str(store.root), deep=True)
                for parallel in (False, True)
            ]
            assert reports[0].to_json() == reports[1].to_json()
        store.restore()


@pytest.mark.req("S13", "S18")
@pytest.mark.parametrize(
    ("op", "nth"), [("open_read", 1), ("size", 1), ("pread", 1), ("pread", 3), ("close", 1)]
)
def test_an_object_that_a_dying_disk_keeps_stops_no_other(
    fs: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, op: str, nth: int
) -> None:
    dying, spoilt = path_of(fs, "raw", "p"), path_of(fs, "safetensors", "p")
    several_flipped(fs, dying)  # of which nothing can be said
    several_flipped(fs, spoilt)

    def faults(faulty: FaultyFileSystem) -> None:
        faulty.fail(op, dying, nth=nth, times=None)

    found = told(fs, monkeypatch, faults, (4096, PIECE))
    assert [f.what for f in found if f.file == dying] == ["cannot be read: Input/output error"]
    assert [f.tensor for f in found if f.file == spoilt]
    assert {f.file for f in found} == {dying, spoilt}


@pytest.mark.req("S13")
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("storage_format", FORMATS)
@pytest.mark.parametrize("left", [3, 2 * PIECE + 5])
def test_a_file_that_is_cut_off_while_it_is_read(
    fs: MemoryFileSystem, storage_format: str, left: int, parallel: bool
) -> None:
    """What was in the buffer before is not taken for what the file held."""
    path = path_of(fs, storage_format)
    change(fs, path, PIECE + 100)

    def shorten(operation: Operation) -> None:
        if operation.op == "pread" and operation.path == path:
            file = fs.open(path, "write")
            file.truncate(left)
            file.close()

    found = fsck(Watched(fs, parallel=parallel, before=shorten), ROOT, deep=True).findings
    (finding,) = [f for f in found if f.is_damage and f.file == path]
    assert "cut off" in finding.what and finding.offset == left
    assert finding.found == f"{left} bytes"


@pytest.mark.req("S13")
def test_several_files_are_read_at_once_and_by_one_thread_where_that_does_not_pay(
    fs: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pieces as large as the objects two reads that wait for each other are of two files."""
    monkeypatch.setattr(object_check, "PIECE_BYTES", 1 << 20)
    main, meeting, arrivals = threading.get_ident(), threading.Barrier(2), itertools.count()
    readers: set[int] = set()
    preads: list[Operation] = []

    def meet(operation: Operation) -> None:
        reader = threading.get_ident()
        if operation.op == "pread" and reader != main and next(arrivals) < 2:
            readers.add(reader)
            meeting.wait(60)

    assert fsck(Watched(fs, parallel=True, before=meet), ROOT, deep=True).clean
    assert len(readers) == 2

    def log(operation: Operation) -> None:
        assert threading.get_ident() == main
        preads.append(operation)

    fsck(Watched(fs, parallel=False, before=log), ROOT, deep=True)
    first = preads.copy()
    preads.clear()
    fsck(Watched(fs, parallel=False, before=log), ROOT, deep=True)
    assert preads == first


@pytest.mark.req("S13")
@pytest.mark.parametrize("parallel", [False, True])
def test_progress_is_called_on_one_thread_and_sums_up(fs: MemoryFileSystem, parallel: bool) -> None:
    calls: list[tuple[int, int]] = []
    totals: list[int] = []

    @contextmanager
    def progress(_label: str, total: int) -> Any:
        totals.append(total)
        yield lambda done: calls.append((threading.get_ident(), done))

    report = fsck(Watched(fs, parallel=parallel), ROOT, deep=True, progress=progress)
    assert {thread for thread, _ in calls} == {threading.get_ident()}
    assert [sum(done for _, done in calls)] == totals == [report.bytes_read]
    assert max(done for _, done in calls) == PIECE


class Interrupted(BaseException):
    """As KeyboardInterrupt is: no error that anybody expects."""


@pytest.mark.req("S13")
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("nth", [1, 7])
def test_an_interrupt_ends_threads_and_closes_files(
    fs: MemoryFileSystem, parallel: bool, nth: int
) -> None:
    left = [nth]

    @contextmanager
    def progress(_label: str, _total: int) -> Any:
        def advance(_done: int) -> None:
            left[0] -= 1
            if not left[0]:
                raise Interrupted

        yield advance

    faulty = Watched(fs, parallel=parallel)
    with nothing_left_behind(faulty), pytest.raises(Interrupted):
        fsck(faulty, ROOT, deep=True, progress=progress)


class Recorder(Watched):
    """Where the bytes of objects are read to, and how."""

    def __init__(self, inner: FileSystem) -> None:
        super().__init__(inner, parallel=True)
        self.addresses: set[int] = set()
        self.largest = 0

    def open(self, path: str, mode: Any, *, direct: bool = False) -> Any:
        file = super().open(path, mode, direct=direct)
        if direct:
            read = file.pread

            def pread(offset: int, buffer: Any) -> int:
                self.addresses.add(ctypes.addressof(ctypes.c_char.from_buffer(buffer)))
                self.largest = max(self.largest, len(buffer))
                return read(offset, buffer)

            file.pread = pread  # type: ignore[method-assign]
        return file


@pytest.mark.req("S13")
def test_memory_is_a_few_aligned_pieces_whatever_the_objects(fs: MemoryFileSystem) -> None:
    recorder = Recorder(fs)
    report = fsck(recorder, ROOT, deep=True)
    assert report.clean and report.bytes_read > 20 * PIECE
    assert 1 <= len(recorder.addresses) <= object_check.THREADS + object_check.SPARE
    assert all(address % 4096 == 0 for address in recorder.addresses)
    assert recorder.largest == PIECE


@pytest.mark.req("S13")
def test_a_quick_check_reads_beginnings_on_its_own_thread(fs: MemoryFileSystem) -> None:
    main, sizes = threading.get_ident(), []

    def log(operation: Operation) -> None:
        assert threading.get_ident() == main
        if operation.op == "pread" and operation.path == raw:
            sizes.append(operation.detail)

    raw = path_of(fs, "raw")
    report: Report = fsck(Watched(fs, parallel=True, before=log), ROOT)
    assert report.clean and sizes == [(0, 8), (8, 4096 - 8)]


@pytest.mark.req("S13", "S18")
@pytest.mark.parametrize("op", ["open_read", "pread"])
def test_what_the_system_refuses_is_no_damage(fs: MemoryFileSystem, op: str) -> None:
    """It says nothing of the file: the check ends with the error, and no thread or file stays."""
    for error in (errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.ESTALE):
        faulty = Watched(fs, parallel=True)
        faulty.fail(op, path_of(fs, "pt"), error=error)
        with pytest.raises(StorageError, match=os.strerror(error)) as refused:
            fsck(faulty, ROOT, deep=True)
        assert refused.value.errno == error and path_of(fs, "pt") in str(refused.value)
        assert faulty.counts["close"] == faulty.opened
