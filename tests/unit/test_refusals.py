"""What the system refuses proves nothing; what the disk lost, or another thing's place, is damage.

Method: each call that only looks fails in turn, with errors of both kinds, and salvage, fsck and
status must either stop with the store's error or come to what they say without any failure. Then
things that are no files stand in the places of files, on both real file systems.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shardstore import Ref, Store
from shardstore.errors import StorageError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.portable import PortableFileSystem
from shardstore.fs.posix import PosixFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import Finding, fsck
from shardstore.quarantine import set_aside
from shardstore.salvage import look, salvage
from shardstore.status import read_status
from shardstore.wal.reader import list_segments
from tests.support.stores import ROOT, commit, expected, head_step, open_store, tree, values
from tests.unit.fsck_support import built, change, newest, object_path

REFUSALS = (errno.EMFILE, errno.EACCES, errno.ESTALE)
LOOKS = ("open_read", "pread", "size", "stat", "list_directory")


def made() -> MemoryFileSystem:
    """Steps 5 and 6 are kept; 2 and 5 are snapshots."""
    fs = built()
    with open_store(fs) as store:
        commit(store, 6)
    return fs


def damaged_head(fs: MemoryFileSystem) -> None:
    path = object_path(fs, ("a", "optim"))
    change(fs, path, fs.stat(path).size - 1)


def damaged_log(fs: MemoryFileSystem) -> None:
    change(fs, newest(fs), 5000)


def without_log(fs: MemoryFileSystem) -> None:
    for name in fs.list_directory(f"{ROOT}/wal"):
        fs.unlink(f"{ROOT}/wal/{name}")


def healthy(_fs: MemoryFileSystem) -> None:
    """Nothing happened."""


SPOILS = (healthy, damaged_head, damaged_log, without_log)


def kept(fs: FileSystem) -> dict[str, bytes]:
    return {path: data for path, data in tree(fs).items() if not path.endswith("/LOCK")}


def each_refusal(fs: MemoryFileSystem, call: Callable[[FileSystem], object]) -> None:
    """`call` gives the same result or the store's error, whatever is refused."""
    counting = FaultyFileSystem(fs)
    right, hits = call(counting), 0
    for op in LOOKS:
        for nth in range(1, counting.counts[op] + 1):
            faulty = FaultyFileSystem(fs)
            rule = faulty.fail(op, nth=nth, error=REFUSALS[nth % len(REFUSALS)])
            try:
                assert call(faulty) == right, (op, nth)
            except (StorageError, OSError) as error:
                assert error.errno == rule.error
                hits += 1
    assert hits


@pytest.mark.req("S12", "S18")
@pytest.mark.parametrize("spoil", SPOILS)
def test_a_salvage_takes_no_refusal_for_damage(spoil: Callable[[MemoryFileSystem], None]) -> None:
    fs = made()
    spoil(fs)
    before = kept(fs)
    clock = fs.now()
    fs.now = lambda: clock  # type: ignore[method-assign]
    each_refusal(fs, lambda faulty: look(faulty, ROOT).to_json())
    assert kept(fs) == before


@pytest.mark.req("S12", "S18")
def test_a_salvage_that_is_refused_changes_nothing() -> None:
    fs = made()
    before = kept(fs)
    for error in REFUSALS:
        faulty = FaultyFileSystem(fs)
        faulty.fail("open_read", object_path(fs, ("a", "params")), error=error, times=None)
        with pytest.raises(StorageError, match=os.strerror(error)) as refused:
            salvage(faulty, ROOT)
        assert refused.value.errno == error and kept(fs) == before


@pytest.mark.req("S13", "S18")
@pytest.mark.parametrize("spoil", SPOILS)
def test_a_check_takes_no_refusal_for_damage(spoil: Callable[[MemoryFileSystem], None]) -> None:
    fs = made()
    spoil(fs)
    each_refusal(fs, lambda faulty: fsck(faulty, ROOT, deep=True).findings)
    each_refusal(fs, lambda faulty: read_status(faulty, ROOT).findings)


# ---------------------------------------------------------------------- the disk loses a file


@pytest.mark.req("S12", "S18")
def test_a_store_file_that_the_disk_keeps_is_set_aside() -> None:
    fs = made()
    path = f"{ROOT}/STORE"
    old = tree(fs)[path]
    faulty = FaultyFileSystem(fs)
    faulty.fail("pread", path, times=None)
    (finding,) = [f for f in fsck(faulty, ROOT).findings if f.is_damage]
    assert finding.file == path and finding.what == "cannot be read: Input/output error"
    assert [f.file for f in read_status(faulty, ROOT).findings] == [path]
    decision = salvage(faulty, ROOT)
    assert ["copy", "STORE"] in [row.to_json()[:2] for row in decision.aside]
    (aside,) = [path for path in tree(fs) if path.startswith(f"{ROOT}/quarantine/")
                and path.endswith("/STORE")]  # fmt: skip
    assert tree(fs)[aside] == old
    assert_whole(fs, 6)


@pytest.mark.req("S12", "S18")
def test_a_segment_that_the_disk_keeps_is_passed_over() -> None:
    fs = made()
    path = newest(fs)
    faulty = FaultyFileSystem(fs)
    faulty.fail("pread", path, times=None)
    assert [f.file for f in fsck(faulty, ROOT).findings if f.is_damage] == [path]
    decision = salvage(faulty, ROOT)
    assert "cannot be read" in decision.lost[0]
    assert ["move", path.removeprefix(f"{ROOT}/")] in [row.to_json()[:2] for row in decision.aside]
    faulty.clear()
    assert_whole(fs, 5)


@pytest.mark.req("S12", "S18")
def test_a_copy_that_cannot_be_made_is_said() -> None:
    fs = made()
    file = newest(fs).removeprefix(f"{ROOT}/")
    opening = {"epoch": 9, "salvage": {"quarantine": [["copy", file, "damaged"]],
                                       "lost": [], "unproven": False}}  # fmt: skip
    faulty = FaultyFileSystem(fs)
    faulty.fail("pread", newest(fs), error=errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        set_aside(faulty, ROOT, opening, "")
    faulty.clear()
    faulty.fail("pread", newest(fs))
    set_aside(faulty, ROOT, opening, "")
    said = tree(fs)[f"{ROOT}/quarantine/{9:016x}/{file.rpartition('/')[2]}.not-copied"]
    assert said.decode() == f"{file} could not be copied: Input/output error\n"


def assert_whole(fs: FileSystem, step: int) -> None:
    assert fsck(fs, ROOT, deep=True).clean and not salvage(fs, ROOT).needed
    with open_store(fs) as store:
        assert head_step(store) == step and values(store) == expected(step)


# ---------------------------------------------------------------------- another thing in its place


def pipe(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


KINDS: dict[str, Callable[[Path], None]] = {"pipe": pipe, "directory": Path.mkdir, "loop": loop}


@pytest.fixture(params=[PosixFileSystem, PortableFileSystem])
def real(request: pytest.FixtureRequest) -> FileSystem:
    system: FileSystem = request.param()
    return system


def written(fs: FileSystem, root: Path) -> None:
    for steps in ((1, 2), (3, 4)):
        with Store.open(str(root), "a", fs=fs) as store:
            for step in steps:
                commit(store, step)


def damage_of(fs: FileSystem, root: Path) -> list[Finding]:
    found = [finding for finding in fsck(fs, str(root)).findings if finding.is_damage]
    status = read_status(fs, str(root))
    pins = f"{root}/PINS"  # what keeps readers from pinning is no damage to status, but unknown
    assert {f.file for f in status.findings} == {f.file for f in found} - {pins}
    assert status.pinned is None or pins not in {f.file for f in found}
    return found


@pytest.mark.timeout(60)
@pytest.mark.req("S12", "S13", "S18")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("what", "step"), [("STORE", 4), ("segment", 2), ("object", 3)])
def test_what_is_no_file_is_found_and_set_aside(
    real: FileSystem, tmp_path: Path, kind: str, what: str, step: int
) -> None:
    root = tmp_path / "run"
    written(real, root)
    path = root / "STORE"
    if what == "segment":
        path = root / "wal" / f"{list_segments(real, str(root))[-1]:016x}.wal"
    elif what == "object":
        with Store.open(str(root), "r", fs=real) as store:
            path = root / store._find(Ref.head).manifest["a", "params"].file
    path.unlink()
    KINDS[kind](path)
    assert [f.file for f in damage_of(real, root)] == [str(path)]
    decision = salvage(real, str(root))
    assert decision.needed and not salvage(real, str(root)).needed
    aside = [name for _, below, files in os.walk(root / "quarantine") for name in below + files]
    assert path.name in aside
    with Store.open(str(root), "r+", fs=real) as store:
        assert head_step(store) == step and values(store) == expected(step)
        commit(store, 9)
    assert fsck(real, str(root), deep=True).clean


@pytest.mark.timeout(60)
@pytest.mark.req("S13", "S18", "S31")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["PINS", "LOCK", "catalog", "quarantine", "objects/0000ff.raw"])
def test_an_odd_entry_keeps_nothing_else_from_being_checked(
    real: FileSystem, tmp_path: Path, kind: str, name: str
) -> None:
    root = tmp_path / "run"
    written(real, root)
    path = root / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    KINDS[kind](path)
    is_right = kind == "directory" and name in ("catalog", "quarantine", "objects/0000ff.raw")
    is_right = is_right or (kind, name) == ("pipe", "objects/0000ff.raw")
    assert [f.file for f in damage_of(real, root)] == ([] if is_right else [str(path)])
    assert fsck(real, str(root)).objects == 6
    status = read_status(real, str(root))
    assert status.acknowledged is not None and status.acknowledged.step == 4


@pytest.mark.timeout(60)
@pytest.mark.req("S18")
def test_a_writer_clears_what_is_no_file_from_a_free_slot(real: FileSystem, tmp_path: Path) -> None:
    root = tmp_path / "run"
    written(real, root)
    pipe(root / "objects/0000fe.raw")
    loop(root / "objects/0000ff.raw")
    with Store.open(str(root), "r+", fs=real) as store:
        for step in range(5, 9):
            commit(store, step)
    assert fsck(real, str(root), deep=True).clean
    assert not {"0000fe.raw", "0000ff.raw"} & set(os.listdir(root / "objects"))
