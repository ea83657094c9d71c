"""A snapshot whose manifest object is damaged keeps its name where the log has its commit whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardstore import Ref
from shardstore.errors import StorageError
from shardstore.format.digests import ZERO_DIGEST
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.salvage import look, salvage
from shardstore.salvage.evidence import read_evidence
from shardstore.salvage.verify import verify
from shardstore.wal.reader import read_log
from tests.support.stores import ROOT, commit, expected, open_store, values
from tests.unit.fsck_support import change, object_path
from tests.unit.test_salvage import (
    check,
    contents,
    damage,
    last_byte,
    made,
    quarantined,
    salvaged,
    settled,
    without_log,
)


def manifest_of(fs: MemoryFileSystem, name: str) -> str:
    return f"{ROOT}/{read_log(fs, ROOT).state.snapshots[name].reference.file}"


def in_data(fs: MemoryFileSystem, path: str) -> None:
    change(fs, path, 4096 + 20)


def in_header(fs: MemoryFileSystem, path: str) -> None:
    change(fs, path, 20)


SPOILS = (in_data, in_header, last_byte, MemoryFileSystem.unlink)


@pytest.mark.req("S12", "S7")
@pytest.mark.parametrize("spoil", SPOILS)
def test_the_name_stays_where_the_log_has_the_step_whole(
    spoil: Callable[[MemoryFileSystem, str], None],
) -> None:
    fs = made()
    path = manifest_of(fs, "late")
    before = read_log(fs, ROOT).state.snapshots["late"]
    spoil(fs, path)
    decision = salvage(fs.kill(), ROOT)
    (renewed,) = decision.renewed
    assert renewed.info.reference.epoch == decision.first_seq
    assert not decision.is_moved
    (said,) = decision.lost
    assert "gets a new manifest object, made from the log, which has the step whole" in said
    salvaged(fs, 6, {"early": 2, "late": 5})
    assert (path.rpartition("/")[2] in quarantined(fs)) == (spoil is not MemoryFileSystem.unlink)
    info = read_log(fs, ROOT).state.snapshots["late"]
    assert (info.seq, info.chain, info.step) == (before.seq, before.chain, 5)


@pytest.mark.req("S12", "S7")
def test_what_the_manifest_says_is_what_the_log_said() -> None:
    """The same commit, byte by byte, under the object's own reference; also without the log."""
    fs = made()
    state = read_log(fs, ROOT).state
    kept = state.commits[state.snapshots["late"].seq]
    in_data(fs, manifest_of(fs, "late"))
    salvage(fs, ROOT)
    info = read_log(fs, ROOT).state.snapshots["late"]
    evidence = read_evidence(fs, ROOT, None)
    assert evidence.state is not None
    held = verify(fs, ROOT, None, evidence.state).snapshots[info]
    assert held.to_json() == kept.to_json()
    without_log(fs)
    assert salvage(fs, ROOT).unproven
    with open_store(fs, mode="r") as store:
        assert values(store, Ref.name("late")) == expected(5)


@pytest.mark.req("S12", "S7")
def test_several_are_renewed_and_the_head_goes_back() -> None:
    fs = made()
    with open_store(fs) as store:
        store.snapshot("five", "late")
    for name in ("late", "five"):
        in_data(fs, manifest_of(fs, name))
    last_byte(fs, object_path(fs, ("a", "params")))
    decision = salvaged(fs, 5, {"early": 2, "late": 5, "five": 5})
    assert len({one.info.reference.slot for one in decision.renewed}) == 2


@pytest.mark.req("S12", "S7")
def test_a_step_that_the_log_has_no_more_loses_its_name() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        for step in (1, 2, 3, 4):
            commit(store, step)
            if step == 1:
                store.snapshot("one")
        store.snapshot("four")
    in_data(fs, manifest_of(fs, "one"))
    decision = salvaged(fs, 4, {"four": 4})
    assert not decision.renewed
    assert any("snapshot 'one' (step 1) is not whole" in line for line in decision.lost)
    # Nobody can say which objects it had, but the log says which slots: none is left to be reused.
    assert len(quarantined(fs)) == 5


@pytest.mark.req("S12", "S7")
def test_a_step_that_is_damaged_itself_loses_its_name() -> None:
    fs = made()
    last_byte(fs, object_path(fs, ("a", "optim"), "late"))
    in_data(fs, manifest_of(fs, "late"))
    assert not salvaged(fs, 6, {"early": 2}).renewed


@pytest.mark.req("S12", "S20")
@pytest.mark.parametrize("what", ["manifest", "object"])
def test_an_archived_snapshot_goes_back_to_what_the_log_has(what: str) -> None:
    fs = made()
    with open_store(fs) as store:
        store.snapshot("six")
        store.archive("six")
    path = manifest_of(fs, "six")
    if what == "object":
        path = next(
            f"{ROOT}/objects/{name}"
            for name in fs.list_directory(f"{ROOT}/objects")
            if name.endswith(".archive")
        )
    last_byte(fs, path)
    decision = salvaged(fs, 6, {"early": 2, "late": 5, "six": 6})
    assert not decision.renewed[0].info.archived
    assert sum(name.endswith(".archive") for name in quarantined(fs)) == 3
    assert path.rpartition("/")[2] in quarantined(fs)


@pytest.mark.req("S12", "S4")
def test_another_commit_of_the_same_number_is_not_taken() -> None:
    fs = made()
    in_data(fs, manifest_of(fs, "late"))
    state = read_log(fs, ROOT).state
    assert [info.name for info in verify(fs, ROOT, None, state).renewable] == ["late"]
    state.snapshots["late"] = replace(state.snapshots["late"], chain=ZERO_DIGEST)
    assert not verify(fs, ROOT, None, state).renewable


# ---------------------------------------------------------------------- cut off anywhere


@pytest.mark.req("S12")
def test_renewing_may_be_cut_off_at_any_operation() -> None:
    fs = made()
    with open_store(fs) as store:
        for name in ("six", "vi"):
            store.snapshot(name, "head")
    in_data(fs, manifest_of(fs, "six"))
    in_data(fs, manifest_of(fs, "late"))
    fs = settled(fs)
    before = {piece for piece in contents(fs) if piece}
    points: list[MemoryFileSystem] = []
    whole = fs.kill()
    whole.before = lambda _operation: points.append(whole.kill())
    names = {n: s.step for n, s in salvage(whole, ROOT).state.snapshots.items()}
    whole.before = None
    assert names == {"early": 2, "late": 5, "six": 6, "vi": 6} and len(points) > 20
    seen = set()
    for point in (*points, whole.kill()):
        for image in (point, *point.power_cuts(limit=8)):
            key = image.image_digest(unsynced=True)
            if key not in seen:
                seen.add(key)
                check_image(image, before, names)


def check_image(image: MemoryFileSystem, before: set[bytes], names: dict[str, int]) -> None:
    salvage(image, ROOT)
    assert before <= set(contents(image))
    check(image, 6, names)


@pytest.mark.req("S12", "S18")
def test_a_refused_write_of_a_manifest_is_done_again() -> None:
    for op in ("open_create", "pwrite", "datasync", "sync_directory"):
        fs = made()
        in_data(fs, manifest_of(fs, "late"))
        before = {piece for piece in contents(fs) if piece}
        faulty = FaultyFileSystem(fs)
        faulty.fail(op, "*/objects*")
        with pytest.raises(StorageError, match="do it again"):
            salvage(faulty, ROOT)
        assert damage(fs)  # as it was
        first = look(fs, ROOT)
        assert salvage(fs, ROOT).to_json() == first.to_json() and before <= set(contents(fs))
        check(fs, 6, {"early": 2, "late": 5})
