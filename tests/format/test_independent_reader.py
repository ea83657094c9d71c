"""A reader written from FORMAT.md alone sees what the store says.

Goal: the page describes the bytes, all of them that matter. Method: stores are made through the
public face; after every change `IndependentReader`, which shares no code with the store, reads the
directory and must find the same head, commits, snapshots, tensors and state digests; the opening
of each segment must state what its predecessor's records add up to.
"""

from __future__ import annotations

import base64
import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardstore import Best, Commit, Ref, Retention, Store
from shardstore.context import Settings
from shardstore.errors import UsageError
from tests.format.independent_log import BLOCK, Damaged, Json, Segment, canonical
from tests.format.independent_reader import IndependentReader

SETTINGS = Settings(commits_per_segment=5, prewrite_bytes=65536)
EXAMPLES = settings().max_examples // 4
METADATA: dict[str, Any] = {
    "loss": math.nan, "best": -math.inf, "zero": -0.0, "tiny": 5e-324, "big": 2**80,
    "text": "naïve\0\n\u2028😀", "nested": {"b": [1, None, True], "a": {}},
}  # fmt: skip
BLOBS = {"rng": bytes(range(256)), "empty": b"", "ключ": b"\0\0"}


def arrays(seed: int) -> dict[str, Any]:
    """Tensors of many kinds: numpy and torch, empty, scalar, strided, of every width."""
    draw = np.random.default_rng(seed)
    return {
        "w": draw.standard_normal((3, 17)).astype(np.float32),
        "0.weight": torch.from_numpy(draw.standard_normal((4, 6))).to(torch.bfloat16).t(),
        "empty": np.zeros((0, 3), np.int16),
        "also empty": torch.zeros(2, 0),
        "a/b": np.array(seed),
        "mask": draw.integers(0, 2, 65).astype(bool),
        "ü\n": np.arange(seed % 100, dtype=np.uint8)[::-1],
        "c": np.array([1 + 2j], np.complex64),
        "f8": torch.arange(5, dtype=torch.float32).to(torch.float8_e5m2),
    }


def commit(store: Store, step: int, parts: dict[tuple[str, str], dict[str, Any]],
           remove: frozenset[tuple[str, str]] = frozenset()) -> Commit:  # fmt: skip
    with store.begin(step=step) as txn:
        for key, tensors in parts.items():
            txn.stage(*key, tensors)
        for key in remove:
            txn.remove(*key)
        txn.keep_rest()
        made = txn.commit(metadata={**METADATA, "step": step}, blobs=BLOBS)
        return store.commit_of(Ref.seq(made.seq))


def assert_same_commit(reader: IndependentReader, found: Json, store: Store, ref: Ref) -> None:
    wanted = store.commit_of(ref)
    assert found["seq"] == wanted.seq and found["chain"] == wanted.id
    assert (found["step"], found["branch"], found["time"]) == (
        wanted.step, wanted.branch, wanted.time,
    )  # fmt: skip
    assert canonical(found["metadata"]) == canonical(wanted.metadata)
    blobs = {name: base64.b64decode(text) for name, text in found["blobs"].items()}
    assert blobs == wanted.blobs
    parts = reader.parts(found)
    assert set(parts) == wanted.parts
    for (shard, part), tensors in parts.items():
        with store.load(shard, part, ref) as loaded:
            specs = {spec.name: (spec.dtype, spec.shape) for spec in loaded.specs}
            assert {t.name: (t.dtype, tuple(t.shape)) for t in tensors.values()} == specs
            for tensor in tensors.values():
                assert tensor.data == loaded.raw(tensor.name)
    assert reader.state_digest(found) == store.state_digest(ref)


def assert_same(store: Store, root: Path) -> IndependentReader:
    """Head, kept commits, snapshots: everything that the public face shows."""
    reader = IndependentReader(root)
    head = reader.commit()
    assert (head is None) == (store.head is None)
    if head is not None:
        assert_same_commit(reader, head, store, Ref.head)
    assert reader.state.current == store.current_branch
    branches = [(name, seq) for name, (seq, _) in sorted(reader.state.branches.items())]
    assert branches == [(branch.name, branch.seq) for branch in store.branches]
    assert reader.state.retention == store.retention.to_json()
    assert sorted(reader.state.commits) == [kept.seq for kept in store.kept]
    for kept in store.kept:
        assert_same_commit(reader, reader.state.commits[kept.seq], store, Ref.seq(kept.seq))
    rows = [(row["name"], row["seq"], row["step"], row["time"])
            for _, row in sorted(reader.state.snapshots.items())]  # fmt: skip
    assert rows == [(s.name, s.seq, s.step, s.time) for s in store.snapshots]
    for snapshot in store.snapshots:
        named = reader.commit(snapshot.name)
        assert_same_commit(reader, named, store, Ref.name(snapshot.name))
    assert reader.segment.tail == "clean"
    return reader


@pytest.fixture
def root() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp())
    yield directory / "run"
    shutil.rmtree(directory)


@pytest.mark.req("S3", "S5", "S10", "S21", "S28")
def test_every_kind_of_record_reads_the_same(root: Path) -> None:
    for opening in range(3):
        with Store.open(root, "a", settings=SETTINGS) as store:
            assert_same(store, root)
            for step in range(7):
                parts = {("block", "params"): arrays(step), ("block", "optim"): arrays(step + 50)}
                if step == 2:
                    parts["a/../b", "ß"] = {}
                remove = frozenset({("a/../b", "ß")} if step == 4 else ())
                commit(store, 100 * opening + step, parts, remove)
                assert_same(store, root)
            store.snapshot("best" if opening == 0 else None)
            store.snapshot(f"again{opening}")
            assert_same(store, root)
            commit(store, 100 * opening + 10, {("block", "params"): arrays(77)})
            store.rewind("best")
            assert_same(store, root)
            store.delete(f"again{opening}")
            assert_same(store, root)
            store.undo()
            store.undo()
            assert_same(store, root)
            branch_out(store, root, f"trial{opening}")
        with Store.open(root) as store:
            assert_same(store, root)
    reader = IndependentReader(root)
    assert reader.check_history() == len(reader.segments) > 7
    segments = [Segment(path) for path in reader.segments]
    kinds = {frame.record["type"] for segment in segments for frame in segment.frames}
    assert kinds == {
        *("open", "commit", "snapshot", "branch", "switch", "delete", "rewind", "undo"),
        *("retention", "unkeep"),
    }


def branch_out(store: Store, root: Path, name: str) -> None:
    """Commits on two branches, a deleted one that comes back, another rule, what it gives up."""
    assert store.head is not None
    step = store.head.step
    store.branch(name)
    assert_same(store, root)
    store.switch(name)
    store.set_retention(Retention(last=4, every=2, best=Best(metric="step", mode="max")))
    for more in range(3):
        commit(store, step + more, {("block", "params"): arrays(more)})
        assert_same(store, root)
    store.switch("main")
    store.delete(name)
    assert_same(store, root)
    for _ in range(3 if name.endswith("0") else 1):
        store.undo()
        assert_same(store, root)
    store.set_retention(Retention(last=1))
    store.gc(everything=True)
    assert_same(store, root)
    store.set_retention(Retention())


@pytest.mark.req("S3")
def test_records_of_many_blocks_and_rolls_read_the_same(root: Path) -> None:
    with Store.open(root, "a", settings=Settings(commits_per_segment=3, prewrite_bytes=8192)) as s:
        for step in range(8):
            with s.begin(step=step) as txn:
                txn.stage("s", "p", {"x": np.arange(step)})
                txn.commit(metadata={"long": "€" * 9000 * (step % 3)}, blobs={"b": bytes(30000)})
            assert_same(s, root)
    assert IndependentReader(root).check_history() == 4


@pytest.mark.req("S3")
def test_zeros_reach_beyond_the_last_frame_of_the_open_segment(root: Path) -> None:
    """Section 3.4: a frame is appended only while zeros reach beyond it."""
    settings = Settings(prewrite_bytes=3 * BLOCK)
    with Store.open(root, "a", settings=settings) as store:
        for step in range(8):
            commit(store, step, {("s", "p"): {"x": np.arange(3)}})
            segment = IndependentReader(root).segment
            assert segment.path.stat().st_size > segment.frames[-1].end


@pytest.mark.req("S21")
def test_what_a_commit_says_does_not_follow_its_callers_objects(root: Path) -> None:
    metadata: dict[str, Any] = {"loss": 1.0, "nested": {"rows": [1]}}
    with Store.open(root, "a", settings=SETTINGS) as store:
        with store.begin(step=1) as txn:
            txn.stage("s", "p", {"x": np.arange(3)})
            txn.commit(metadata=metadata)
        metadata["loss"] = 2.0
        metadata["nested"]["rows"].append(2)
        assert store.head is not None
        assert store.head.metadata == {"loss": 1.0, "nested": {"rows": [1]}}
        store.snapshot("kept")
        assert_same(store, root)
        named = IndependentReader(root).commit("kept")
        assert named is not None and named["metadata"] == store.head.metadata


class Changes:
    """A store under random changes; refuses none that the public face would refuse."""

    def __init__(self, root: Path) -> None:
        self.root, self.step, self.names = root, 0, 0
        self.store = Store.open(root, "a", settings=SETTINGS)

    def apply(self, change: str, number: int) -> None:
        names = [snapshot.name for snapshot in self.store.snapshots]
        head = self.store.head
        if change == "commit":
            self.step = max(self.step, head.step if head else 0) + number % 3
            parts = {(f"s{number % 4}", "p"): arrays(number), ("always", "p"): arrays(self.step)}
            commit(self.store, self.step, parts)
        elif change == "reopen":
            self.store.close()
            self.store = Store.open(self.root, "r+", settings=SETTINGS)
        elif head is None:
            return
        elif change == "remove":
            gone = sorted(head.parts)[number % len(head.parts)] if head.parts else None
            self.step = max(self.step, head.step)
            commit(self.store, self.step, {}, frozenset({gone} if gone else ()))
        elif change == "snapshot":
            kept = self.store.kept
            self.names += 1
            self.store.snapshot(f"n{self.names}", Ref.seq(kept[number % len(kept)].seq))
        elif change == "rewind":
            refs = [*(Ref.name(n) for n in names), *(Ref.seq(c.seq) for c in self.store.kept)]
            self.step = self.store.rewind(refs[number % len(refs)]).step
        elif change == "branch":
            kept = self.store.kept
            self.names += 1
            self.store.branch(f"n{self.names}", Ref.seq(kept[number % len(kept)].seq))
        elif change == "switch":
            others = [one.name for one in self.store.branches if not one.current]
            if others:
                self.step = self.store.switch(others[number % len(others)]).step or 0
        elif change == "delete":
            names += [one.name for one in self.store.branches if not one.current]
            if names:
                self.store.delete(names[number % len(names)])
        elif change == "gc":
            best = Best(metric="step", mode="max" if number % 2 else "min")
            self.store.set_retention(
                Retention(last=1 + number % 3, best=best if number % 5 else None)
            )
            if number % 7:
                self.store.gc(everything=number % 2 == 0)
        elif change == "undo":
            try:
                self.store.undo()
            except UsageError:
                return


KINDS = [*["commit"] * 4, "reopen", "remove", "snapshot", "branch", "switch", "rewind", "delete",
         "undo", "gc"]  # fmt: skip


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 99)), max_size=25))
@example([("commit", 1), ("snapshot", 0), ("delete", 0), ("rewind", 0), ("rewind", 0),
          ("rewind", 0), ("commit", 2), ("reopen", 0), ("undo", 0), ("undo", 0)])  # fmt: skip
def test_random_changes_read_the_same(changes: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "run"
        state = Changes(root)
        try:
            for change, number in changes:
                state.apply(change, number)
                assert_same(state.store, root)
        finally:
            state.store.close()
        reader = IndependentReader(root)
        assert reader.check_history() == len(reader.segments)


def test_the_reader_finds_damage_itself(root: Path) -> None:
    """The witness is worth something only if it looks: flips in every kind of file."""
    with Store.open(root, "a", settings=SETTINGS) as store:
        commit(store, 1, {("s", "p"): arrays(1)})
        commit(store, 2, {("s", "p"): arrays(2)})
    reader = IndependentReader(root)
    head = reader.commit()
    assert head is not None
    frames = reader.segment.frames
    places = [(reader.segment.path, frame.offset + at) for frame in frames for at in (0, 30, 200)]
    places += [(root / "STORE", at) for at in (0, 18, 30, 60)]
    target = reader.object_path(head["manifest"][0][2])
    places += [(target, at) for at in (0, 9, 4000, 4096, target.stat().st_size - 1)]
    for path, at in places:
        whole = bytearray(path.read_bytes())
        whole[at] ^= 1
        path.write_bytes(whole)
        with pytest.raises(Damaged) as found:
            damaged = IndependentReader(root)
            damaged.parts(damaged.commit())
        assert found.value.file == path
        whole[at] ^= 1
        path.write_bytes(whole)
    assert reader.state_digest(IndependentReader(root).commit()) == reader.state_digest(head)
