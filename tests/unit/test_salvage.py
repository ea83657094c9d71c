"""Salvage gives back the newest whole step, says what is lost, and deletes nothing.

Every case ends in the same questions (`salvaged`): the store opens, everything that it names has
the right values, a deep check is clean, every file content that was there is still there, as it was
or in quarantine, and a second salvage finds nothing to do.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from shardstore import Ref
from shardstore.errors import CorruptionError, LockedError, NotAStoreError, StorageError
from shardstore.format.frames import BLOCK
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem, Operation
from shardstore.fsck import fsck
from shardstore.salvage import Decision, look, salvage
from shardstore.wal.reader import list_segments, read_bytes, read_log
from tests.support.damaged_world import settle
from tests.support.stores import (
    ROOT,
    SETTINGS,
    commit,
    content,
    expected,
    head_step,
    open_store,
    tree,
    values,
)
from tests.unit.fsck_support import WAL, built, change, newest, object_path

PARTS = (("a", "params"), ("a", "optim"), ("b", "params"))


@pytest.fixture
def fs() -> MemoryFileSystem:
    return made()


def made() -> MemoryFileSystem:
    """Steps 5 and 6 are kept; 2 and 5 are snapshots."""
    fs = built()
    with open_store(fs) as store:
        commit(store, 6)
    return fs


def contents(fs: MemoryFileSystem) -> Counter[bytes]:
    """What is in files that a repair must not lose: objects, segments, STORE."""
    kept = (f"{ROOT}/objects/", WAL, f"{ROOT}/STORE", f"{ROOT}/quarantine/")
    return Counter(
        content.rstrip(b"\0") for path, content in tree(fs).items() if path.startswith(kept)
    )


def salvaged(fs: MemoryFileSystem, step: int, snapshots: dict[str, int]) -> Decision:
    """Salvage; the head is at `step` then, and these snapshots are left, with their steps."""
    before, promised = contents(fs), look(fs, ROOT)
    assert contents(fs) == before
    decision = salvage(fs, ROOT)
    assert decision.needed and decision.to_json() == promised.to_json()
    lost = set(before) - set(contents(fs))
    assert not lost, [piece[:60] for piece in lost]
    check(fs, step, snapshots)
    assert not salvage(fs, ROOT).needed
    return decision


def check(fs: MemoryFileSystem, step: int, snapshots: dict[str, int]) -> None:
    """Everything is right, now and after more work."""
    assert damage(fs) == []
    with open_store(fs) as store:
        assert head_step(store) == step and values(store) == expected(step)
        assert {info.name: info.step for info in store.snapshots} == snapshots
        for name, at in snapshots.items():
            assert values(store, Ref.name(name)) == expected(at)
        commit(store, step + 100)
        commit(store, step + 101)
        store.rewind(next(iter(snapshots), "head"))
        store.undo()
    assert damage(fs) == []
    with open_store(fs, mode="r") as store:
        assert values(store) == expected(step + 101)


def damage(fs: MemoryFileSystem) -> list[str]:
    return [f.line() for f in fsck(fs, ROOT, deep=True).findings if f.is_damage]


def last_byte(fs: MemoryFileSystem, path: str) -> None:
    change(fs, path, fs.stat(path).size - 1)


def frames(fs: MemoryFileSystem) -> dict[str, int]:
    """Offsets of the newest segment's records, by kind; of commits by step."""
    segment = read_log(fs, ROOT).segment
    return {
        f"step {r.body['step']}" if r.body["type"] == "commit" else r.body["type"]: r.frame.offset
        for r in segment.records
    }


def quarantined(fs: MemoryFileSystem) -> list[str]:
    return sorted(p.rpartition("/")[2] for p in tree(fs) if p.startswith(f"{ROOT}/quarantine/"))


# ---------------------------------------------------------------------- objects


@pytest.mark.req("S12")
def test_a_sound_store_is_left_alone(fs: MemoryFileSystem) -> None:
    before = tree(fs)
    decision = salvage(fs, ROOT)
    assert not decision.needed and not decision.aside
    after = tree(fs)
    after.pop(f"{ROOT}/LOCK"), before.pop(f"{ROOT}/LOCK")
    assert after == before


@pytest.mark.req("S12", "S11")
@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_head_goes_back_to_the_newest_whole_step(
    fs: MemoryFileSystem, part: tuple[str, str]
) -> None:
    path = object_path(fs, part)
    last_byte(fs, path)
    broken = read_bytes(fs, path)
    decision = salvaged(fs, 5, {"early": 2, "late": 5})
    said = "\n".join(decision.lines())
    assert "step 6 (seq " in said and "goes back from step 6 to step 5" in said
    assert f"shard {part[0]!r} part {part[1]!r}" in said
    name = path.rpartition("/")[2]
    (kept,) = [p for p in tree(fs) if p.startswith(f"{ROOT}/quarantine") and p.endswith(name)]
    assert read_bytes(fs, kept) == broken
    reason = read_bytes(fs, kept.replace(name, "REASON")).decode()
    assert f"objects/{name}: damage: " in reason and "what was lost:" in reason


@pytest.mark.req("S12")
def test_a_damaged_snapshot_costs_itself_only(fs: MemoryFileSystem) -> None:
    last_byte(fs, object_path(fs, ("b", "params"), "early"))
    decision = salvaged(fs, 6, {"late": 5})
    assert not decision.is_moved and "the head stays at step 6" in "\n".join(decision.lines())
    assert len([n for n in quarantined(fs) if n.endswith(".raw")]) == 4


@pytest.mark.req("S12")
def test_every_object_in_turn_damaged_or_missing() -> None:
    for name in made().list_directory(f"{ROOT}/objects"):
        for spoil in (last_byte, lambda fs, path: change(fs, path, 9), MemoryFileSystem.unlink):
            fs = made()
            spoil(fs, f"{ROOT}/objects/{name}")
            if not damage(fs):
                continue
            decision = salvage(fs, ROOT)
            head = decision.state.head
            assert head is not None and head.step in (5, 6)
            check(fs, head.step, {n: s.step for n, s in decision.state.snapshots.items()})


@pytest.mark.req("S12", "S7")
def test_branches_go_back_along_their_own_line(fs: MemoryFileSystem) -> None:
    with open_store(fs) as store:
        store.branch("trial", "early")
        store.switch("trial")
        commit(store, 30)
    last_byte(fs, object_path(fs, ("a", "params")))
    decision = salvage(fs, ROOT)
    assert decision.state.current == "trial"
    assert damage(fs) == []
    with open_store(fs) as store:
        assert values(store) == expected(2)
        assert values(store, Ref.name("main")) == expected(6)
        commit(store, 31)


@pytest.mark.req("S12", "S20")
def test_an_archived_snapshot_stands_in_for_the_same_step(fs: MemoryFileSystem) -> None:
    with open_store(fs) as store:
        store.snapshot("six")
        store.archive("six")
    last_byte(fs, object_path(fs, ("a", "params")))
    decision = salvage(fs, ROOT)
    assert decision.state.head is not None and decision.state.head.step == 6
    check(fs, 6, {"early": 2, "late": 5, "six": 6})


@pytest.mark.req("S12")
def test_a_step_older_than_the_log_keeps_is_not_made_up(fs: MemoryFileSystem) -> None:
    """Nothing that the state names is whole, and free slots hold no whole set: refused."""
    for name in fs.list_directory(f"{ROOT}/objects"):
        last_byte(fs, f"{ROOT}/objects/{name}")
    before = tree(fs)
    with pytest.raises(CorruptionError, match="no whole step is left"):
        salvage(fs, ROOT)
    after = tree(fs)
    assert {k: v for k, v in after.items() if "LOCK" not in k} == {
        k: v for k, v in before.items() if "LOCK" not in k
    }


# ---------------------------------------------------------------------- the log


@pytest.fixture
def running() -> MemoryFileSystem:
    """As after a kill in the fourth opening: steps 6 to 9 in one segment, a snapshot between."""
    fs = built()
    with open_store(fs) as store:
        for step in (6, 7):
            commit(store, step)
        store.snapshot("seven")
        for step in (8, 9):
            commit(store, step)
    return fs


@pytest.mark.req("S12", "S4")
def test_the_newest_record_damaged_costs_one_step(running: MemoryFileSystem) -> None:
    change(running, newest(running), frames(running)["step 9"] + 200)
    decision = salvaged(running, 8, {"early": 2, "late": 5, "seven": 7})
    assert any("step 9" in line or "cannot be read" in line or "log is damaged" in line
               for line in decision.lost)  # fmt: skip
    assert f"{3:016x}.wal" in "".join(quarantined(running)) or len(quarantined(running)) > 1


@pytest.mark.req("S12", "S4")
@pytest.mark.parametrize("record", ["step 6", "step 7", "step 8"])
def test_a_lost_record_in_the_middle_costs_no_newer_step(
    running: MemoryFileSystem, record: str
) -> None:
    """Step 9 names all its objects: it is put together from its own record, and proven by it."""
    change(running, newest(running), frames(running)[record] + 200)
    decision = salvaged(running, 9, {"early": 2, "late": 5, "seven": 7})
    assert any("cannot be read" in line for line in decision.lost)


@pytest.mark.req("S12", "S4")
def test_a_step_that_kept_what_a_lost_record_put_is_no_mixture() -> None:
    """Over the manifest that is known, of step 8, its `put` does not add up to its digest."""
    fs = built()
    with open_store(fs) as store:
        commit(store, 8)
        commit(store, 9)
        with store.begin(10) as txn:
            txn.stage("b", "params", content(1))
            txn.keep_rest()
            txn.commit()
    change(fs, newest(fs), frames(fs)["step 9"] + 200)
    decision = salvaged(fs, 8, {"early": 2, "late": 5})
    assert any("step 10" in line and "cannot be put together" in line for line in decision.lost)


@pytest.mark.req("S12")
def test_a_lost_snapshot_record_costs_its_name(running: MemoryFileSystem) -> None:
    change(running, newest(running), frames(running)["snapshot"] + 200)
    salvaged(running, 9, {"early": 2, "late": 5})


@pytest.mark.req("S12", "S4")
@pytest.mark.parametrize("at", ["header", "copy", "open"])
def test_the_beginning_of_the_newest_segment_damaged(running: MemoryFileSystem, at: str) -> None:
    """The segment before says where the store stood; the records behind the damage go on."""
    places = {"header": 0, "copy": BLOCK, "open": frames(running)["open"]}
    change(running, newest(running), places[at] + 200)
    decision = salvage(running, ROOT)
    head = decision.state.head
    assert head is not None and head.step == 9
    check(running, 9, {"early": 2, "late": 5, "seven": 7})


@pytest.mark.req("S12")
def test_a_missing_newest_segment_goes_back_to_what_its_predecessor_knew() -> None:
    fs = made()
    fs.unlink(newest(fs))
    with open_store(fs, mode="r") as store:  # nobody can tell: there is no mark in memory
        assert head_step(store) == 5
    assert not look(fs, ROOT).needed


@pytest.mark.req("S12")
def test_two_newest_segments_damaged(running: MemoryFileSystem) -> None:
    indices = list_segments(running, ROOT)
    for index in indices[-2:]:
        for at in range(0, running.stat(f"{WAL}/{index:016x}.wal").size, BLOCK):
            change(running, f"{WAL}/{index:016x}.wal", at + 50)
    decision = salvage(running, ROOT)
    assert not decision.unproven and decision.state.head is not None
    check(
        running, decision.state.head.step, {n: s.step for n, s in decision.state.snapshots.items()}
    )
    assert list_segments(running, ROOT)[: len(indices) - 2] == indices[:-2]


@pytest.mark.req("S12")
def test_old_segments_are_left_to_fsck(running: MemoryFileSystem) -> None:
    change(running, f"{WAL}/{0:016x}.wal", BLOCK + 200)
    assert damage(running) and not salvage(running, ROOT).needed


# ---------------------------------------------------------------------- without a log


def without_log(fs: MemoryFileSystem) -> None:
    for name in fs.list_directory(WAL):
        for at in range(0, fs.stat(f"{WAL}/{name}").size, BLOCK):
            change(fs, f"{WAL}/{name}", at + 50)


def with_no_segments(fs: MemoryFileSystem) -> None:
    for name in fs.list_directory(WAL):
        fs.unlink(f"{WAL}/{name}")


@pytest.mark.req("S12")
@pytest.mark.parametrize("spoil", [without_log, with_no_segments])
def test_objects_alone_are_unproven(
    running: MemoryFileSystem, spoil: Callable[[MemoryFileSystem], None]
) -> None:
    """Every object of step 9 has its transaction id; snapshots say what they hold themselves."""
    spoil(running)
    with pytest.raises(CorruptionError):
        open_store(running)
    decision = salvaged(running, 9, {"early": 2, "late": 5, "seven": 7})
    assert decision.unproven and any("UNPROVEN" in line for line in decision.lines())
    for reason in (read_bytes(running, p) for p in tree(running) if p.endswith("REASON")):
        assert b"unproven" in reason


@pytest.mark.req("S12")
def test_a_set_that_kept_parts_is_not_called_whole(running: MemoryFileSystem) -> None:
    """Rule 13: step 10 keeps two parts of step 9, so the objects alone do not prove it."""
    with open_store(running) as store, store.begin(10) as txn:
        txn.stage("b", "params", content(1))
        txn.keep_rest()
        txn.commit()
    without_log(running)
    salvaged(running, 9, {"early": 2, "late": 5, "seven": 7})


@pytest.mark.req("S12")
def test_a_set_with_a_damaged_part_is_not_called_whole(running: MemoryFileSystem) -> None:
    path = object_path(running, ("a", "optim"))
    without_log(running)
    last_byte(running, path)
    salvaged(running, 8, {"early": 2, "late": 5, "seven": 7})


@pytest.mark.req("S12")
@pytest.mark.parametrize("gone", ["STORE", "STORE and log", "missing", "missing and log"])
def test_the_store_file_is_written_anew(running: MemoryFileSystem, gone: str) -> None:
    before = read_bytes(running, f"{ROOT}/STORE")
    if "missing" in gone:
        running.unlink(f"{ROOT}/STORE")
    else:
        change(running, f"{ROOT}/STORE", 40)
    if "log" in gone:
        without_log(running)
    with pytest.raises((CorruptionError, NotAStoreError)):
        open_store(running, mode="r+")
    decision = salvage(running, ROOT)
    assert read_bytes(running, f"{ROOT}/STORE") == before
    assert decision.unproven == ("log" in gone)
    assert ("STORE" in quarantined(running)) == ("missing" not in gone)
    check(running, 9, {"early": 2, "late": 5, "seven": 7})


@pytest.mark.req("S12")
def test_what_is_no_store_is_not_touched() -> None:
    fs = MemoryFileSystem()
    fs.make_directory(ROOT)
    with pytest.raises(NotAStoreError):
        salvage(fs, ROOT)
    assert fs.list_directory(ROOT) == []


@pytest.mark.req("S12", "S1")
def test_a_writer_is_not_disturbed(fs: MemoryFileSystem) -> None:
    with open_store(fs), pytest.raises(LockedError):
        salvage(fs, ROOT)


# ---------------------------------------------------------------------- cut off anywhere


def head_lost(fs: MemoryFileSystem) -> None:
    last_byte(fs, object_path(fs, ("a", "optim")))


def record_lost(fs: MemoryFileSystem) -> None:
    change(fs, newest(fs), frames(fs)["step 8"] + 200)


def opening_lost(fs: MemoryFileSystem) -> None:
    change(fs, newest(fs), frames(fs)["open"] + 200)


def store_lost(fs: MemoryFileSystem) -> None:
    fs.unlink(f"{ROOT}/STORE")


def store_damaged(fs: MemoryFileSystem) -> None:
    head_lost(fs)
    change(fs, f"{ROOT}/STORE", 40)


def store_replaced(fs: MemoryFileSystem) -> None:
    """By a directory that holds it."""
    fs.rename(f"{ROOT}/STORE", f"{ROOT}/held")
    fs.make_directory(f"{ROOT}/STORE")
    fs.rename(f"{ROOT}/held", f"{ROOT}/STORE/STORE")


SPOILS = {
    "head": (head_lost, 8),
    "record": (record_lost, 9),
    "opening": (opening_lost, 9),
    "log": (without_log, 9),
    "STORE missing": (store_lost, 9),
    "STORE and head": (store_damaged, 8),
    "STORE no file": (store_replaced, 9),
}


@pytest.mark.req("S12")
@pytest.mark.parametrize("kind", SPOILS)
def test_a_salvage_may_be_cut_off_at_any_operation(running: MemoryFileSystem, kind: str) -> None:
    """Killed, or without power, before each operation: the next one ends where the first would
    have, and nothing that was there is lost; nor if the store is simply opened instead."""
    spoil, step = SPOILS[kind]
    spoil(running)
    synced = settled(running)
    before = {piece for piece in contents(synced) if piece}
    points: list[MemoryFileSystem] = []
    whole = synced.kill()
    whole.before = lambda _operation: points.append(whole.kill())
    names = {n: s.step for n, s in salvage(whole, ROOT).state.snapshots.items()}
    whole.before = None
    points.append(whole.kill())
    assert len(points) > 15
    seen = set()
    cuts = 0 if spoil is store_replaced else 6  # a disk gives no directory two names, as these may
    for at, point in enumerate(points):
        for image in (point, *point.power_cuts(limit=cuts if at % 3 else 2 * cuts)):
            key = image.image_digest(unsynced=True)
            if key in seen:
                continue
            seen.add(key)
            go_on(image, before, step, names)


def go_on(image: MemoryFileSystem, before: set[bytes], step: int, names: dict[str, int]) -> None:
    opened = image.kill()
    rows = promised(image)
    try:
        with open_store(opened, mode="r+") as store:
            assert head_step(store) in (9, step), "it was left as it was found, or is salvaged"
    except (CorruptionError, NotAStoreError):
        pass
    except StorageError as error:
        assert error.errno == errno.EISDIR, "another thing in the place of STORE"
    else:  # opening finishes the moves before anything else
        assert before <= set(contents(opened))
        assert rows <= set(quarantined(opened))
    salvage(image, ROOT)
    assert before <= set(contents(image))
    check(image, step, names)


def promised(fs: MemoryFileSystem) -> set[str]:
    """Names of files that the newest record of the log sends into quarantine."""
    try:
        last = read_log(fs, ROOT).segment.records[-1].body
    except (CorruptionError, FileNotFoundError):
        return set()
    rows = last["salvage"]["quarantine"] if last.get("reason") == "salvage" else []
    return {file.rpartition("/")[2] for _, file, _ in rows}


def settled(fs: MemoryFileSystem) -> MemoryFileSystem:
    """The same files, all of them durable: damage is not what a sync would have prevented."""
    settle(fs)
    return fs


@pytest.mark.req("S12", "S18")
@pytest.mark.parametrize("kind", SPOILS)
def test_a_salvage_that_fails_is_done_again(running: MemoryFileSystem, kind: str) -> None:
    """Each call of the file system fails in turn: an error with its name, and nothing is lost."""
    spoil, step = SPOILS[kind]
    spoil(running)
    before = {piece for piece in contents(running) if piece}
    for op in ("pwrite", "datasync", "rename", "sync_directory", "open_replace", "open_create"):
        for nth in range(1, 40):
            fs = running.kill()
            faulty = FaultyFileSystem(fs)
            rule = faulty.fail(op, "*", nth=nth)
            try:
                names = salvage(faulty, ROOT).state.snapshots
            except StorageError as error:
                assert rule.hits and "do it again" in str(error)
                names = salvage(fs, ROOT).state.snapshots
            assert before <= set(contents(fs))
            if nth % 5 == 1:
                check(fs, step, {n: s.step for n, s in names.items()})
            if not rule.hits:
                break


@pytest.mark.req("S12", "S15")
def test_what_a_salvage_gives_back_survives_a_power_cut(fs: MemoryFileSystem) -> None:
    """Steps 7 to 9 were never synced: their process died, and the newest is damaged."""
    deferred = replace(SETTINGS, durability="deferred", sync_every=100)
    store = open_store(fs, settings=deferred)
    for step in (7, 8, 9):
        commit(store, step)
    dead = fs.kill()
    head_lost(dead)
    salvage(dead, ROOT)
    for image in dead.power_cuts(limit=60):
        check(image, 8, {"early": 2, "late": 5})


def stopped(fs: MemoryFileSystem, at: Callable[[str, str], bool]) -> MemoryFileSystem:
    """The disk before the last operation of a salvage for which `at` holds, given its name and
    path."""
    images: list[MemoryFileSystem] = []

    def before(operation: Operation) -> None:
        if at(operation.op, operation.path):
            images.append(fs.kill())

    fs.before = before
    salvage(fs, ROOT)
    fs.before = None
    return images[-1]


@pytest.mark.req("S12")
def test_what_was_set_aside_is_not_written_over_under_another_name(
    running: MemoryFileSystem,
) -> None:
    """Found by the crash explorer: a power cut can leave the new and the old name of a file that
    was just put into quarantine, and going on wrote the next file under the old one."""
    record_lost(running)
    change(running, f"{ROOT}/STORE", 40)
    fs = settled(running)
    damaged = read_bytes(fs, newest(fs)).rstrip(b"\0")
    point = stopped(fs, lambda op, path: op == "sync_directory" and "/quarantine/" in path)
    tried = 0
    for image in point.power_cuts(limit=200):
        names = [name for name in quarantined(image) if name != "REASON"]
        if "tmp" in names and len(names) > 1:
            tried += 1
            salvage(image, ROOT)
            aside = {content.rstrip(b"\0") for path, content in tree(image).items()
                     if "/quarantine/" in path}  # fmt: skip
            assert damaged in aside
    assert tried


@pytest.mark.req("S12")
@pytest.mark.parametrize("again", [salvage, lambda fs, _root: open_store(fs, "r+").close()])
def test_a_store_file_written_anew_is_durable_after_a_kill(
    running: MemoryFileSystem, again: Callable[[MemoryFileSystem, str], object]
) -> None:
    """Found by the crash explorer: the process died before it synced STORE; the next one found it
    right and left it so, until the power failed."""
    store_damaged(running)
    point = stopped(
        settled(running), lambda op, path: op in ("truncate", "datasync") and path.endswith("STORE")
    )
    again(point, ROOT)
    for image in point.power_cuts(limit=60):
        with open_store(image, "r") as store:
            assert head_step(store) == 8
