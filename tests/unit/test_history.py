"""History: every record once, across segments and rewinds, one effective commit per step."""

from __future__ import annotations

import math

import pytest

from shardstore import Ref
from shardstore.context import Settings
from shardstore.errors import CorruptionError
from shardstore.fs.memory import MemoryFileSystem
from shardstore.history import Entry, read_history
from tests.support.stores import ROOT, commit, open_store

SMALL_SEGMENTS = Settings(prewrite_bytes=16384, commits_per_segment=3)


def history(fs: MemoryFileSystem, **options: object) -> list[Entry]:
    return list(read_history(fs, ROOT, **options))  # type: ignore[arg-type]


def steps(entries: list[Entry], status: str) -> list[int | None]:
    return [entry.step for entry in entries if entry.status == status]


@pytest.mark.req("S22")
def test_a_rewind_keeps_both_lines_and_one_effective_commit_per_step() -> None:
    """Train to 20, rewind to 10, train to 20 again; over several openings and many segments."""
    fs = MemoryFileSystem()
    with open_store(fs, settings=SMALL_SEGMENTS) as store:
        for step in range(1, 21):
            commit(store, step, metadata={"loss": 1.0 * step})
            if step == 10:
                store.snapshot("ten")
        store.rewind("ten")
    with open_store(fs, settings=SMALL_SEGMENTS) as store:
        for step in range(11, 21):
            commit(store, step, metadata={"loss": 2.0 * step})
    entries = history(fs)
    assert len(fs.list_directory(f"{ROOT}/wal")) > 5
    assert [entry.seq for entry in entries] == sorted((e.seq for e in entries), reverse=True)
    assert steps(entries, "effective") == list(range(20, 0, -1))
    assert steps(entries, "rewound") == list(range(20, 10, -1))
    for entry in entries:
        factor = 2.0 if entry.effective and (entry.step or 0) > 10 else 1.0
        assert entry.body["metadata"]["loss"] == factor * (entry.step or 0)
    assert history(fs, oldest_first=True) == entries[::-1]


@pytest.mark.req("S22")
def test_undo_makes_the_line_that_was_left_effective_again() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        for step in (1, 2, 3):
            commit(store, step)
        store.rewind(Ref.step(2))
        commit(store, 3, value=7)
        assert [e.status for e in history(fs)] == ["effective", "rewound", "effective", "effective"]
        store.undo()
        assert [e.status for e in history(fs)] == ["rewound", "effective", "effective", "effective"]
        commit(store, 4)
    assert steps(history(fs), "effective") == [4, 3, 2, 1]


@pytest.mark.req("S22")
def test_of_a_repeated_step_the_newest_is_effective() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        for step in (1, 1, 2):
            commit(store, step)
    entries = history(fs)
    assert [entry.status for entry in entries] == ["effective", "effective", "repeated"]
    assert [entry.kept for entry in entries] == [True, True, False]


@pytest.mark.req("S22")
def test_every_record_stands_once_and_in_order() -> None:
    """Openings that copy unproven records included."""
    fs = MemoryFileSystem()
    for step in range(1, 6):
        with open_store(fs, settings=SMALL_SEGMENTS) as store:
            commit(store, step)
            store.snapshot(f"s{step}")
    with open_store(fs) as store:
        store.rewind("s1")
        store.undo()
        store.delete("s2")
    entries = history(fs, commits_only=False)
    assert [entry.seq for entry in entries] == list(range(entries[0].seq, 0, -1))
    kinds = [entry.type for entry in entries]
    assert {kind: kinds.count(kind) for kind in sorted({*kinds})} == {
        "commit": 5, "delete": 1, "open": 7, "rewind": 1, "snapshot": 5, "undo": 1,
    }  # fmt: skip
    assert kinds[:4] == ["delete", "undo", "rewind", "open"]
    assert all(entry.status is None for entry in entries if entry.type != "commit")


@pytest.mark.req("S22")
def test_the_newest_few_cost_the_newest_segment_only() -> None:
    """An older segment that is damaged is not looked at for them, and named when it is."""
    fs = MemoryFileSystem()
    with open_store(fs, settings=SMALL_SEGMENTS) as store:
        for step in range(1, 10):
            commit(store, step)
    path = f"{ROOT}/wal/{1:016x}.wal"
    file = fs.open(path, "write")
    file.pwrite(4096 + 200, b"#")
    file.close()
    assert steps(history(fs, limit=3), "effective") == [9, 8, 7]
    seen = []
    with pytest.raises(CorruptionError, match=r"0000000000000001\.wal"):
        for entry in read_history(fs, ROOT):
            seen.append(entry.step)
    assert seen[:3] == [9, 8, 7]


@pytest.mark.req("S22")
def test_an_empty_store_has_an_opening_and_no_commit() -> None:
    fs = MemoryFileSystem()
    open_store(fs).close()
    assert history(fs) == []
    assert [entry.type for entry in history(fs, commits_only=False)] == ["open", "open"]


@pytest.mark.req("S22")
def test_metadata_comes_back_exactly() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1, metadata={"loss": math.nan, "top": math.inf, "words": ["a", {"b": None}]})
    (entry,) = history(fs)
    assert math.isnan(entry.body["metadata"]["loss"])
    assert entry.to_json()["metadata"]["words"] == ["a", {"b": None}]
    assert "put" not in entry.to_json() and "blobs" not in entry.to_json()
