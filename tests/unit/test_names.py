"""Names are data: whatever they look like, they come back distinct, or are refused up front."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore import Ref, Store
from shardstore.errors import InvalidNameError
from shardstore.format.names import (
    check_data_name,
    check_ref_name,
    segment_file,
    segment_index,
    slot_file,
    slot_of,
)
from shardstore.fs.memory import MemoryFileSystem
from tests.support.stores import SETTINGS, content, open_store, value_of

pytestmark = pytest.mark.req("S25")

NFC = unicodedata.normalize("NFC", "blöck")
NFD = unicodedata.normalize("NFD", "blöck")
ODD = [
    *("../x", "/etc/x", "a", "a/b", "A", "a\\b", ".", "..", "CON", "a.", "a ", " a", "-rf", "~"),
    *("0.weight", "a\nb", "\x01", "\u202e", "😀", "x" * 300, "y" * 1024, "é" * 512, NFC, NFD),
    *("__snapshot", "__pad_x__", "__pad___", "head", "main", '"header":"', "{}", "%s", "\x7f"),
]
REFUSED: list[Any] = ["", "a\0b", "\0", "\ud800", "z" * 1025, "é" * 513, "__metadata__",
                      "__pad_0__", "__pad_12__", None, 3, b"a", ("a",)]  # fmt: skip


def test_odd_names_of_shards_parts_and_tensors_come_back_distinct(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.open(root, "a", settings=SETTINGS) as store, store.begin(1) as txn:
        for value, name in enumerate(ODD):
            txn.stage(name, "p", content(value))
            txn.stage("s", name, content(1000 + value))
        txn.stage("t", "p", {name: np.array(value, "i8") for value, name in enumerate(ODD)})
        txn.commit()
    with Store.open(root) as store:
        assert store.head is not None and len(store.head.parts) == 2 * len(ODD) + 1
        for value, name in enumerate(ODD):
            assert value_of(store, name, "p") == value
            assert value_of(store, "s", name) == 1000 + value
        with store.load("t", "p") as loaded:
            assert {name: int(array) for name, array in loaded.numpy().items()} == {
                name: value for value, name in enumerate(ODD)
            }
    assert os.listdir(tmp_path) == ["store"]
    assert all(slot_of(name) is not None for name in os.listdir(root / "objects"))


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_what_cannot_be_a_name_is_refused_before_anything_is_written(name: Any) -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store, store.begin(1) as txn:
        before = len(fs.log)
        for call in (
            lambda: txn.stage(name, "p", content(1)),
            lambda: txn.stage("s", name, content(1)),
            lambda: txn.stage("s", "p", {name: np.zeros(1)}),
            lambda: txn.load(name, "p"),
            lambda: txn.checkout("s", name),
            lambda: txn.keep(name, "p"),
            lambda: txn.remove("s", name),
        ):
            with pytest.raises(InvalidNameError):
                call()
        with pytest.raises(InvalidNameError):
            txn.commit(blobs={name: b"x"})
        assert len(fs.log) == before
        txn.abort()
        with pytest.raises(InvalidNameError):
            store.begin(1, expect=[(name, "p")])
        with store.begin(1) as second:  # the refused begin left nothing open
            second.abort()


def test_the_shard_of_snapshots_is_reserved_and_hidden() -> None:
    with pytest.raises(InvalidNameError, match="reserved"):
        check_data_name("shard", "__snapshot__")
    assert check_data_name("part", "__snapshot__") == "__snapshot__"
    with open_store() as store:
        with store.begin(1) as txn:
            txn.stage("a", "p", content(1))
            txn.commit()
        digest = store.state_digest()
        store.snapshot("best")
        assert {row.shard for row in store.tensors("best")} == {"a"}
        assert store.state_digest("best") == digest
        with store.begin(2) as txn:
            txn.keep_rest()
            assert txn.commit().parts == {("a", "p")}


@given(st.text(min_size=1, max_size=40))
def test_a_name_is_either_refused_or_kept_as_it_is(name: str) -> None:
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded or name in ("__metadata__", "__snapshot__"):
        with pytest.raises(InvalidNameError):
            check_data_name("shard", name)
    elif not name.startswith("__pad_"):
        assert check_data_name("shard", name) is name


@pytest.mark.parametrize("name", ["best", "_", "step_00000012", "a.b-c_d", "main2", "x" * 255])
def test_names_of_snapshots(name: str) -> None:
    assert check_ref_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "head", "1a", "-a", ".a", "a b", "a/b", "a\n", "ä", "a:1", "x" * 256, None, 3],
    ids=ascii,
)  # fmt: skip
def test_what_cannot_name_a_snapshot_is_refused(name: Any) -> None:
    with pytest.raises(InvalidNameError):
        check_ref_name(name)
    with open_store() as store:
        with store.begin(1) as txn:
            txn.stage("a", "p", content(1))
            txn.commit()
        if name is not None:  # None means the name after the step
            with pytest.raises(InvalidNameError):
                store.snapshot(name)
        assert store.snapshots == []
        assert store.commit_of(Ref.head).step == 1


def test_files_are_named_by_numbers_and_read_back() -> None:
    for number in (0, 1, 0xABCDEF, 0x1234567):
        for ending in ("raw", "safetensors", "pt"):
            name = slot_file(number, ending).removeprefix("objects/")
            assert slot_of(name) == (number, ending)
        assert segment_index(segment_file(number).removeprefix("wal/")) == number
    for foreign in (
        "tmp",
        "00000.raw",
        "0000001.raw",
        "00000A.raw",
        "000000.raw.tmp",
        "000000.p",
        "x",
    ):
        assert slot_of(foreign) is None
        assert segment_index(foreign) is None
