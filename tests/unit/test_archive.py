"""Archived snapshots: what they are packed against, what they need, and what can go wrong.

Method: a store of a few parts whose weights change as in training, so that packing and differences
pay; every promise is asked again after reopening and from fsck.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardstore import Ref, Store
from shardstore.codecs import packing
from shardstore.context import Settings
from shardstore.errors import (
    CorruptionError,
    PoisonedError,
    ReadOnlyError,
    RefNotFoundError,
    StepMovedOnError,
    StorageError,
    UsageError,
)
from shardstore.format.manifest import ObjectRef
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.posix import PosixFileSystem
from shardstore.wal.reader import read_bytes
from tests.support.stores import PARTS, ROOT, object_files, open_store, tree
from tests.unit.fsck_support import change, check, damages

COUNT = 20_000


def weights(step: int, index: int) -> dict[str, Any]:
    """Parameters that move a little with every step."""
    begin = np.random.default_rng(index).normal(0, 0.02, COUNT)
    drift = np.random.default_rng([step, index]).normal(0, 1e-6, COUNT)
    return {"w": (begin + drift).astype("f4"), "n": np.array([step, index])}


def commit(store: Store, step: int, **keep: bool) -> None:
    with store.begin(step) as txn:
        for index, (shard, part) in enumerate(PARTS):
            if keep.get(shard + part):
                txn.keep(shard, part)
            else:
                txn.stage(shard, part, weights(step, index))
        txn.commit(metadata={"step": step}, blobs={"b": bytes([step])})


def check_is(store: Store, ref: Any, step: int) -> None:
    for index, key in enumerate(PARTS):
        with store.load(*key, ref) as loaded:
            for name, array in loaded.numpy().items():
                assert array.tobytes() == weights(step, index)[name].tobytes()
    assert store.commit_of(ref).metadata == {"step": step}


def built(fs: Any = None, steps: int = 8) -> MemoryFileSystem:
    """Steps 1 to `steps`; the even ones are snapshots s2, s4, ..."""
    fs = fs or MemoryFileSystem()
    with open_store(fs) as store:
        for step in range(1, steps + 1):
            commit(store, step)
            if step % 2 == 0:
                store.snapshot(f"s{step}")
    return fs


def formats(store: Store, ref: Any) -> set[str]:
    return {row.format for row in store.objects(ref)}


def path_of(store: Store, ref: Any, part: tuple[str, str] = PARTS[0]) -> str:
    return f"{ROOT}/{store._find(ref).manifest[part].file}"


@pytest.mark.req("S20")
def test_an_archived_snapshot_is_what_it_was_and_takes_less_room() -> None:
    fs = built()
    with open_store(fs) as store:
        before = store.commit_of("s2"), store.tensors("s2"), store.state_digest("s2")
        done = store.archive("s2")
        assert (done.objects, done.deltas, done.shared, done.against) == (3, 0, 0, None)
        assert done.ratio > 1.1 and done.gigabytes_per_second > 0
        assert done.bytes_after == sum(row.bytes for row in store.objects("s2"))
        assert done.bytes_freed > done.bytes_before
        assert [s.archived for s in store.snapshots] == [True, False, False, False]
    for mode in ("r", "r+"):
        with open_store(fs, mode) as store:
            assert (store.commit_of("s2"), store.tensors("s2"), store.state_digest("s2")) == before
            assert formats(store, "s2") == {"archive"} and formats(store, "s4") == {"raw"}
            check_is(store, "s2", 2)
            with store.pin("s2") as view:
                memory = bytearray(view.size_of("a", "params"))
                with view.load("a", "params", into=memory) as loaded:
                    assert np.shares_memory(np.frombuffer(memory, "u1"), loaded.numpy()["w"])
                assert view.state_digest() == before[2]
    assert check(fs).clean and check(fs, deep=False).clean


@pytest.mark.req("S20")
def test_differences_pay_and_what_was_packed_is_smaller_for_them() -> None:
    fs = built()
    with open_store(fs) as store:
        alone = store.archive("s2")
        against = store.archive("s4")
        named = store.archive("s6", against="s8")
        assert (against.against, against.deltas) == ("s2", 3)
        assert (named.against, named.deltas) == ("s8", 3)
        assert against.bytes_after < 0.8 * alone.bytes_after
        assert store.archive("s8", alone=True).deltas == 0
    with open_store(fs) as store:
        for step in (2, 4, 6, 8):
            check_is(store, f"s{step}", step)
            assert formats(store, f"s{step}") == {"archive"}
    assert check(fs).clean


@pytest.mark.req("S20")
def test_the_base_of_a_difference_has_none_itself() -> None:
    fs = built()
    with open_store(fs) as store:
        store.archive("s2")
        store.archive("s4", against="s2")
        store.archive("s6", against="s4")
        for part in PARTS:
            base = store._find("s2").manifest[part]
            assert store._find("s4").manifest[part].base == base
            assert store._find("s6").manifest[part].base == base
        check_is(store, "s6", 6)


@pytest.mark.req("S20", "S17")
@pytest.mark.parametrize("raw_base", [False, True])
def test_a_base_stays_as_long_as_a_difference_needs_it(raw_base: bool) -> None:
    fs = built()
    with open_store(fs) as store:
        if not raw_base:
            store.archive("s2")
        assert store.archive("s4", against="s2").deltas == 3
        store.delete("s2")
        for name in ("x", "y", "z"):
            store.snapshot(name)
            store.delete(name)
        store.gc(everything=True)
        for step in range(9, 20):
            commit(store, step)
        check_is(store, "s4", 4)
        store.clear_cache()
    with open_store(fs) as store:
        check_is(store, "s4", 4)
        assert check(fs).clean
        store.delete("s4")
        for name in ("x", "y", "z"):
            store.snapshot(name)
            store.delete(name)
        for name in ("s6", "s8"):
            store.delete(name)
        for name in ("x", "y", "z"):
            store.snapshot(name)
            store.delete(name)
        store.gc(everything=True)
    assert not any(name.endswith("archive") for name in object_files(fs))
    assert len(object_files(fs)) <= 2 * len(PARTS) + 3


@pytest.mark.req("S20")
def test_what_the_head_shares_with_the_snapshot_stays_raw() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.snapshot("s1")
        commit(store, 2, aparams=True, aoptim=True)
        kept = {part: store._find(Ref.head).manifest[part] for part in PARTS[:2]}
        store.archive("s1")
        manifest = store._find(Ref.head).manifest
        assert {part: manifest[part] for part in PARTS[:2]} == kept
        assert formats(store, Ref.head) == {"raw"}
        check_is(store, "s1", 1)
        with store.load("a", "params") as loaded:
            assert loaded.numpy()["w"].tobytes() == weights(1, 0)["w"].tobytes()
    assert check(fs).clean


@pytest.mark.req("S20")
def test_training_goes_on_from_an_archived_snapshot() -> None:
    fs = built()
    with open_store(fs) as store:
        store.archive("s2")
        store.archive("s4")
        digest = store.state_digest("s4")
        store.rewind("s4")
        assert store.state_digest() == digest and formats(store, Ref.head) == {"archive"}
    with open_store(fs) as store:  # the log has the commit's record with other objects
        check_is(store, Ref.head, 4)
        with store.begin(5) as txn:
            checkout = txn.checkout("a", "params")
            checkout.numpy()["w"][0] = 1.0
            txn.stage("a", "params", checkout, donate=True)
            txn.keep_rest()
            txn.commit({"step": 5})
        rows = {(r.shard, r.part): r.format for r in store.objects()}
        assert rows[PARTS[0]] == "raw" and rows[PARTS[1]] == "archive"
        store.snapshot("mixed")
        store.delete("s2")
        store.delete("s4")
        for name in ("x", "y", "z"):
            store.snapshot(name)
            store.delete(name)
        store.gc(everything=True)
    with open_store(fs) as store:
        with store.load("a", "params") as loaded:
            assert loaded.numpy()["w"][0] == 1.0
        for index, key in list(enumerate(PARTS))[1:]:
            with store.load(*key, "mixed") as loaded:
                assert loaded.numpy()["w"].tobytes() == weights(4, index)["w"].tobytes()
        done = store.archive("mixed")
        assert (done.objects, done.shared) == (3, 2)  # packed already, and named again
    assert check(fs).clean


@pytest.mark.req("S20")
def test_branches_names_and_undo() -> None:
    fs = built()
    with open_store(fs) as store:
        store.archive("s2")
        store.archive("s4")
        store.branch("b", "s4")
        store.snapshot("again", "s4")
        store.delete("s4")
        assert [s.archived for s in store.snapshots if s.name == "again"] == [True]
        store.undo()
        for ref in ("s4", "b", "again"):
            check_is(store, ref, 4)
    with open_store(fs) as store:
        store.switch("b")
        commit(store, 5)
        assert formats(store, Ref.head) == {"raw"}
        for ref in ("s4", "again"):
            check_is(store, ref, 4)
    assert check(fs).clean


@pytest.mark.req("S20")
def test_a_commit_that_the_log_keeps_stands_there_as_it_was() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.snapshot("s1")
        commit(store, 2)
        store.archive("s1")
        assert formats(store, Ref.step(1)) == {"raw"} and formats(store, "s1") == {"archive"}
        store.rewind("s1")
        assert formats(store, Ref.head) == {"raw"}
        store.delete("s1")
        store.undo()
        check_is(store, "s1", 1)
    with open_store(fs) as store:
        check_is(store, Ref.head, 1)
    assert check(fs).clean


@pytest.mark.req("S20")
def test_what_is_packed_already_is_named_again() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.snapshot("s1")
        commit(store, 2, bparams=True)
        store.snapshot("s2")
        store.archive("s1")
        done = store.archive("s2")
        assert (done.shared, done.deltas) == (1, 2)
        part = ("b", "params")
        assert store._find("s1").manifest[part] == store._find("s2").manifest[part]
    assert check(fs).clean


@pytest.mark.req("S20")
def test_a_frozen_part_is_nearly_nothing_beside_a_raw_neighbour() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("s1")
        commit(store, 2, bparams=True)
        store.snapshot("s2")
        store.archive("s1", against="s2")
        rows = {(r.shard, r.part): r.bytes for r in store.objects("s1")}
        assert rows["b", "params"] < 2000 < rows["a", "params"]


@pytest.mark.req("S20")
def test_refusals() -> None:
    fs = built()
    with open_store(fs) as store:
        store.archive("s2")
        for name, options, match in (
            ("s2", {}, "archived already"),
            ("s4", {"against": "s4"}, "itself"),
            ("s4", {"against": "s2", "alone": True}, "alone"),
            ("s4", {"level": 0}, "level 0"),
        ):
            with pytest.raises(UsageError, match=match):
                store.archive(name, **options)
        for name, against in (("nosuch", None), ("main", None), ("s4", "nosuch")):
            with pytest.raises(RefNotFoundError, match="only snapshots"):
                store.archive(name, against=against)
        with store.begin(9), pytest.raises(UsageError):
            store.archive("s4")
    with open_store(fs, "r") as store, pytest.raises(ReadOnlyError):
        store.archive("s4")


# ---------------------------------------------------------------------------- damage


@pytest.mark.req("S11", "S20")
def test_damage_is_named_and_nothing_wrong_is_returned() -> None:
    fs = built()
    with open_store(fs) as store:
        store.archive("s2")
        store.archive("s4")
        path = path_of(store, "s4")
        good = read_bytes(fs, path)
    for at in (0, 20, len(good) // 2, len(good) - 1):
        change(fs, path, at)
        with open_store(fs, "r") as store, pytest.raises(CorruptionError) as caught:
            store.load("a", "params", "s4")
        for word in ("'a'", "'params'", "step 4", path):
            assert word in str(caught.value), word
        tensor = "n" if at == len(good) - 1 else "w"
        assert at < 100 or f"piece 0 of tensor {tensor!r}" in str(caught.value)
        (found, *_) = damages(fs)
        assert (found.file, found.shard, found.part) == (path, "a", "params")
        assert found.snapshots == ("s4",) and (at < 100 or found.tensor == tensor)
        change(fs, path, at)
    for data in (b"", good[:-1], good + b"\0"):
        file = fs.open(path, "replace")
        file.pwrite(0, data)
        file.close()
        with open_store(fs, "r") as store, pytest.raises(CorruptionError, match="size"):
            store.load("a", "params", "s4")
        assert damages(fs, deep=False)


@pytest.mark.req("S11", "S13", "S20")
def test_a_base_that_is_missing_or_damaged_is_named() -> None:
    fs = built()
    with open_store(fs) as store:
        store.archive("s4", against="s2")
        store.delete("s2")
        for name in ("x", "y", "z"):
            store.snapshot(name)
            store.delete(name)
        base = store._find("s4").manifest[PARTS[0]].base
        assert base is not None
    path = f"{ROOT}/{base.file}"
    change(fs, path, base.size // 2)
    with open_store(fs, "r") as store, pytest.raises(CorruptionError) as caught:
        store.load("a", "params", "s4")
    assert path in str(caught.value) and "base" in str(caught.value)
    (found,) = damages(fs)
    assert (found.file, found.snapshots, found.part) == (path, ("s4",), "params")
    fs.unlink(path)
    with open_store(fs, "r") as store, pytest.raises(CorruptionError, match="missing"):
        store.load("a", "params", "s4")
    assert [finding.file for finding in damages(fs, deep=False)] == [path]


@pytest.mark.req("S20")
def test_what_reads_back_otherwise_is_not_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    fs, real = built(), packing.pack

    def wrong(piece: memoryview, *rest: Any) -> packing.Packed:
        data = bytearray(piece)
        data[len(data) // 2] ^= 1
        return real(memoryview(data), *rest)

    with open_store(fs) as store:
        before = object_files(fs)
        monkeypatch.setattr(packing, "pack", wrong)
        with pytest.raises(CorruptionError, match="not the one that was declared"):
            store.archive("s2")
        monkeypatch.undo()
        assert object_files(fs) == before and not any(s.archived for s in store.snapshots)
        store.archive("s2")
        check_is(store, "s2", 2)


# ---------------------------------------------------------------------------- space and failures


class Small(MemoryFileSystem):
    """Says how much is free."""

    free = 1 << 40

    def free_bytes(self, path: str) -> int:
        return self.free


@pytest.mark.req("S18", "S20")
def test_without_room_nothing_is_begun() -> None:
    fs = Small()
    built(fs)
    fs.free = 5000
    with open_store(fs) as store:
        before = tree(fs)
        with pytest.raises(StorageError, match=r"may take \d+ bytes .* 5000 are free"):
            store.archive("s2")
        assert tree(fs) == before
        fs.free = 1 << 40
        store.archive("s2")


FAILURES: list[Callable[[FaultyFileSystem], None]] = [
    lambda faulty: faulty.fail("pwrite", "*.archive"),
    lambda faulty: faulty.fail("pwrite", "*.archive", nth=3),
    lambda faulty: faulty.fail("open_create", "*.archive", nth=2),
    lambda faulty: faulty.fail("open_read", "*.archive", nth=2),
    lambda faulty: faulty.fail_datasync("*.archive", nth=2),
    lambda faulty: faulty.fail("pwrite", "*/objects/*.raw"),
    lambda faulty: faulty.fail("sync_directory", "*/objects"),
    lambda faulty: faulty.fail("pread", "*.archive"),
]


@pytest.mark.req("S18", "S20")
@pytest.mark.parametrize("fail", FAILURES)
def test_a_failure_midway_leaves_everything_as_it_was(
    fail: Callable[[FaultyFileSystem], None],
) -> None:
    fs = built()
    faulty = FaultyFileSystem(fs)
    with open_store(faulty) as store:
        before = object_files(fs)
        needed = {name: read_bytes(fs, f"{ROOT}/objects/{name}") for name in before}
        held = store._session.state.needed()
        fail(faulty)
        with pytest.raises(StorageError):
            store.archive("s4")
        faulty.clear()
        gone = [name for name in object_files(fs) if name not in before]
        assert len(gone) <= 1, "a file whose sync failed may stay; it is never written again"
        for name, data in needed.items():
            if int(name.partition(".")[0], 16) in held:
                assert read_bytes(fs, f"{ROOT}/objects/{name}") == data
        assert not any(s.archived for s in store.snapshots)
        check_is(store, "s4", 4)
        store.archive("s4")
        check_is(store, "s4", 4)
    assert check(fs).clean


@pytest.mark.req("S20")
def test_after_a_failed_sync_of_the_log_the_next_opening_decides() -> None:
    fs = built()
    faulty = FaultyFileSystem(fs)
    store = open_store(faulty)
    faulty.fail_datasync("*/wal/*.wal")
    with pytest.raises(PoisonedError):
        store.archive("s4")
    store.close()
    with open_store(fs) as store:
        check_is(store, "s4", 4)
    assert check(fs).clean


@pytest.mark.req("S20")
def test_an_interrupt_leaves_everything_as_it_was() -> None:
    fs, counts = built(), []

    def interrupt(size: int) -> None:
        counts.append(size)
        if len(counts) == 2:
            raise KeyboardInterrupt

    with open_store(fs) as store:
        before = object_files(fs)
        with pytest.raises(KeyboardInterrupt):
            store.archive("s2", advance=interrupt)
        assert object_files(fs) == before
        check_is(store, "s2", 2)
        store.archive("s2")


@pytest.mark.req("S20")
def test_memory_is_that_of_an_object_its_base_and_what_it_packs_to() -> None:
    fs = built()
    with open_store(fs, settings=Settings(host_budget_bytes=0)) as store:
        store.archive("s2")
        store.archive("s4")
        largest = max(row.bytes for row in store.objects("s6"))
        assert 0 < store.host_bytes <= 3.2 * largest


# ---------------------------------------------------------------------------- beside a writer


@pytest.mark.req("S20")
def test_a_reader_of_the_unpacked_objects_learns_that_they_are_gone() -> None:
    fs = built()
    with open_store(fs) as store, open_store(fs, "r") as reader:
        found = reader._find("s2")
        store.archive("s2")
        for step in range(9, 14):
            commit(store, step)
        with pytest.raises(StepMovedOnError):
            reader._session.read_object(PARTS[0], found.manifest[PARTS[0]], found)
        reader.refresh()
        check_is(reader, "s2", 2)


@pytest.mark.req("S8", "S20")
def test_a_pinned_view_keeps_the_unpacked_objects() -> None:
    fs = built()
    with open_store(fs) as store, open_store(fs, "r") as reader:
        with reader.pin("s2") as view:
            slots = {ref.slot for ref in view._commit.manifest.values()}
            store.archive("s2")
            for step in range(9, 14):
                commit(store, step)
            store.gc(everything=True)
            assert store.pinned_slots() >= slots
            for index, key in enumerate(PARTS):
                with view.load(*key) as loaded:
                    assert loaded.numpy()["w"].tobytes() == weights(2, index)["w"].tobytes()
        with reader.pin("s2") as view:
            assert view._commit.manifest[PARTS[0]].format == "archive"
            assert store.pinned_slots() >= view._commit.slots()


@pytest.mark.req("S20")
def test_with_threads_on_a_disk(tmp_path: Path) -> None:
    fs = PosixFileSystem()
    with Store.open(tmp_path / "run", "a", settings=Settings(prewrite_bytes=16384)) as store:
        for step in range(1, 4):
            commit(store, step)
            store.snapshot(f"s{step}")
        assert store.archive("s1").ratio > 1.1
        assert store.archive("s2").deltas == 3
        assert store.archive("s3").deltas == 3
    with Store.open(tmp_path / "run") as store:
        for step in range(1, 4):
            check_is(store, f"s{step}", step)
    from shardstore.fsck import fsck

    assert fsck(fs, str(tmp_path / "run"), deep=True).clean


@pytest.mark.req("S8", "S20")
def test_a_commit_that_came_back_packed_is_pinned_as_it_is_now() -> None:
    """Between looking and locking the commit goes, and comes back with other objects."""
    fs = built()
    with open_store(fs) as store:
        seq = store.commit_of("s8").seq

        def meanwhile(event: str, _fields: Any) -> None:
            if event != "pin" or any(s.archived for s in store.snapshots):
                return
            store.archive("s8")
            for step in range(9, 14):
                commit(store, step)
            store.rewind("s8")
            for step in range(9, 12):
                commit(store, step)
            store.rewind("s8")

        with (
            open_store(fs, "r", trace=meanwhile) as reader,
            reader.pin(Ref.seq(seq)) as view,
        ):
            for index, key in enumerate(PARTS):
                with view.load(*key) as loaded:
                    assert loaded.numpy()["w"].tobytes() == weights(8, index)["w"].tobytes()


@pytest.mark.req("S11", "S20")
def test_a_reference_with_another_base_is_refused() -> None:
    with open_store(built()) as store:
        store.archive("s2")
        store.archive("s4")
        store.archive("s6", against="s8")
        part, commit_ = PARTS[0], store._find("s4")
        reference, other = commit_.manifest[part], store._find("s6").manifest[part]
        assert reference.base is not None and other.base is not None
        lying = other._replace(digest=reference.base.digest, counter=reference.base.counter)
        for base in (None, other, other.base, reference.base._replace(digest="0" * 32), lying):
            wrong = reference._replace(base=base)
            what = "its base" if base is lying else "base of the archived object"
            with pytest.raises(CorruptionError, match=what):
                store._session.read_object(part, wrong, commit_)
        row = [*reference.to_json()[:7], other.to_json()]
        assert ObjectRef.from_json(row).base == other._replace(base=None)  # never a third object
        assert ObjectRef.from_json(reference.to_json()) == reference
