"""What differs between two commits: by digest, and by value against oracles of numpy and torch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardstore import Ref, Store
from shardstore.compare import compare, largest_difference
from shardstore.session import Settings
from tests.support.objects import DTYPES, bytes_of, tensor_of

SETTINGS = Settings(prewrite_bytes=16384)


def commit(store: Store, step: int, **parts: dict[str, Any]) -> None:
    with store.begin(step) as txn:
        for name, tensors in parts.items():
            txn.stage(name, "p", tensors)
        for shard, part in sorted(store.head.parts if store.head else ()):
            if shard not in parts:
                txn.remove(shard, part)
        txn.commit()


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "run", "a", settings=SETTINGS) as store:
        same, f4 = {"w": np.ones((2, 3), "f4")}, np.zeros(4, "f4")
        commit(
            store, 1, a={"w": f4, "gone": f4, "kind": f4, "shape": f4, "x": f4}, b=same, old=same
        )
        commit(store, 2, a={"w": np.array([0, 0, -2, 1], "f4"), "new": f4, "kind": f4.astype("f8"),
                            "shape": f4.reshape(2, 2), "x": f4}, b=same, c=same)  # fmt: skip
        yield store


def test_each_kind_of_change_is_told(store: Store) -> None:
    found = compare(store, Ref.step(1), Ref.step(2), values=True)
    changes = {(c.shard, c.tensor): c for c in found.changes}
    kinds = {key: change.kind for key, change in changes.items()}
    assert kinds == {
        ("a", "w"): "changed", ("a", "gone"): "removed", ("a", "new"): "added",
        ("a", "kind"): "changed", ("a", "shape"): "changed", ("c", "w"): "added",
        ("old", "w"): "removed",
    }  # fmt: skip
    assert (found.parts_added, found.parts_removed) == ([("c", "p")], [("old", "p")])
    assert not found.same and found.tensors_same == 2
    assert found.bytes_same == 16 + 24
    assert found.bytes_different == 16 + 16 + 16 + 32 + 16 + 24 + 24
    assert changes["a", "w"].max_abs == 2 and changes["a", "w"].not_finite == 0
    assert changes["a", "kind"].max_abs is None and not changes["a", "kind"].comparable
    assert (changes["a", "shape"].before, changes["a", "shape"].after) == ("F32 [4]", "F32 [2, 2]")


def test_the_other_way_round_and_against_itself(store: Store) -> None:
    forth, back = (compare(store, Ref.step(a), Ref.step(b)) for a, b in ((1, 2), (2, 1)))
    turned = {"added": "removed", "removed": "added", "changed": "changed"}
    assert [turned[c.kind] for c in forth.changes] == [c.kind for c in back.changes]
    itself = compare(store, "head", Ref.step(2), values=True)
    assert itself.same and itself.changes == [] and itself.bytes_different == 0
    assert all(change.max_abs is None for change in forth.changes)  # values were not asked for


def test_equal_means_equal_state_digests(store: Store) -> None:
    store.snapshot("two")
    with store.begin(3) as txn:
        txn.keep_rest()
        txn.commit()
    assert compare(store, "two", Ref.step(3)).same
    assert store.state_digest("two") == store.state_digest()


def test_a_part_without_tensors_counts(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run", "a", settings=SETTINGS) as store:
        commit(store, 1, a={"w": np.ones(1)})
        commit(store, 2, a={"w": np.ones(1)}, b={})
        found = compare(store, Ref.step(1), Ref.step(2))
        assert not found.same and found.changes == [] and found.parts_added == [("b", "p")]


FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_of_every_kind_are_compared_exactly(dtype: str) -> None:
    """Against torch's own widening, over random bits: NaNs and infinities among them."""
    one, other = (tensor_of(dtype, (64, 64), seed) for seed in (1, 2))
    wide, wide2 = one.to(torch.float64), other.to(torch.float64)
    distance = (wide - wide2).abs()
    same = (wide == wide2) | (wide.isnan() & wide2.isnan())
    finite = distance.isfinite() & ~same
    largest, odd = largest_difference(*(memoryview(bytes_of(t)) for t in (one, other)), dtype)
    assert largest == distance[finite].max().item() > 0
    assert odd == int((~finite & ~same).sum())
    assert (odd > 0) == (dtype in ("F16", "BF16", "F8_E4M3", "F8_E5M2") or odd > 0)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name[0] in "IU" or name == "BOOL"])
def test_integers_are_compared_without_overflow(dtype: str) -> None:
    one, other = (tensor_of(dtype, (64, 64), seed) for seed in (1, 2))
    pairs = zip(one.flatten().tolist(), other.flatten().tolist(), strict=True)
    expected = max(abs(int(a) - int(b)) for a, b in pairs)
    found = largest_difference(*(memoryview(bytes_of(t)) for t in (one, other)), dtype)
    assert found == (float(expected), 0)


def test_the_ends_of_a_range() -> None:
    ends = [memoryview(np.array([v], "i8").tobytes()) for v in (-(2**63), 2**63 - 1)]
    assert largest_difference(ends[0], ends[1], "I64") == (float(2**64 - 1), 0)
    inf = [memoryview(np.array(v, "f4").tobytes()) for v in
           ([math.inf, math.inf, math.nan, 1], [math.inf, -math.inf, 0, 1.5])]  # fmt: skip
    assert largest_difference(inf[0], inf[1], "F32") == (0.5, 2)
    both = [memoryview(np.array([v], "c8").tobytes()) for v in (3 + 4j, 0)]
    assert largest_difference(both[0], both[1], "C64") == (5.0, 0)


def test_pieces_do_not_hide_the_last_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardstore.compare._PIECE_ELEMENTS", 7)
    old, new = np.zeros(22, "f4"), np.zeros(22, "f4")
    new[21], new[3] = 3, 1
    views = (memoryview(old.tobytes()), memoryview(new.tobytes()))
    assert largest_difference(*views, "F32") == (3.0, 0)
    empty = memoryview(b"")
    assert largest_difference(empty, empty, "F32") == (0.0, 0)
