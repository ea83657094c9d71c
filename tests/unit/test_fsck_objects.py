"""fsck names what is wrong with an object: where, in which tensor, who needs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardstore.format.digests import digest
from shardstore.format.layout import header_length, parse_header
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.wal.reader import read_bytes, read_log
from tests.support.objects import reseal
from tests.support.stores import ROOT, commit, open_store
from tests.unit.fsck_support import built, change, check, damages, object_path


@pytest.fixture
def fs() -> MemoryFileSystem:
    return built()


def regions(fs: FileSystem, path: str) -> dict[str, tuple[int, str | None]]:
    """Name of each region of an object -> an offset in it, and the tensor it belongs to."""
    data = read_bytes(fs, path)
    header = parse_header(data[: header_length(data, file=path, file_size=len(data))], file=path)
    places: dict[str, tuple[int, str | None]] = {
        "length of the header": (2, None),
        "JSON of the header": (20, None),
        "its metadata": (data.index(b'"step"') + 20, None),
        "padding of the header": (header.layout.header_bytes - 1, None),
        "tail": (len(data) - 1, None),
    }
    for entry in header.layout.tensors:
        places[f"tensor {entry.spec.name}"] = (entry.end - 1, entry.spec.name)
    for index, (begin, _) in enumerate(header.layout.pads):
        places[f"gap {index}"] = (begin, None)
    return places


@pytest.mark.req("S11", "S13")
def test_each_region_of_an_object_is_watched(fs: MemoryFileSystem) -> None:
    path = object_path(fs, ("a", "params"))
    places = regions(fs, path)
    assert len(places) >= 8
    for region, (at, tensor) in places.items():
        change(fs, path, at)
        found = damages(fs)
        assert found, region
        for finding in found:
            assert finding.file == path and finding.offset is not None, region
            assert (finding.shard, finding.part, finding.step) == ("a", "params", 5), region
            assert finding.tensor == tensor and finding.snapshots == ("late",), region
            assert finding.advice
        in_header = at < places["padding of the header"][0] + 1
        assert bool(damages(fs, deep=False)) == in_header, region
        change(fs, path, at)
    assert check(fs).clean


def truncated(fs: FileSystem, path: str) -> None:
    file = fs.open(path, "write")
    file.truncate(file.size() - 100)
    file.close()


def longer(fs: FileSystem, path: str) -> None:
    change(fs, path, fs.stat(path).size, b"\0" * 8)


def emptied(fs: FileSystem, path: str) -> None:
    fs.open(path, "replace").close()


def missing(fs: FileSystem, path: str) -> None:
    fs.unlink(path)


@pytest.mark.req("S11", "S13")
@pytest.mark.parametrize("spoil", [truncated, longer, emptied, missing])
@pytest.mark.parametrize("deep", [False, True])
def test_files_of_another_length_are_found(
    fs: MemoryFileSystem, spoil: Callable[[FileSystem, str], None], deep: bool
) -> None:
    path = object_path(fs, ("b", "params"), "early")
    spoil(fs, path)
    found = damages(fs, deep=deep)
    assert found and {finding.file for finding in found} == {path}
    assert {(f.shard, f.part, f.snapshots) for f in found} == {("b", "params", ("early",))}


@pytest.mark.req("S11", "S13")
def test_swapped_objects_are_told_apart(fs: MemoryFileSystem) -> None:
    paths = [object_path(fs, ("a", "params")), object_path(fs, ("b", "params"))]
    contents = [read_bytes(fs, path) for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        change(fs, path, 0, content)
    found = [f for f in damages(fs, deep=False) if "names" in f.what]
    assert {finding.file for finding in found} == set(paths)
    assert {finding.found for finding in found} == {"'a' 'params'", "'b' 'params'"}


@pytest.mark.req("S11", "S13")
def test_an_older_version_put_back_is_told_by_its_write_id() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        path = object_path(fs, ("a", "params"))
        old = read_bytes(fs, path)
        for step in range(2, 9):
            commit(store, step)
            if object_path(fs, ("a", "params")) == path:
                break
    change(fs, path, 0, old)
    (finding,) = damages(fs, deep=False)
    assert finding.file == path and "write id" in finding.what and "step is 1" in finding.what
    assert finding.expected is not None and finding.found is not None


@pytest.mark.req("S11", "S13")
def test_an_object_that_is_whole_and_was_never_committed_is_found(fs: MemoryFileSystem) -> None:
    """Right labels, another tensor, every digest inside made right: only the log tells."""
    path = object_path(fs, ("a", "params"))
    data = read_bytes(fs, path)
    header = parse_header(data[: header_length(data, file=path, file_size=len(data))], file=path)
    entry, size = header.layout.tensors[0], header.layout.header_bytes
    other = bytes(entry.end - entry.begin)
    region = data[:size].replace(header.digests[0].encode(), digest(other).encode())
    change(fs, path, 0, reseal(region) + data[size : entry.begin] + other + data[entry.end :])
    (finding,) = damages(fs)
    assert finding.file == path and "digest of the header" in finding.what


@pytest.mark.req("S5", "S13")
def test_a_damaged_manifest_of_a_snapshot_is_found_by_a_quick_check(fs: MemoryFileSystem) -> None:
    slot = read_log(fs, ROOT).state.snapshots["early"].reference.slot
    path = f"{ROOT}/objects/{slot:06x}.raw"
    for region, (at, tensor) in regions(fs, path).items():
        change(fs, path, at)
        found = damages(fs, deep=False)
        assert [f.file for f in found] == [path] and found[0].snapshots == ("early",), region
        assert found[0].tensor == tensor
        change(fs, path, at)


@pytest.mark.req("S13", "S18")
def test_what_the_system_does_not_give_out_is_a_finding(fs: MemoryFileSystem) -> None:
    path = object_path(fs, ("a", "params"))
    faulty = FaultyFileSystem(fs)
    faulty.fail("pread", path, times=None)
    found = damages(faulty)
    assert [f.file for f in found] == [path] and "cannot be read" in found[0].what
    assert (found[0].shard, found[0].part) == ("a", "params")


class LiveFileSystem(FaultyFileSystem):
    """Runs something once, when a file is opened for the first time."""

    def __init__(self, inner: FileSystem, path: str, then: Callable[[], None]) -> None:
        super().__init__(inner)
        self._path, self._then = path, then

    def open(self, path: str, mode: str, *, direct: bool = False) -> object:  # type: ignore
        if path == self._path:
            self._path = ""
            self._then()
        return super().open(path, mode, direct=direct)  # type: ignore[arg-type]


@pytest.mark.req("S13", "S8")
@pytest.mark.parametrize("pins", [True, False], ids=["pinned", "no pins"])
def test_what_a_live_writer_frees_meanwhile_is_no_damage(pins: bool) -> None:
    """The head's object is freed between reading the log and reading the object: it is pinned and
    stays, or is written again and left out."""
    inner = MemoryFileSystem(pins=pins)
    with open_store(inner) as store:
        for step in (1, 2, 3):
            commit(store, step)
        path = object_path(inner, ("a", "params"))

        def go_on() -> None:
            for step in range(4, 10):
                commit(store, step)

        report = check(LiveFileSystem(inner, path, go_on))
    assert report.clean, [finding.line() for finding in report.findings]
    left_out = any("the store is live" in finding.what for finding in report.findings)
    assert left_out is not pins


@pytest.mark.req("S13", "S8")
def test_damage_that_a_live_writer_still_needs_is_found() -> None:
    inner = MemoryFileSystem()
    with open_store(inner) as store:
        for step in (1, 2):
            commit(store, step)
        store.snapshot("kept")
        path = object_path(inner, ("b", "params"))
        change(inner, path, inner.stat(path).size - 1)

        def go_on() -> None:
            for step in range(3, 8):
                commit(store, step)

        found = damages(LiveFileSystem(inner, path, go_on))
    assert path in {finding.file for finding in found}
