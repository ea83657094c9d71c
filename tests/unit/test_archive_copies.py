"""Archived snapshots in clones and behind a publication: differences bring their bases along."""

from __future__ import annotations

import pytest

from shardstore import Store
from shardstore.format.names import ARCHIVE, RAW
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fsck import fsck
from tests.support.stores import PARTS, SETTINGS, open_store
from tests.unit.test_archive import built, check_is, commit, formats

pytestmark = [pytest.mark.req("S16"), pytest.mark.req("S20")]
DURABLE = "durable"
CLONE = "clone"


def behind(fs: MemoryFileSystem, path: str = DURABLE) -> Store:
    return Store.open(path, "r", fs=fs, settings=SETTINGS)


def check_sound(fs: MemoryFileSystem, path: str) -> None:
    assert [str(f) for f in fsck(fs, path, deep=True).findings if f.severity != "note"] == []


def with_bases() -> MemoryFileSystem:
    """Snapshots s2 to s6; s2 and s4 archived, s4 as differences to s2."""
    fs = built(steps=6)
    with open_store(fs) as store:
        store.archive("s2")
        store.archive("s4", against="s2")
        references = store._find("s4").manifest.values()
        assert any(reference.base is not None for reference in references)
    return fs


def test_a_publication_brings_differences_and_their_bases() -> None:
    fs = with_bases()
    with open_store(fs) as store:
        store.publish(DURABLE)
    with open_store(fs) as store:  # into slots whose numbers differ from the active store's
        for step in (7, 8):
            commit(store, step)
            store.publish(DURABLE)
        store.snapshot("s8")
        store.archive("s8", against="s2")
        done = store.publish(DURABLE)
    assert done.objects > 0
    with open_store(fs) as store, behind(fs) as other:
        here, there = store._find("s8").manifest, other._find("s8").manifest
        moved = [part for part in here if here[part].slot != there[part].slot]
        assert any(here[part].base is not None for part in moved)
        for name, step in (("s2", 2), ("s4", 4), ("s6", 6), ("s8", 8)):
            check_is(other, name, step)
        archived = {snapshot.name: snapshot.archived for snapshot in other.snapshots}
        assert archived == {"s2": True, "s4": True, "s6": False, "s8": True}
    check_sound(fs, DURABLE)


def test_a_base_that_nothing_else_names_is_copied_and_stays() -> None:
    fs = with_bases()
    with open_store(fs) as store:
        store.delete("s2")
        store.publish(DURABLE)
        store.gc(everything=True)
        store.publish(DURABLE)
    with Store.open(DURABLE, "r+", fs=fs, settings=SETTINGS) as other:
        other.gc(everything=True)
        check_is(other, "s4", 4)
    check_sound(fs, DURABLE)


def test_archiving_what_was_published_is_published() -> None:
    fs = built(steps=6)
    with open_store(fs) as store:
        store.publish(DURABLE)
        before = fs.list_directory(f"{DURABLE}/objects")
        store.archive("s2")
        store.archive("s4", against="s2")
        store.publish(DURABLE)
        store.publish(DURABLE)
    with behind(fs) as other:
        assert formats(other, "s2") == formats(other, "s4") == {ARCHIVE}
        assert formats(other, "s6") == {RAW}
        for name, step in (("s2", 2), ("s4", 4), ("s6", 6)):
            check_is(other, name, step)
    check_sound(fs, DURABLE)
    with Store.open(DURABLE, "r+", fs=fs, settings=SETTINGS) as other:
        other.gc(everything=True)
        packed = sum(
            name.endswith(f".{ARCHIVE}") for name in fs.list_directory(f"{DURABLE}/objects")
        )
        assert packed == 2 * len(PARTS)
        assert len(fs.list_directory(f"{DURABLE}/objects")) < len(before) + packed
        check_is(other, "s4", 4)
    check_sound(fs, DURABLE)


@pytest.mark.parametrize("ref", [None, "s4"])
def test_a_clone_has_the_bases_too(ref: str | None) -> None:
    fs = with_bases()
    with open_store(fs) as store:
        store.delete("s2")
        store.clone(CLONE, ref=ref)
    with Store.open(CLONE, "r+", fs=fs, settings=SETTINGS) as other:
        check_is(other, "s4" if ref is None else "head", 4)
    check_sound(fs, CLONE)
