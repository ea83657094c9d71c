"""Damage after a clean close is refused, with the file and the place; it never becomes a tensor.

Goal: whatever happens to a file of a store, opening it for reading and for writing and loading
everything gives exactly the right bytes of the right head, or a CorruptionError that names the
file and, inside a file, the offset; and fsck finds it. Method: one small store, one damage at a
time, done in place.

What the format cannot tell from an interrupted append (FORMAT.md 3.3), and what these tests
therefore pin as "an older commit, whole and bit for bit, or a refusal", is:

- the log's file cut off anywhere behind its opening record: the end of the file counts as zeros;
- whole sectors of the last frame turned to zeros, or its end up to the last eight bytes: this is
  what a power cut leaves of a frame that was never synced;
- the newest segment gone as a whole: the segment before it is then the newest.

All three need the loss of something that was written as a unit; no flipped byte looks like them.
The catalog's mark refuses them after an orderly close (tests/unit/test_catalog.py); a kill leaves
an older mark, so the log has to be judged by itself too.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest

from shardstore import Store
from shardstore.context import Settings
from shardstore.errors import CorruptionError
from shardstore.fs.posix import PosixFileSystem
from shardstore.fsck import fsck
from tests.format.independent_log import BLOCK, SECTOR, Segment
from tests.format.independent_reader import IndependentReader
from tests.support.damaged_store import HealthyStore, tensors

MODES: tuple[Literal["r", "r+"], ...] = ("r", "r+")
FLIPS = {"one bit": 0x01, "the high bit": 0x80, "to zero": 0}
"""What is changed in a byte; where it says 0 the byte itself becomes zero."""
ENVELOPE = 123


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> HealthyStore:
    return HealthyStore.make(tmp_path_factory.mktemp("damage") / "run")


@pytest.fixture
def store(built: HealthyStore) -> Iterator[HealthyStore]:
    yield built
    built.restore()


def found_by_fsck(store: HealthyStore, path: Path) -> list[int | None]:
    """Offsets of the damage that fsck sees in the file; it may see none elsewhere."""
    report = fsck(PosixFileSystem(), str(store.root), deep=True)
    damage = [finding for finding in report.findings if finding.is_damage]
    assert damage and not report.clean
    return [finding.offset for finding in damage if Path(finding.file) == path]


def refusal(store: HealthyStore, path: Path, content: bytes | None) -> int | None:
    """The offset that opening and loading name for a damaged file, the same in both modes.

    fsck has to name the file too. Where the log or STORE is refused nothing may be written.
    """
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert found_by_fsck(store, path), f"fsck does not name {path}"
    found = [store.read(mode) for mode in MODES]
    assert store.unchanged(path, content) or path.parent.name == "objects"
    store.restore()
    for error in found:
        assert isinstance(error, CorruptionError), f"{path} is damaged, found the head {error}"
        assert Path(error.file) == path and str(path) in str(error)
    assert str(found[0]) == str(found[1])
    assert isinstance(found[0], CorruptionError)
    return found[0].offset


def refused_at(
    store: HealthyStore, path: Path, at: int, kind: str, begin: int = 0, end: int = 0
) -> None:
    """One flipped byte: the store names an offset from `begin` to it, fsck one up to `end`."""
    content = flipped(store.files[path], at, kind)
    path.write_bytes(content)
    places = found_by_fsck(store, path)
    offset = refusal(store, path, content)
    assert offset is not None and begin <= offset <= at, f"byte {at}: the store says {offset}"
    last = max(at, end)
    assert any(place is not None and begin <= place <= last for place in places), (at, places)


def flipped(content: bytes, at: int, kind: str) -> bytes:
    bits = FLIPS[kind] or content[at] or 0xFF
    return content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]


def head_objects(store: HealthyStore) -> list[Path]:
    """The objects that the head and the snapshot `kept` need, that of its manifest last."""
    reader = IndependentReader(store.root)
    rows = [row for name in ("head", "kept") for row in (reader.commit(name) or {})["manifest"]]
    references = [reference for _, _, reference in rows]
    references.append(reader.state.snapshots["kept"]["reference"])
    return list(dict.fromkeys(map(reader.object_path, references)))


# ---------------------------------------------------------------------- the log


def read_refused_at(
    store: HealthyStore, path: Path, at: int, kind: str, begin: int, end: int
) -> None:
    """As `refused_at`, but the reader only: quick enough for every byte."""
    path.write_bytes(flipped(store.files[path], at, kind))
    error = store.read("r")
    assert isinstance(error, CorruptionError) and Path(error.file) == path, (at, error)
    assert error.offset is not None and begin <= error.offset <= max(at, end)


def check_log_flips(store: HealthyStore, kind: str, places: list[int], every: int = 4) -> None:
    """Each byte is flipped under a reader, one of `every` under a writer and fsck too."""
    path, segment = store.segment, Segment(store.segment)
    frames = [segment.header, *segment.frames]
    for index, at in enumerate(places):
        begin = next(frame.offset for frame in frames if frame.offset <= at < frame.end)
        check = read_refused_at if index % every else refused_at
        check(store, path, at, kind, begin, at)
    store.restore()


def frame_places(store: HealthyStore, step: int) -> list[int]:
    """Every byte of the envelopes, every `step`th of the records and their fill."""
    segment = Segment(store.segment)
    frames = [segment.header, *segment.frames]
    inner = [at for frame in frames for at in range(frame.offset + ENVELOPE, frame.end - 1, step)]
    outer = [frame.offset + at for frame in frames for at in range(ENVELOPE)]
    return sorted({*inner, *outer, *(frame.end - 1 for frame in frames)})


@pytest.mark.req("S3", "S11")
@pytest.mark.parametrize("kind", FLIPS)
def test_flipped_bytes_of_the_log_are_refused(store: HealthyStore, kind: str) -> None:
    places = frame_places(store, 97)
    check_log_flips(store, kind, places[list(FLIPS).index(kind) :: len(FLIPS)])


@pytest.mark.long
@pytest.mark.req("S3", "S11")
@pytest.mark.parametrize("kind", FLIPS)
def test_every_flipped_byte_of_the_log_is_refused(store: HealthyStore, kind: str) -> None:
    check_log_flips(store, kind, frame_places(store, 1), every=32)


@pytest.mark.req("S3", "S11")
def test_flipped_bytes_of_the_unwritten_space_are_refused(store: HealthyStore) -> None:
    path, end = store.segment, Segment(store.segment).frames[-1].end
    content = store.files[path]
    assert len(content) >= end + BLOCK
    places = {end, end + 7, end + SECTOR, end + BLOCK - 1, len(content) - 1}
    for at in sorted(places | set(range(end, len(content), 997))):
        refused_at(store, path, at, "one bit", end)


@pytest.mark.req("S3", "S11")
def test_flips_in_sealed_segments_never_change_what_is_read(store: HealthyStore) -> None:
    """Up to the cut that the successor names; what lies beyond it was copied and never counts."""
    paths = sorted(store.root.glob("wal/*.wal"))
    for path, successor in pairwise(paths):
        cut = Segment(successor).header.record["predecessor"]["cut"]
        for at in range(0, len(store.files[path]), 701):
            path.write_bytes(flipped(store.files[path], at, "one bit"))
            assert store.read("r") == store.head
            if at < cut:
                (place,) = found_by_fsck(store, path)
                assert place is not None and place <= at
        store.restore()


@pytest.mark.req("S3", "S11")
def test_a_whole_frame_in_anothers_place_is_refused(store: HealthyStore) -> None:
    """A block that was put back or misdirected: valid in itself, and no interrupted append."""
    path, frames = store.segment, Segment(store.segment).frames
    whole = store.files[path]
    alike = [frame for frame in frames if frame.blocks == frames[-1].blocks]
    assert len(alike) >= 2
    for source in alike[:-1]:
        for place in (frames[-1].offset, frames[-2].offset, frames[-1].end):
            block = whole[source.offset : source.end]
            content = whole[:place] + block + whole[place + len(block) :]
            if content != whole:
                assert refusal(store, path, content) == place


@pytest.mark.req("S3", "S11")
def test_a_log_that_was_cut_off_ends_at_a_whole_commit_or_is_refused(store: HealthyStore) -> None:
    path, segment = store.segment, Segment(store.segment)
    ends = [frame.end for frame in segment.frames]
    opening = ends[segment.header.record["copies"]]
    behind = [end for end in ends if end >= opening]
    heads = dict(zip(behind, sorted(store.commits)[-len(behind) :], strict=True))
    draw = random.Random(1)
    cuts = {0, 1, BLOCK, opening - 1, *ends, *(end - 1 for end in ends), ends[-1] + 9}
    for cut in sorted(cuts | {draw.randrange(ends[-1]) for _ in range(30)}):
        if cut < opening:
            refusal(store, path, store.files[path][:cut])
            continue
        for mode in MODES:
            path.write_bytes(store.files[path][:cut])
            found = store.read(mode)
            store.restore()
            if not isinstance(found, CorruptionError):
                assert found == heads[max(end for end in behind if end <= cut)]
            else:
                assert store.root in Path(found.file).parents


@pytest.mark.req("S3", "S11")
def test_without_the_newest_segment_the_one_before_it_counts_or_is_refused(
    store: HealthyStore,
) -> None:
    """Objects of that older commit that were written again are refused, never handed out."""
    for mode in MODES:
        store.segment.unlink()
        found = store.read(mode)
        store.restore()
        older = sorted(store.commits)[-3]
        assert isinstance(found, CorruptionError) or found == older


@pytest.mark.req("S3", "S11")
def test_segments_of_another_place_or_store_are_refused(
    store: HealthyStore, tmp_path: Path
) -> None:
    other = HealthyStore.make(tmp_path / "other")
    paths = sorted(store.root.glob("wal/*.wal"))
    assert other.segment.name == paths[-1].name
    refusal(store, paths[-1], store.files[paths[-2]])
    refusal(store, paths[-1], other.files[other.segment])


@pytest.mark.req("S3", "S12")
def test_lost_sectors_of_the_last_frame_are_a_torn_tail(tmp_path: Path) -> None:
    """The other side: an append that a power cut interrupted must never be called damage."""
    root = tmp_path / "run"
    with Store.open(root, "a", settings=Settings(prewrite_bytes=65536)) as opened:
        for step, long in ((1, 0), (2, 9000)):
            with opened.begin(step=step) as txn:
                txn.stage("s", "p", tensors(step))
                txn.commit(metadata={"long": "x" * long})
    shutil.rmtree(root / "catalog")  # as after a kill: no mark says how far the log reached
    path = max(root.glob("wal/*.wal"))
    whole, last = path.read_bytes(), Segment(path).frames[-1]
    count, draw = last.blocks * BLOCK // SECTOR, random.Random(2)
    assert last.blocks == 3
    lost = [set(range(first, end)) for first in range(0, count, 8) for end in (first + 8, count)]
    lost += [set(range(count - 1)), set(range(15)), {0, *range(8, 16)}]
    lost += [set(draw.sample(range(count), draw.randint(1, count))) for _ in range(60)]
    for sectors in lost:
        content = bytearray(whole)
        for sector in sectors:
            begin = last.offset + sector * SECTOR
            content[begin : begin + SECTOR] = bytes(SECTOR)
        path.write_bytes(content)
        with Store.open(root) as opened:
            assert opened.head is not None and opened.head.step == 1, sectors
        assert (IndependentReader(root).commit() or {})["step"] == 1


# ---------------------------------------------------------------------- STORE


@pytest.mark.req("S11", "S28")
@pytest.mark.parametrize("kind", FLIPS)
def test_every_flipped_byte_of_the_store_file_is_refused(store: HealthyStore, kind: str) -> None:
    path = store.root / "STORE"
    for at in range(len(store.files[path])):
        refused_at(store, path, at, kind)


@pytest.mark.req("S11", "S28")
def test_a_store_file_that_was_cut_or_lengthened_is_refused(store: HealthyStore) -> None:
    path = store.root / "STORE"
    whole = store.files[path]
    for content in (*(whole[:end] for end in range(len(whole))), whole + b"\n", whole * 2):
        refusal(store, path, content)


# ---------------------------------------------------------------------- objects


def regions(content: bytes) -> list[int]:
    """An offset in each region of an object of `tensors`."""
    start = 8 + int.from_bytes(content[:8], "little")
    json_end = len(content[:start].rstrip(b" "))
    header = [0, 7, 8, json_end // 2, json_end - 1, json_end, start - 1]
    w, gap, b, tail = start + 50, start + 110, start + 140, start + 300
    return [*header, w, gap, b, tail, len(content) - 1]


def within(content: bytes, at: int) -> tuple[int, int]:
    """Where the damage may be named: the header counts as a whole, data up to the byte."""
    start = 8 + int.from_bytes(content[:8], "little")
    return (0, start - 1) if at < start else (start, at)


@pytest.mark.req("S11")
@pytest.mark.parametrize("kind", FLIPS)
def test_a_flipped_byte_in_each_region_of_an_object_is_refused(
    store: HealthyStore, kind: str
) -> None:
    paths = head_objects(store)
    assert len(paths) == 6
    for path in paths[list(FLIPS).index(kind) :: len(FLIPS)]:
        content = store.files[path]
        for at in regions(content):
            refused_at(store, path, at, kind, *within(content, at))


@pytest.mark.long
@pytest.mark.req("S11")
@pytest.mark.parametrize("kind", FLIPS)
def test_every_flipped_byte_of_an_object_is_refused(store: HealthyStore, kind: str) -> None:
    path = head_objects(store)[0]
    content = store.files[path]
    for at in range(len(content)):
        check = read_refused_at if at % 32 else refused_at
        check(store, path, at, kind, *within(content, at))
    store.restore()


@pytest.mark.req("S11")
def test_objects_cut_lengthened_removed_or_swapped_are_refused(store: HealthyStore) -> None:
    paths = head_objects(store)
    for path in paths:
        content = store.files[path]
        for end in (0, 7, 8, BLOCK - 1, BLOCK, len(content) - 1, len(content) - BLOCK):
            refusal(store, path, content[:end])
        for more in (b"\0", bytes(BLOCK), content):
            refusal(store, path, content + more)
        refusal(store, path, None)
        for other in paths:
            if other != path:
                refusal(store, path, store.files[other])


@pytest.mark.req("S11")
def test_an_older_version_of_an_object_is_refused(store: HealthyStore) -> None:
    needed = head_objects(store)
    older = [(path, old) for path in needed for old in store.older_slots.get(path, ())]
    assert older
    for path, content in older:
        refusal(store, path, content)


def test_the_healthy_store_reads_as_it_was_written(store: HealthyStore) -> None:
    """Without this, a helper that always refused would pass everything above."""
    assert [store.read(mode) for mode in MODES] == [store.head, store.head]
