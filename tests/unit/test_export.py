"""Exported files: what other tools find in them, where they go, and that nothing is overwritten."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from shardstore import Store, UsageError
from shardstore.errors import NameTakenError, StorageError
from shardstore.exporting import plain
from shardstore.exporting.new_files import NewFiles
from shardstore.exporting.plain import chosen_parts, export_plain
from shardstore.importing.carrying import carry_out
from shardstore.importing.sources import Wishes, make_plan
from shardstore.plain_names import file_name
from tests.support.objects import bytes_of, tensor_of

DTYPES = (
    "F64",
    "F32",
    "F16",
    "BF16",
    "F8_E4M3",
    "F8_E5M2",
    "I64",
    "I8",
    "U16",
    "U8",
    "BOOL",
    "C64",
)
NAMES = ("block_000", "a/b", "../out", ".hidden", "Ä%2F", "x" * 1000)


def make_store(path: Path) -> None:
    with Store.open(path, "a") as store, store.begin(7) as txn:
        for number, name in enumerate(NAMES):
            tensors: dict[str, Any] = {d: tensor_of(d, (2, 3), number) for d in DTYPES}
            txn.stage(name, "params", {**tensors, "none": np.zeros((0, 2), "f4")})
            txn.stage(name, "optim", {"step": np.array(number)})
        txn.commit()


def exported(path: Path, target: Path, kind: str, **chosen: Any) -> list[plain.ExportedFile]:
    with Store.open(path) as store, store.pin() as view:
        keys = chosen_parts(view, chosen.get("shards", ()), chosen.get("parts", ()))
        return export_plain(view, str(target), kind, keys, lambda count: None)


@pytest.mark.req("S24")
@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_other_tools_read_every_part(tmp_path: Path, kind: str) -> None:
    make_store(tmp_path / "run")
    files = exported(tmp_path / "run", tmp_path / "out", kind)
    assert len(files) == 2 * len(NAMES)
    there = {path for path in tmp_path.rglob(f"*.{kind}") if "run" not in path.parts}
    assert there == {Path(file.path) for file in files}
    assert all(path.is_relative_to(tmp_path / "out") for path in there)
    with Store.open(tmp_path / "run") as store:
        for file in files:
            found = load_file(file.path) if kind == "safetensors" else torch.load(file.path)
            assert file.shard is not None and file.part is not None
            with store.load(file.shard, file.part) as loaded:
                assert set(found) == set(loaded.names)
                for name in loaded.names:
                    assert bytes_of(found[name]) == bytes(loaded.raw(name))
                if kind == "pt":
                    assert list(found) == list(loaded.names)


@pytest.mark.req("S24")
def test_what_was_exported_comes_back_under_its_names(tmp_path: Path) -> None:
    make_store(tmp_path / "run")
    files = exported(tmp_path / "run", tmp_path / "out", "safetensors")
    plan = make_plan([file.path for file in files], Wishes(step=7))
    with Store.open(tmp_path / "again", "a") as store, Store.open(tmp_path / "run") as first:
        carry_out(store, plan, replace=False, advance=lambda count: None)
        assert store.commit_of().step == 7
        assert store.state_digest() == first.state_digest()


@pytest.mark.req("S24")
def test_only_some_parts(tmp_path: Path) -> None:
    make_store(tmp_path / "run")
    files = exported(tmp_path / "run", tmp_path / "out", "pt", shards=["a/b"], parts=["optim"])
    assert [file.path for file in files] == [str(tmp_path / "out/optim/a%2Fb.pt")]
    for chosen, words in (
        ({"shards": ["nobody"]}, "no shard 'nobody'"),
        ({"parts": ["nothing"]}, "no part 'nothing'"),
    ):
        with pytest.raises(UsageError, match=words):
            exported(tmp_path / "run", tmp_path / "out", "pt", **chosen)


@pytest.mark.req("S24")
def test_nothing_is_overwritten_and_nothing_is_half_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path / "run")
    there = tmp_path / "out/optim/block_000.safetensors"
    there.parent.mkdir(parents=True)
    there.write_bytes(b"mine")
    with pytest.raises(NameTakenError, match=r"block_000.safetensors exists and is not"):
        exported(tmp_path / "run", tmp_path / "out", "safetensors")
    assert [p for p in (tmp_path / "out").rglob("*") if p.is_file()] == [there]
    assert there.read_bytes() == b"mine"

    calls = []

    def full(file: Any, loaded: Any, step: int) -> None:
        calls.append(loaded.shard)
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device", file.temporary)
        file.write(b"data")

    monkeypatch.setattr(plain, "_write_safetensors", full)
    with pytest.raises(
        StorageError, match=r"No space left on device; [1-9]\d* bytes needed, \d+ fr"
    ):
        exported(tmp_path / "run", tmp_path / "other", "safetensors")
    assert len(calls) == 4
    assert not [path for path in (tmp_path / "other").rglob("*") if path.is_file()]


def test_somebody_else_may_be_quicker(tmp_path: Path) -> None:
    """The file appears between the look and the name: neither it nor ours is spoilt."""
    with NewFiles(str(tmp_path), ["a", "b"]) as files:
        for name in ("a", "b"):
            file = files.open(name)
            file.write(b"ours")
            file.finish()
        (tmp_path / "b").write_bytes(b"theirs")
        with pytest.raises(NameTakenError, match="b exists and is not overwritten"):
            files.publish()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"b": b"theirs"}


@given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_names_become_distinct_files_that_stay_in_place(part: str, one: str, other: str) -> None:
    try:
        for name in (part, one, other):
            name.encode()
    except UnicodeEncodeError:
        return  # no name
    files = [file_name(shard, part, "pt") for shard in (one, other)]
    assert (files[0] == files[1]) is (one == other)
    for file in files:
        folder, name = file.split("/")
        assert folder not in ("", ".", "..") and not folder.startswith(".")
        assert name.isascii() and name.isprintable() and len(name) <= 210
        assert not set(file) & set('\\:*?"<>| \n')
