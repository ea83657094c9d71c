"""What goes into quarantine stays there: no number comes twice, no content takes another's place,
and where nothing can be set aside nothing is begun.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardstore import Store
from shardstore.errors import CorruptionError, StorageError
from shardstore.fs.memory import MemoryFileSystem
from shardstore.quarantine import set_aside
from shardstore.recovery import plan
from shardstore.salvage import look, salvage
from shardstore.salvage.objects_alone import labelled_objects
from shardstore.status import read_status
from shardstore.wal.reader import read_bytes, read_log
from tests.support.stores import ROOT, SETTINGS, commit, open_store, tree
from tests.unit.fsck_support import change, object_path
from tests.unit.test_salvage import (
    contents,
    damage,
    last_byte,
    made,
    quarantined,
    settled,
    stopped,
    without_log,
)

QUARANTINE = f"{ROOT}/quarantine"
UUID = "0" * 32


def put(fs: MemoryFileSystem, path: str, content: bytes) -> None:
    file = fs.open(path, "create")
    file.pwrite(0, content)
    file.close()


# ---------------------------------------------------------------------- numbers


@pytest.mark.req("S12")
def test_no_salvage_takes_the_number_of_another() -> None:
    """The log is lost each time, and the headers of all objects that were written since: their
    slots, moved away, are used again by the next commits."""
    fs, known = made(), 3
    for step in (20, 30, 40):
        without_log(fs)
        for one in list(labelled_objects(fs, ROOT)):
            if one.reference.epoch >= known:
                change(fs, f"{ROOT}/{one.reference.file}", 20)
        before = {piece for piece in contents(fs) if piece}
        numbers = numbers_of(fs)
        assert salvage(fs, ROOT).unproven
        assert numbers == numbers_of(fs)[:-1]
        assert before <= set(contents(fs)) and damage(fs) == []
        known = int(numbers_of(fs)[-1], 16)
        with Store.open(ROOT, "r+", fs=fs, settings=SETTINGS) as store:
            commit(store, step)


def numbers_of(fs: MemoryFileSystem) -> list[str]:
    return fs.list_directory(QUARANTINE) if "quarantine" in fs.list_directory(ROOT) else []


@pytest.mark.req("S12")
def test_a_number_in_quarantine_counts_as_seen() -> None:
    fs = made()
    last_byte(fs, object_path(fs, ("a", "params")))
    expected = look(fs, ROOT).first_seq
    fs.make_directory(QUARANTINE)
    for name in (f"{expected + 500:016x}", "notes", f"{expected + 9000:x}"):
        fs.make_directory(f"{QUARANTINE}/{name}")
    assert look(fs, ROOT).first_seq > expected + 500
    assert look(fs, ROOT).first_seq < expected + 9000


@pytest.mark.req("S12")
def test_write_ids_of_objects_count_where_the_log_is_sound_too() -> None:
    """The newest segment is gone, and what it knew: only its objects still have its epoch."""
    fs = made()
    with open_store(fs) as store:
        commit(store, 7)
        epoch = read_log(fs, ROOT).opening["epoch"]
    fs.unlink(f"{ROOT}/wal/{max(fs.list_directory(f'{ROOT}/wal'))}")
    assert look(fs, ROOT).first_seq > epoch


# ---------------------------------------------------------------------- names


def opening(*rows: tuple[str, str]) -> dict[str, object]:
    listed = [[how, file, "why"] for how, file in rows]
    return {"epoch": 9, "salvage": {"quarantine": listed, "lost": [], "unproven": False}}


@pytest.fixture
def place() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    for path in (ROOT, f"{ROOT}/objects", f"{ROOT}/wal", QUARANTINE, f"{QUARANTINE}/{9:016x}"):
        fs.make_directory(path)
    return fs


def aside(fs: MemoryFileSystem) -> dict[str, bytes]:
    return {path.rpartition("/")[2]: data for path, data in tree(fs, QUARANTINE).items()}


@pytest.mark.req("S12")
@pytest.mark.parametrize("how", ["move", "copy"])
def test_other_content_keeps_its_name(place: MemoryFileSystem, how: str) -> None:
    """Doing it again puts nothing there a second time."""
    directory, source = f"{QUARANTINE}/{9:016x}", f"{ROOT}/objects/000001.raw"
    put(place, f"{directory}/000001.raw", b"older")
    put(place, f"{directory}/000001.raw.1", b"old")
    put(place, f"{directory}/REASON", b"another")
    put(place, source, b"new")
    for _ in range(2):
        set_aside(place, ROOT, opening((how, "objects/000001.raw")), UUID)
        found = aside(place)
        assert found.pop("REASON.1").startswith(b"set aside by")
        assert found == {
            "REASON": b"another",
            "000001.raw": b"older",
            "000001.raw.1": b"old",
            "000001.raw.2": b"new",
        }
    assert place.list_directory(f"{ROOT}/objects") == (["000001.raw"] if how == "copy" else [])


@pytest.mark.req("S12")
@pytest.mark.parametrize("how", ["move", "copy"])
def test_equal_bytes_were_put_there_before(place: MemoryFileSystem, how: str) -> None:
    data = bytes(range(256)) * 5000
    put(place, f"{ROOT}/objects/000001.raw", data)
    fs = settled(place)
    put(fs, f"{QUARANTINE}/{9:016x}/000001.raw", data)
    set_aside(fs, ROOT, opening((how, "objects/000001.raw")), UUID)
    assert sorted(aside(fs)) == ["000001.raw", "REASON"]
    for image in fs.power_cuts(limit=20):
        assert data in tree(image).values()


@pytest.mark.req("S12")
@pytest.mark.parametrize("at", [0, 1 << 20, (1 << 20) + 77])
def test_one_byte_makes_it_other_content(place: MemoryFileSystem, at: int) -> None:
    data = bytearray((1 << 20) + 78)
    put(place, f"{QUARANTINE}/{9:016x}/000001.raw", data)
    data[at] = 1
    put(place, f"{ROOT}/objects/000001.raw", bytes(data))
    set_aside(place, ROOT, opening(("move", "objects/000001.raw")), UUID)
    assert aside(place)["000001.raw.1"] == data and len(aside(place)) == 3


# ---------------------------------------------------------------------- where nothing can be put


@pytest.mark.req("S12", "S18")
def test_a_file_in_the_place_of_the_quarantine_is_refused_before_anything_is_written() -> None:
    fs = made()
    put(fs, QUARANTINE, b"mine")
    assert not salvage(fs, ROOT).needed  # nothing is to be set aside
    last_byte(fs, object_path(fs, ("a", "params")))
    before = tree(fs)
    for attempt in (look, salvage):
        with pytest.raises(StorageError, match="quarantine is not a directory"):
            attempt(fs, ROOT)
        assert {**tree(fs), f"{ROOT}/LOCK": b""} == {**before, f"{ROOT}/LOCK": b""}
    fs.unlink(QUARANTINE)
    assert salvage(fs, ROOT).needed and damage(fs) == []


@pytest.mark.req("S12", "S18")
@pytest.mark.parametrize(
    "again", [salvage, lambda fs, root: Store.open(root, "r+", fs=fs, settings=SETTINGS)]
)
def test_a_file_there_once_the_record_is_durable_is_named(
    again: Callable[[MemoryFileSystem, str], object],
) -> None:
    fs = cut_off()
    put(fs, QUARANTINE, b"mine")
    with pytest.raises(StorageError, match="quarantine is not a directory"):
        again(fs, ROOT)
    fs.unlink(QUARANTINE)
    again(fs, ROOT)
    assert not plan(fs, ROOT)[0].aside and "REASON" in quarantined(fs)


# ---------------------------------------------------------------------- what is left to be done


def cut_off() -> MemoryFileSystem:
    """Killed when its record was durable, before anything was moved."""
    fs = made()
    last_byte(fs, object_path(fs, ("a", "params")))
    return stopped(settled(fs), lambda op, path: op == "make_directory" and path == QUARANTINE)


@pytest.mark.req("S12", "S11")
def test_what_is_still_to_be_set_aside_is_told() -> None:
    fs = cut_off()
    left = sorted(f"objects/{name}" for name in quarantined(finished(fs)) if name.endswith(".raw"))
    found, _ = plan(fs, ROOT)
    assert sorted(found.aside) == left and found.needed and not found.clean
    assert any("into quarantine go still objects/" in line for line in found.lines())
    status = read_status(fs, ROOT)
    assert status.healthy and status.unfinished and "--dry-run" in status.next_command()[0]
    decision = look(fs, ROOT)
    assert sorted(decision.left) == left and not decision.needed
    assert "an earlier salvage was cut off; set aside first: objects/" in decision.lines()[0]
    assert sorted(salvage(fs, ROOT).left) == left
    assert not look(fs, ROOT).left and not plan(fs, ROOT)[0].needed


def finished(fs: MemoryFileSystem) -> MemoryFileSystem:
    other = fs.kill()
    salvage(other, ROOT)
    return other


@pytest.mark.req("S12")
def test_a_store_file_that_was_written_anew_is_not_set_aside() -> None:
    """Only what was damaged is; another try finds the copy and the new STORE."""
    fs = made()
    change(fs, f"{ROOT}/STORE", 40)
    with pytest.raises(CorruptionError):
        open_store(fs)
    salvage(fs, ROOT)
    assert not plan(fs, ROOT)[0].aside
    salvage(fs, ROOT)
    assert quarantined(fs) == ["REASON", "STORE"]
    with Store.open(ROOT, "r", fs=fs, settings=SETTINGS):
        assert read_bytes(fs, f"{ROOT}/STORE") not in aside(fs).values()
