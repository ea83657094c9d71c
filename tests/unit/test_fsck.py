"""fsck names all damage of the log and of STORE, goes on after the first, and changes nothing."""

from __future__ import annotations

import errno

import pytest

from shardstore.errors import NotAStoreError, StorageError
from shardstore.format.frames import BLOCK
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import fsck
from shardstore.fsck.scan import scan_segment
from shardstore.wal.reader import list_segments, read_bytes, read_log
from tests.support.stores import ROOT, tree
from tests.unit.fsck_support import WAL, built, change, check, damages, newest, object_path


@pytest.fixture
def fs() -> MemoryFileSystem:
    return built()


@pytest.mark.req("S13")
@pytest.mark.parametrize("deep", [False, True])
def test_a_healthy_store_is_clean_and_untouched(fs: MemoryFileSystem, deep: bool) -> None:
    before = tree(fs)
    report = check(fs, deep=deep)
    assert report.clean and tree(fs) == before
    assert (report.segments, report.objects) == (4, 3 + 3 + 2)
    assert all(finding.severity == "note" for finding in report.findings)
    assert report.bytes_read == 2 * BLOCK * (report.objects if deep else 2)


@pytest.mark.req("S13", "S12")
def test_an_interrupted_append_is_a_note(fs: MemoryFileSystem) -> None:
    view = read_log(fs, ROOT)
    frame = view.segment.records[-1].frame
    content = read_bytes(fs, newest(fs))[frame.offset : frame.end]
    change(fs, newest(fs), view.segment.end, content[:704] + bytes(BLOCK - 704))
    report = check(fs)
    assert report.clean
    (note,) = [f for f in report.findings if f.file == newest(fs)]
    assert note.offset == view.segment.end and "interrupted" in note.what


@pytest.mark.req("S4", "S13")
def test_every_byte_of_every_frame_counts(fs: MemoryFileSystem) -> None:
    """The scan sees each flipped byte of the newest record and a sample of all others, at its
    frame; the whole check sees a smaller one. (The long profile flips every byte.)"""
    indices = list_segments(fs, ROOT)
    for index in indices:
        path = f"{WAL}/{index:016x}.wal"
        content = read_bytes(fs, path)
        following = scan_successor(fs, index)
        end = following or scan_segment(content, path, index).end
        for at in sorted({*range(0, end, 29), *range(max(0, end - BLOCK), end)}):
            mask = 0xFF if at % 2 else 0x01
            broken = content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]
            scan = scan_segment(broken, path, index, cut=following)
            found = [f.offset for f in scan.findings if f.is_damage]
            assert found and found[0] is not None, f"byte {at} of segment {index}"
            assert found[0] <= at < found[0] + 4 * BLOCK
        for at in range(5, end, 997):
            change(fs, path, at)
            found = [f.offset for f in damages(fs) if f.file == path]
            assert found and found[0] is not None and found[0] <= at
            change(fs, path, at)
    assert check(fs).clean


def scan_successor(fs: FileSystem, index: int) -> int | None:
    """Where the next segment took over, if there is one."""
    if index + 1 not in list_segments(fs, ROOT):
        return None
    path = f"{WAL}/{index + 1:016x}.wal"
    cut: int = scan_segment(read_bytes(fs, path), path, index + 1).header["predecessor"]["cut"]
    return cut


@pytest.mark.req("S4", "S13")
def test_unwritten_space_is_watched(fs: MemoryFileSystem) -> None:
    path, end = newest(fs), read_log(fs, ROOT).segment.end
    size = fs.stat(path).size
    assert size > end
    for at in sorted({end, size - 1, *range(end, size, 777)}):
        change(fs, path, at, b"\x01")
        (finding,) = damages(fs)
        assert finding.file == path and finding.offset is not None
        assert end <= finding.offset <= at
        change(fs, path, at, b"\x00")


@pytest.mark.req("S4", "S13")
def test_each_damaged_stretch_of_unwritten_space_is_named(fs: MemoryFileSystem) -> None:
    path, end = newest(fs), read_log(fs, ROOT).segment.end
    for at in (end + 8, end + 2 * BLOCK + 16):
        change(fs, path, at, b"\x01")
    assert [finding.offset for finding in damages(fs)] == [end, end + 2 * BLOCK + 16]


@pytest.mark.req("S13")
def test_the_scan_goes_on_after_damage(fs: MemoryFileSystem) -> None:
    """Two damaged frames and unwritten space, all named; what lies between them is counted."""
    records = read_log(fs, ROOT).segment.records
    first, second = records[1].frame.offset, records[3].frame.offset
    last = fs.stat(newest(fs)).size - 9
    for at in (first + 200, second + 50, last):
        change(fs, newest(fs), at)
    offsets = [f.offset for f in damages(fs) if f.file == newest(fs)]
    assert [first, second] == offsets[:2]
    assert len(offsets) == 3 and last - 8 < (offsets[2] or 0) <= last
    notes = [f.what for f in check(fs).findings if "cannot be read" in f.what]
    assert notes[0].startswith(f"record {records[1].seq} cannot be read")


@pytest.mark.req("S13")
def test_a_flipped_byte_of_the_store_file_is_found(fs: MemoryFileSystem) -> None:
    path = f"{ROOT}/STORE"
    for at in range(fs.stat(path).size):
        change(fs, path, at)
        found = damages(fs)
        assert [f.file for f in found] == [path], f"byte {at}"
        change(fs, path, at)


@pytest.mark.req("S13")
def test_the_log_and_the_objects_are_checked_although_the_store_file_is_damaged(
    fs: MemoryFileSystem,
) -> None:
    path = object_path(fs, ("a", "params"))
    change(fs, f"{ROOT}/STORE", 3)
    change(fs, path, fs.stat(path).size - 1)
    assert [f.file for f in damages(fs)] == [f"{ROOT}/STORE", path]


@pytest.mark.req("S13")
def test_objects_are_checked_although_the_log_is_damaged(fs: MemoryFileSystem) -> None:
    path = object_path(fs, ("a", "params"))
    change(fs, path, fs.stat(path).size - 1)
    last = read_log(fs, ROOT).segment.records[-1].frame
    change(fs, newest(fs), last.offset + 130)
    report = check(fs)
    assert [f.file for f in report.findings if f.is_damage] == [newest(fs), path]
    assert any("against themselves" in f.what for f in report.findings)


@pytest.mark.req("S13")
@pytest.mark.parametrize("index", [0, 1])
def test_a_missing_segment_is_found(fs: MemoryFileSystem, index: int) -> None:
    path = f"{WAL}/{index:016x}.wal"
    fs.unlink(path)
    assert [f.file for f in damages(fs)] == [path]


@pytest.mark.req("S13")
def test_segments_of_another_store_do_not_fit(fs: MemoryFileSystem) -> None:
    """Whole in itself, and still not the one that its successor took over from."""
    path = f"{WAL}/{1:016x}.wal"
    other = read_bytes(built(draws=1), path)
    fs.unlink(path)
    file = fs.open(path, "create")
    file.pwrite(0, other)
    file.close()
    found = damages(fs)
    assert any(f.file == path and "store" in f.what for f in found)
    assert any("predecessor's chain" in f.what for f in found)


@pytest.mark.req("S13", "S18")
def test_without_the_directory_nothing_can_be_checked(fs: MemoryFileSystem) -> None:
    faulty = FaultyFileSystem(fs)
    faulty.fail("list_directory", WAL, times=None)
    assert [f.file for f in damages(faulty)] == [WAL]
    faulty.clear()
    faulty.fail("list_directory", WAL, times=None, error=errno.EMFILE)
    with pytest.raises(StorageError, match="wal"):
        check(faulty)
    with pytest.raises(NotAStoreError):
        fsck(MemoryFileSystem(), "nowhere")


@pytest.mark.req("S13")
def test_leftovers_are_notes(fs: MemoryFileSystem) -> None:
    for name in ("wal/tmp", "wal/strange", "objects/strange", "objects/0000ff.raw"):
        fs.open(f"{ROOT}/{name}", "create").close()
    report = check(fs)
    assert report.clean
    files = {finding.file for finding in report.findings}
    assert files >= {f"{WAL}/tmp", f"{WAL}/strange", f"{ROOT}/objects/strange"}
    assert any("nothing needs" in finding.what for finding in report.findings)


@pytest.mark.long
@pytest.mark.req("S4", "S13")
def test_the_scan_sees_every_flipped_byte_of_every_segment(fs: MemoryFileSystem) -> None:
    """Up to the cut of a sealed segment; to the end of the newest, unwritten space and all."""
    for index in list_segments(fs, ROOT):
        path, cut = f"{WAL}/{index:016x}.wal", scan_successor(fs, index)
        content = read_bytes(fs, path)
        for at in range(cut or len(content)):
            broken = content[:at] + bytes([content[at] ^ 0x01]) + content[at + 1 :]
            found = [f.offset or 0 for f in scan_segment(broken, path, index, cut=cut).findings]
            assert found and min(found) <= at, f"byte {at} of segment {index}"
