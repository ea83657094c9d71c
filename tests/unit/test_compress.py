"""Compressed segments: which, in which order, what reads them, and what damage in them says.

Goal: the log reads the same before and after, a failure changes nothing, damage is named. Method:
small segments on the memory file system, the second reader on a real one. Crashes in the middle are
the scenario `compress` in tests/crash.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from shardstore.context import Settings
from shardstore.errors import CorruptionError
from shardstore.format.names import packed_file, packed_index, segment_file
from shardstore.format.packed import pack_segment, unpack_segment
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import fsck
from shardstore.history import read_history
from shardstore.store import Store
from shardstore.wal.compress import compress_segments
from shardstore.wal.reader import read_bytes, read_log
from tests.format.independent_reader import IndependentReader
from tests.support.stores import ROOT, commit, expected, open_store, tree, values

SMALL = Settings(prewrite_bytes=16384, commits_per_segment=3)


def _store(fs: FileSystem, commits: int = 14) -> None:
    with open_store(fs, settings=SMALL) as store:
        for step in range(1, commits + 1):
            commit(store, step, metadata={"loss": 1.0 / step})


def _wal(fs: FileSystem) -> list[str]:
    return fs.list_directory(f"{ROOT}/wal")


def _overwrite(fs: FileSystem, path: str, data: bytes) -> None:
    file = fs.open(path, "replace")
    file.pwrite(0, data)
    file.close()


@pytest.mark.req("S22")
def test_all_but_the_newest_two_are_compressed_and_read_the_same() -> None:
    fs = MemoryFileSystem()
    _store(fs)
    before = [entry.to_json() for entry in read_history(fs, ROOT, commits_only=False)]
    plain = _wal(fs)
    count = len(plain)
    assert count > 4
    content = {i: read_bytes(fs, f"{ROOT}/{segment_file(i)}") for i in range(count)}
    assert compress_segments(fs, ROOT, bytes_min=0) == list(range(count - 2))
    assert _wal(fs) == [f"{n}.zst" for n in plain[:-2]] + plain[-2:]
    assert [e.to_json() for e in read_history(fs, ROOT, commits_only=False)] == before
    for index in range(count - 2):
        packed = f"{ROOT}/{packed_file(index)}"
        assert content[index].startswith(unpack_segment(read_bytes(fs, packed), packed))
    assert fsck(fs, ROOT).clean
    with open_store(fs, settings=SMALL) as store:
        assert values(store) == expected(14)
        commit(store, 15)


def test_short_segments_stay_and_a_second_run_finds_nothing() -> None:
    fs = MemoryFileSystem()
    _store(fs)
    assert compress_segments(fs, ROOT) == []
    assert compress_segments(fs, ROOT, bytes_min=0)
    assert compress_segments(fs, ROOT, bytes_min=0) == []


def test_the_second_reader_follows_compressed_history(tmp_path: Path) -> None:
    from shardstore.fs.posix import PosixFileSystem

    root = str(tmp_path / "run")
    with Store.open(root, "a", settings=SMALL) as store:
        for step in range(1, 15):
            commit(store, step)
    count = len(list((tmp_path / "run" / "wal").iterdir()))
    assert compress_segments(PosixFileSystem(), root, bytes_min=0)
    reader = IndependentReader(tmp_path / "run")
    assert reader.check_history() == count


def test_both_forms_present_the_plain_one_counts() -> None:
    fs = MemoryFileSystem()
    _store(fs)
    _overwrite(fs, f"{ROOT}/{packed_file(0)}", b"half of it")
    assert list(read_history(fs, ROOT))
    report = fsck(fs, ROOT)
    assert report.clean
    assert any("beside the plain one" in finding.what for finding in report.findings)
    assert 0 in compress_segments(fs, ROOT, bytes_min=0)
    assert list(read_history(fs, ROOT, commits_only=False))[-1].seq == 1


@pytest.mark.parametrize("op", ["datasync", "rename", "unlink", "sync_directory", "open_create"])
def test_a_failure_leaves_the_log_whole(op: str) -> None:
    fs = MemoryFileSystem()
    _store(fs)
    before = [entry.to_json() for entry in read_history(fs, ROOT)]
    faulty = FaultyFileSystem(fs)
    faulty.fail(op, "*")
    with pytest.raises(OSError):
        compress_segments(faulty, ROOT, bytes_min=0)
    assert [entry.to_json() for entry in read_history(fs, ROOT)] == before
    assert fsck(fs, ROOT).clean
    assert compress_segments(fs, ROOT, bytes_min=0)
    assert [entry.to_json() for entry in read_history(fs, ROOT)] == before


def test_what_does_not_read_back_is_not_believed() -> None:
    fs = MemoryFileSystem()
    _store(fs)
    faulty = FaultyFileSystem(fs)
    faulty.skip("pwrite", "*/wal/tmp.zst")
    before = tree(fs)
    assert compress_segments(faulty, ROOT, bytes_min=0) == []
    assert {p: d for p, d in tree(fs).items() if not p.endswith("tmp.zst")} == before
    assert any("being compressed" in finding.what for finding in fsck(fs, ROOT).findings)


def test_a_damaged_segment_is_left_for_the_check() -> None:
    fs = MemoryFileSystem()
    _store(fs)
    path = f"{ROOT}/{segment_file(1)}"
    data = bytearray(read_bytes(fs, path))
    data[5000] ^= 1
    _overwrite(fs, path, bytes(data))
    assert 1 not in compress_segments(fs, ROOT, bytes_min=0)
    assert read_bytes(fs, path) == bytes(data)


@pytest.mark.req("S4")
def test_every_flipped_byte_and_every_cut_is_found() -> None:
    fs = MemoryFileSystem()
    _store(fs)
    compress_segments(fs, ROOT, bytes_min=0)
    path = f"{ROOT}/{packed_file(1)}"
    whole = read_bytes(fs, path)
    content = unpack_segment(whole, path)
    changed = [whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :] for at in range(len(whole))]
    changed += [whole[:at] for at in range(len(whole))] + [whole + b"\0", whole + whole]
    unseen = 0
    for data in changed:
        try:
            unseen += unpack_segment(data, path) == content  # a flag that changes nothing
        except CorruptionError as error:
            assert error.file == path
            continue
        _overwrite(fs, path, data)
    assert unseen <= 2
    _overwrite(fs, path, changed[len(whole) // 2])
    with pytest.raises(CorruptionError, match=r"0000000000000001\.wal\.zst"):
        list(read_history(fs, ROOT))
    damage = [finding for finding in fsck(fs, ROOT).findings if finding.is_damage]
    assert damage[0].file == path
    with open_store(fs, settings=SMALL) as store:  # history is not needed to work on
        commit(store, 15)


def test_a_frame_that_asks_for_too_much_is_refused() -> None:
    parts = zstandard.ZstdCompressor().compress(b"x" * 100)
    huge = bytearray(pack_segment(b"x" * 100_000))
    with pytest.raises(CorruptionError, match="checksum"):
        unpack_segment(bytes(parts), "f")
    huge[4] |= 0xC0  # an eight-byte content size
    with pytest.raises(CorruptionError):
        unpack_segment(bytes(huge[:5]) + b"\xff" * 8 + bytes(huge[6:]), "f")


def test_a_compressed_newest_segment_means_that_newer_ones_are_lost() -> None:
    fs = MemoryFileSystem()
    _store(fs)
    compress_segments(fs, ROOT, bytes_min=0)
    for name in _wal(fs):
        if packed_index(name) is None:
            fs.unlink(f"{ROOT}/wal/{name}")
    with pytest.raises(CorruptionError, match="newest segments of the log are missing"):
        read_log(fs, ROOT)
    assert not fsck(fs, ROOT).clean
