"""Small stores for tests: one-tensor parts whose content is a number, on memory or a directory."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardstore.context import Settings
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.refs import Ref
from shardstore.store import Store
from shardstore.views import Commit

ROOT = "run"
SETTINGS = Settings(prewrite_bytes=32 * 1024, host_budget_bytes=0)
PARTS = (("a", "params"), ("a", "optim"), ("b", "params"))


def open_store(fs: FileSystem | None = None, mode: Any = "a", **options: Any) -> Store:
    options.setdefault("settings", SETTINGS)
    return Store.open(ROOT, mode, fs=fs or MemoryFileSystem(), **options)


def content(value: int) -> dict[str, Any]:
    """Tensors that only this value gives."""
    return {"w": np.full((4, 5), value, "f4"), "n": np.array(value, "i8")}


def commit(store: Store, step: int, value: int | None = None, **options: Any) -> Commit:
    """Stage every part with `value` (the step by default) and commit."""
    with store.begin(step) as txn:
        for index, (shard, part) in enumerate(PARTS):
            txn.stage(shard, part, content((step if value is None else value) * 10 + index))
        return txn.commit(**options)


def head_step(store: Store) -> int:
    assert store.head is not None
    return store.head.step


def value_of(store: Store, shard: str, part: str, at: Ref | str = Ref.head) -> int:
    """The number a part holds, after checking that all of it says so."""
    with store.load(shard, part, at) as loaded:
        arrays = loaded.numpy()
        value = int(arrays["n"])
        assert (arrays["w"] == value).all()
        return value


def values(store: Store, at: Ref | str = Ref.head) -> dict[tuple[str, str], int]:
    """What every part of a commit holds."""
    return {key: value_of(store, *key, at) for key in sorted(store.commit_of(at).parts)}


def expected(step: int) -> dict[tuple[str, str], int]:
    """What `values` gives after `commit(store, step)`."""
    return {key: step * 10 + index for index, key in sorted(enumerate(PARTS), key=lambda p: p[1])}


def object_files(fs: FileSystem) -> list[str]:
    return fs.list_directory(f"{ROOT}/objects")


def tree(fs: FileSystem, path: str = ROOT) -> dict[str, bytes]:
    """Every file below a directory."""
    found: dict[str, bytes] = {}
    for name in fs.list_directory(path):
        inner = f"{path}/{name}"
        stat = fs.stat(inner)
        if stat.is_directory:
            found |= tree(fs, inner)
        else:
            buffer = bytearray(stat.size)
            file = fs.open(inner, "read")
            file.pread(0, buffer)
            file.close()
            found[inner] = bytes(buffer)
    return found


def after_power_cut(fs: MemoryFileSystem) -> MemoryFileSystem:
    """The machine after a power cut that took everything that was not synced."""
    return next(iter(fs.power_cuts(limit=1)))
