"""Every tensor that can be stored comes back bit for bit in every storage format, and through
`convert`; other tools read the files.

Method: random bits in every dtype and arrangement of memory, staged from torch and from numpy into
stores of each format; the oracle copies element by element. The files of a store are then opened
with safetensors and with torch.load, which know nothing of shardstore.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from shardstore import Store
from shardstore.conversion import convert
from shardstore.errors import InvalidTensorError, UsageError
from shardstore.format.names import FORMATS
from shardstore.fs.memory import MemoryFileSystem
from tests.format.independent_reader import IndependentReader
from tests.support.objects import ARRANGEMENTS, DTYPES, arranged, bytes_of, tensor_of
from tests.support.stores import SETTINGS, object_files, open_store, tree

TORCH_ONLY = {"BF16", "F8_E4M3", "F8_E5M2"}


def table(dtype: str) -> dict[str, torch.Tensor]:
    """A tensor of every arrangement; the last three share one storage."""
    found = {kind: arranged(dtype, kind, (6, 7), 11) for kind in ARRANGEMENTS}
    base = tensor_of(dtype, (10,), 3)
    return {**found, "all": base, "tail": base[3:], "again": base}


def check_table(store: Store, given: dict[str, torch.Tensor], numpy_too: bool) -> None:
    with store.load("s", "torch") as loaded:
        assert loaded.names == tuple(given)
        for (name, stored), found in zip(given.items(), loaded.torch().values(), strict=True):
            assert (found.dtype, found.shape) == (stored.dtype, stored.shape)
            assert bytes_of(found) == bytes(loaded.raw(name)) == bytes_of(stored)
            assert found.is_contiguous()
    if numpy_too:
        with store.load("s", "numpy") as loaded:
            for name, array in loaded.numpy().items():
                assert (array.dtype, array.shape) == (given[name].numpy().dtype, given[name].shape)
                assert array.tobytes() == bytes_of(given[name])


@pytest.mark.req("S9")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage_format", FORMATS)
def test_the_table_in_every_format_and_through_convert(storage_format: str, dtype: str) -> None:
    fs, given, numpy_too = MemoryFileSystem(), table(dtype), dtype not in TORCH_ONLY
    with open_store(fs, format=storage_format) as store:
        with store.begin(4) as txn:
            txn.stage("s", "torch", given)
            if numpy_too:
                txn.stage("s", "numpy", {name: tensor.numpy() for name, tensor in given.items()})
            txn.commit(metadata={"loss": 2.5}, blobs={"b": b"\x00\x01"})
        check_table(store, given, numpy_too)
        digest, first = store.state_digest(), store.head
        assert {row.format for row in store.objects()} == {storage_format}
    for other in (*FORMATS, storage_format):
        with open_store(fs, format=other) as store:
            done = convert(store, lambda _count: None)
            check_table(store, given, numpy_too)
            assert {row.format for row in store.objects()} == {other}
            assert store.state_digest() == done.state_digest == digest
            head = store.head
            assert head is not None and first is not None
            assert (head.step, head.metadata, head.blobs) == (4, first.metadata, first.blobs)
    assert {name.rpartition(".")[2] for name in object_files(fs)} >= {other, storage_format}


@pytest.mark.req("S9", "S20")
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_table_archived_alone_and_as_a_difference(dtype: str) -> None:
    fs, given = MemoryFileSystem(), table(dtype)
    numpy_too = dtype not in TORCH_ONLY
    with open_store(fs) as store:
        for step in (1, 2):
            with store.begin(step) as txn:
                txn.stage("s", "torch", {**given, "step": torch.tensor(step)})
                if numpy_too:
                    txn.stage("s", "numpy", {name: t.numpy() for name, t in given.items()})
                txn.commit()
            store.snapshot(f"s{step}")
        digests = [store.state_digest(f"s{step}") for step in (1, 2)]
        assert store.archive("s1").deltas == 0
        done = store.archive("s2", against="s1")
        assert (done.deltas, done.shared) == (1, int(numpy_too))
    with open_store(fs) as store:
        for step in (2, 1):
            assert {row.format for row in store.objects(f"s{step}")} == {"archive"}
            with store.load("s", "torch", f"s{step}") as loaded:
                for name, found in list(loaded.torch().items())[:-1]:
                    assert (found.dtype, found.shape) == (given[name].dtype, given[name].shape)
                    assert bytes_of(found) == bytes_of(given[name])
        assert [store.state_digest(f"s{step}") for step in (1, 2)] == digests


@pytest.mark.req("S9")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("storage_format", FORMATS)
def test_only_what_cannot_be_kept_is_refused_by_name_and_nothing_is_written(
    storage_format: str,
) -> None:
    refused: dict[str, Any] = {
        "sparse": torch.ones(2, 2).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "C128": torch.ones(2, dtype=torch.complex128),
        "meta": torch.ones(2, device="meta"),
        "subclass": torch.ones(2).as_subclass(type("Sub", (torch.Tensor,), {})),
        "objects": np.array([object()]),
        "strings": np.array(["a"]),
        "dates": np.array(["2020-01-01"], "M8[D]"),
    }
    fs = MemoryFileSystem()
    with open_store(fs, format=storage_format) as store, store.begin(1) as txn:
        before = tree(fs)
        for name, tensor in refused.items():
            with pytest.raises(InvalidTensorError, match=f"'s' part 'p' tensor '{name}'"):
                txn.stage("s", "p", {"good": torch.ones(2), name: tensor})
        assert tree(fs) == before


PARTS: dict[tuple[str, str], dict[str, Any]] = {
    ("block_000", "params"): {
        "half": torch.linspace(-1, 1, 9).to(torch.bfloat16),
        "0.weight": torch.arange(35, dtype=torch.float32).reshape(5, 7).t(),
        "f8": torch.arange(3, dtype=torch.float32).to(torch.float8_e4m3fn),
        "none": torch.zeros(0, 4),
        "u16": torch.tensor([1, 2**16 - 1], dtype=torch.uint16),
    },
    ("../odd", "ü"): {
        "mask": np.array([True, False, True]),
        "count": np.array(7, np.int64),
        "z": np.array([1j, 2], np.complex64),
    },
    ("empty", "part"): {},
}


def make(root: Path, storage_format: str) -> None:
    with Store.open(root, "a", settings=SETTINGS, format=storage_format) as store:
        for step in (1, 2, 3):
            with store.begin(step) as txn:
                for key, tensors in PARTS.items():
                    txn.stage(*key, tensors)
                txn.commit()
        store.snapshot("kept")


def check_foreign_file(metadata: dict[str, str], found: dict[str, torch.Tensor]) -> None:
    given = PARTS[metadata["shard"], metadata["part"]]
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        wanted = tensor if isinstance(tensor, torch.Tensor) else torch.from_numpy(tensor)
        assert (found[name].dtype, found[name].shape) == (wanted.dtype, wanted.shape)
        assert bytes_of(found[name]) == bytes_of(wanted)


@pytest.mark.req("S9")
def test_safetensors_files_are_read_by_safetensors(tmp_path: Path) -> None:
    make(tmp_path / "run", "safetensors")
    paths = sorted((tmp_path / "run" / "objects").glob("*.safetensors"))
    assert len(paths) == 3 * len(PARTS)  # three sets of slots in the steady state
    for path in paths:
        with safe_open(path, framework="pt") as opened:
            found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            check_foreign_file(opened.metadata(), found)


@pytest.mark.req("S9")
def test_pt_files_are_read_by_torch_with_weights_only(tmp_path: Path) -> None:
    make(tmp_path / "run", "pt")
    paths = sorted((tmp_path / "run" / "objects").glob("*.pt"))
    assert len(paths) == 3 * len(PARTS)
    for path in paths:
        found = torch.load(path, weights_only=True)
        metadata = found.pop("__metadata__")
        assert all(type(value) is str for value in metadata.values())
        check_foreign_file(metadata, found)
        assert list(found) == list(PARTS[metadata["shard"], metadata["part"]])
        for tensor in found.values():
            assert tensor.untyped_storage().nbytes() == tensor.nbytes


@pytest.mark.req("S9", "S10")
@pytest.mark.parametrize("storage_format", FORMATS)
def test_the_independent_reader_reads_every_format(tmp_path: Path, storage_format: str) -> None:
    make(tmp_path / "run", storage_format)
    with Store.open(tmp_path / "run") as store:
        digest = store.state_digest()
    reader = IndependentReader(tmp_path / "run")
    commit = reader.commit()
    assert reader.state_digest(commit) == reader.state_digest(reader.commit("kept")) == digest
    assert {reference[6] for _, _, reference in commit["manifest"]} == {storage_format}


@pytest.mark.req("S10", "S20")
def test_the_independent_reader_reads_archives(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with Store.open(root, "a", settings=SETTINGS) as store:
        for step in range(1, 6):
            with store.begin(step) as txn:
                for key, tensors in PARTS.items():
                    extra = {"step": np.array(step), "big": np.arange(3000.0) + step}
                    txn.stage(*key, {**tensors, **extra})
                txn.commit()
            store.snapshot(f"s{step}")
        names = [f"s{step}" for step in range(1, 6)]
        digests = {name: store.state_digest(name) for name in names}
        store.archive("s1")
        assert store.archive("s2").deltas == len(PARTS)
        store.archive("s3", against="s5")
        store.rewind("s2")
        store.delete("s1")
        store.delete("s4")
        store.undo()
    for _ in range(2):
        reader = IndependentReader(root)
        for name in names[1:]:
            assert reader.state_digest(reader.commit(name)) == digests[name]
        formats = {reference[6] for _, _, reference in reader.commit("s2")["manifest"]}
        assert formats == {"archive"}
        assert reader.check_history() >= 1
        Store.open(root, "r+", settings=SETTINGS).close()  # the next opening restates it


@pytest.mark.req("S9")
def test_a_view_of_a_large_storage_is_stored_alone() -> None:
    large = torch.zeros(1_000_000)
    for storage_format in FORMATS:
        with open_store(format=storage_format) as store:
            with store.begin(1) as txn:
                txn.stage("s", "p", {"a": large[5:10], "b": large[7:9]})
                txn.commit()
            (row,) = store.objects()
            assert row.bytes <= 8192


@pytest.mark.req("S9")
def test_an_unknown_format_is_refused() -> None:
    fs = MemoryFileSystem()
    with pytest.raises(UsageError, match=r"'zip' is not known; expected one of raw, safetensors"):
        open_store(fs, format="zip")
    open_store(fs).close()
    with pytest.raises(UsageError, match="mode 'r' writes none"):
        open_store(fs, mode="r", format="pt")
