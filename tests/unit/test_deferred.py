"""Replay that leaves `put` unparsed gives exactly what parsing everything gives.

Goal: the same values, manifests and states; whatever is spelled differently is parsed whole.
Method: the same random histories folded both ways, and records made to fool the cutting.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import CorruptionError
from shardstore.format.digests import canonical_json, expect_digest
from shardstore.format.manifest import ObjectRef
from shardstore.fs.memory import MemoryFileSystem
from shardstore.wal import reader
from shardstore.wal.deferred import DeferredManifest, DeferredRows, decode_record
from shardstore.wal.reader import fold, read_segment
from shardstore.wal.state import _manifest_after
from tests.support.stores import ROOT, commit, open_store

TRICKY = ('a","put":[', '","remove":[', '\\",\\"put\\":[', "put", "remove", 'x","put":[["', "ü\n")
NAMES = st.sampled_from([*TRICKY, "block_000", "block_001"])
PARTS = st.tuples(NAMES, st.sampled_from(["params", "optim", ',"remove":[']))
METADATA = st.recursive(
    st.one_of(st.sampled_from(TRICKY), st.integers(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from([*TRICKY, "type"]), inner, max_size=3),
    ),
    max_leaves=8,
)


def _record(put: list[Any], remove: list[Any], metadata: Any) -> dict[str, Any]:
    return {
        "blobs": {}, "expect": "0" * 32, "metadata": metadata, "parent_chain": "0" * 32,
        "put": put, "remove": remove, "seq": 4, "step": 1, "txn": "t", "type": "commit",
        "unkeep": [1],
    }  # fmt: skip


@given(st.lists(PARTS, max_size=3), st.lists(PARTS, max_size=3), METADATA)
def test_a_record_reads_the_same(put: list[Any], remove: list[Any], metadata: Any) -> None:
    record = _record([[*part, [1, 2, 3]] for part in put], [list(p) for p in remove], metadata)
    found = decode_record(canonical_json(record))
    assert isinstance(found["put"], DeferredRows)
    assert {**found, "put": list(found["put"])} == json.loads(canonical_json(record))
    assert len(found["put"]) == len(put)


@pytest.mark.parametrize(
    "record",
    [
        {"type": "open", "state": {"a": 1, "put": [1], "remove": [2]}},
        {"put": [[1]], "remove": [], "type": "commit", "z": {"a": 0, "put": [5], "remove": [6]}},
        {"a": 0, "put": [1], "remove": [2], "type": "other"},
        {"seq": 1},
        [1, 2],
    ],
)
def test_another_spelling_is_parsed_whole(record: Any) -> None:
    text = json.dumps(record, separators=(",", ":")).encode()
    found = decode_record(text)
    assert found == record and not isinstance(found, DeferredRows)


CHANGES = st.lists(
    st.tuples(st.sets(st.sampled_from("abcd"), max_size=4), st.sets(st.sampled_from("abcd"))),
    min_size=1,
    max_size=8,
)


@given(CHANGES)
def test_a_manifest_is_that_of_every_record(changes: list[tuple[set[str], set[str]]]) -> None:
    """Puts, and removals between them, resolved from the newest or from the middle."""
    plain: dict[tuple[str, str], ObjectRef] = {("z", "p"): _ref(0)}
    parent: Any = dict(plain)
    manifests: list[tuple[dict[tuple[str, str], ObjectRef], Any]] = []
    for number, (put, remove) in enumerate(changes, 1):
        removed = [list(key) for key in plain if key[0] in remove]
        plain = {key: ref for key, ref in plain.items() if key[0] not in remove}
        plain |= {(shard, "p"): _ref(number) for shard in put}
        rows = DeferredRows(canonical_json([[s, "p", _ref(number).to_json()] for s in sorted(put)]))
        record = {"put": rows, "remove": removed, "expect": expect_digest(plain)}
        parent = _manifest_after(parent, record)
        assert isinstance(parent, dict if removed else DeferredManifest)
        manifests.append((plain, parent))
    for expected, found in (manifests[-1], manifests[len(manifests) // 2], *manifests):
        assert dict(found) == expected


def _ref(number: int) -> ObjectRef:
    values = {"slot": number, "epoch": 1, "counter": number, "size": 4096, "digest": "0" * 32}
    names = ObjectRef._fields[:-1]  # without a base
    return ObjectRef(**{name: values.get(name, "raw") for name in names})  # type: ignore[arg-type]


def test_a_state_holds_nothing_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        for step in range(1, 6):
            commit(store, step)
        store.snapshot("s")
    segment = read_segment(fs, ROOT, 1)
    assert any(isinstance(r.body.get("put"), DeferredRows) for r in segment.records)
    state = fold(segment.records, 0, ROOT)
    assert all(type(kept.manifest) is dict for kept in state.commits.values())
    monkeypatch.setattr(reader, "decode_record", json.loads)
    assert fold(read_segment(fs, ROOT, 1).records, 0, ROOT) == state


def test_a_put_that_is_no_json_is_damage() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
    segment = read_segment(fs, ROOT, 1)
    body = dict(segment.records[-1].body)
    body["put"] = DeferredRows(b"[[")
    broken = reader.LogRecord(
        body=body, frame=segment.records[-1].frame, chain=segment.records[-1].chain, segment=1
    )
    with pytest.raises(CorruptionError, match="not readable"):
        fold([*segment.records[:-1], broken], 0, ROOT)
