"""The fold: the same records give the same state, restated or not, and what does not fit is told.

Records come from real stores; they are folded here one by one, and by the reader.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardstore import Best, Ref, Retention, Store
from shardstore.context import Settings
from shardstore.errors import CorruptionError
from shardstore.format.digests import canonical_json
from shardstore.fs.memory import MemoryFileSystem
from shardstore.wal.reader import LogRecord, fold, list_segments, read_log, read_segment
from shardstore.wal.state import FoldError, State, changed_parts
from tests.support.stores import ROOT, commit, open_store

ALL = Settings(prewrite_bytes=8192, commits_per_segment=1000)


def eventful(store: Store) -> None:
    """Every kind of record at least once."""
    for step in (1, 2, 3):
        commit(store, step, metadata={"step": step})
    store.snapshot("a", at=Ref.step(2))
    store.snapshot("b")
    commit(store, 4)
    store.rewind("a")
    commit(store, 5)
    store.delete("b")
    store.undo()
    store.undo()
    store.delete("a")
    commit(store, 6)
    store.rewind(Ref.head)
    store.set_retention(Retention(last=3, every=2, best=Best(metric="step", mode="max")))
    store.branch("trial", at=Ref.step(4))
    store.switch("trial")
    for step in (4, 5, 6):
        commit(store, step, metadata={"step": step})
    store.switch("main")
    store.delete("trial")
    store.undo()
    store.undo()
    commit(store, 7)
    store.set_retention(Retention(last=1))
    store.gc()


@pytest.fixture(scope="module")
def records() -> list[LogRecord]:
    fs = MemoryFileSystem()
    with open_store(fs, settings=ALL) as store:
        eventful(store)
        found = read_segment(fs, ROOT, 1).records
    assert {record.body["type"] for record in found} == {
        *("open", "commit", "snapshot", "branch", "switch", "delete", "rewind", "undo"),
        *("retention", "unkeep"),
    }
    return found


def folded(records: list[LogRecord]) -> State:
    state = State()
    for record in records:
        state.apply(record.body, record.chain)
    return state


def plain(state: State) -> Any:
    return json.loads(canonical_json(state.to_json()))


@pytest.mark.req("S3")
def test_a_state_restated_by_its_summary_goes_on_the_same(records: list[LogRecord]) -> None:
    whole = folded(records)
    for cut in range(1, len(records)):
        restated = State()
        restated.apply({"type": "open", "seq": cut, "state": plain(folded(records[:cut]))}, "")
        for record in records[cut:]:
            restated.apply(record.body, record.chain)
        assert plain(restated) == plain(whole), cut
        assert restated.needed() == whole.needed()


@pytest.mark.req("S3")
def test_the_writer_a_reader_and_the_next_opening_agree_after_every_record() -> None:
    fs = MemoryFileSystem()
    seen: list[Any] = []

    def note(event: str, _fields: object) -> None:
        if event == "append":
            seen.append(
                plain(read_log(fs, ROOT).state) == plain(store._session.pipeline.protocol.tail)
            )

    store = open_store(fs, settings=Settings(prewrite_bytes=8192, commits_per_segment=2),
                       trace=note)  # fmt: skip
    eventful(store)
    assert seen and all(seen)
    final = plain(store._session.state)
    assert plain(read_log(fs, ROOT).state) == final
    store.close()
    assert len(list_segments(fs, ROOT)) > 3
    with open_store(fs) as again:
        assert plain(again._session.state) == final


def test_a_copy_is_independent(records: list[LogRecord]) -> None:
    state = folded(records[:8])
    before = plain(state)
    for record in records[8:]:
        twin = state.copy()
        twin.apply(record.body, record.chain)
        assert plain(state) == before
        state, before = twin, plain(twin)


def test_a_slot_is_needed_by_commits_and_by_snapshots(records: list[LogRecord]) -> None:
    state = folded(records)
    inline = {ref.slot for commit_ in state.commits.values() for ref in commit_.manifest.values()}
    assert inline <= state.needed()
    assert state.needed() == inline | set(state.snapshot_slots)
    assert all(count > 0 for count in state.snapshot_slots.values())


@pytest.mark.req("S4")
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("commit", {"parent": 999}),
        ("commit", {"parent_chain": "0" * 32}),
        ("commit", {"manifest_digest": "0" * 32}),
        ("commit", {"remove": [["no", "part"]]}),
        ("commit", {"branch": "other"}),
        ("commit", {"unkeep": [999]}),
        ("delete", {"name": "other"}),
        ("undo", {"entry": 999}),
        ("rewind", {"forget": [999]}),
        ("branch", {"name": "main"}),
        ("branch", {"commit": {}}),
        ("switch", {"name": "other"}),
        ("delete", {"name": "main"}),
        ("retention", {"retention": {"last": 0, "every": None, "best": None}}),
        ("retention", {"retention": {"last": 2}}),
        ("unkeep", {"unkeep": [999]}),
        ("snapshot", {"reference": None}),
        ("commit", {"type": "surprise"}),
    ],
)
def test_a_record_that_does_not_fit_is_damage_with_its_place(
    records: list[LogRecord], kind: str, change: dict[str, Any]
) -> None:
    at = max(i for i, record in enumerate(records) if record.body["type"] == kind)
    wrong = LogRecord(
        body={**records[at].body, **change},
        frame=records[at].frame,
        chain=records[at].chain,
        segment=1,
    )
    with pytest.raises(CorruptionError, match=r"does not (fit|add up)") as caught:
        fold([*records[:at], wrong, *records[at + 1 :]], 0, ROOT)
    assert caught.value.offset == records[at].frame.offset
    assert caught.value.file.endswith("0000000000000001.wal")


def test_a_record_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(FoldError, match="'surprise'"):
        State().apply({"type": "surprise", "seq": 3}, "")


def test_lines_that_nothing_can_ask_about_leave_the_summary() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("one")
        for step in range(2, 12):
            commit(store, step)
            store.rewind("one")
        state = store._session.state
        assert len(state.lines) == 10
        assert len(plain(state)["lines"]) <= 4


def test_on_line_follows_forks() -> None:
    state = State(lines={10: (1, 5), 20: (10, 12)})
    assert state.on_line(20, 20, 25)
    assert state.on_line(20, 10, 12) and not state.on_line(20, 10, 13)
    assert state.on_line(20, 1, 5) and not state.on_line(20, 1, 6)
    assert not state.on_line(1, 10, 11)
    low = State(lines={10: (1, 5), 20: (10, 3)})  # forked before the fork of its parent
    assert low.on_line(20, 1, 3) and not low.on_line(20, 1, 4)


def test_changed_parts() -> None:
    with open_store() as store:
        commit(store, 1)
        with store.begin(2) as txn:
            txn.keep("a", "params")
            txn.remove("b", "params")
            txn.stage("a", "optim", {})
            txn.stage("c", "params", {})
            txn.commit()
        old, new = (store._session.state.commits[c.seq].manifest for c in store.kept)
        assert changed_parts(old, new) == (
            [("a", "optim"), ("c", "params")],
            [("b", "params")],
        )
