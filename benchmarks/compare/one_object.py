"""One object in each format: as a file of its own, and in a store.

Run as a module it prints the peak memory of one save or load, for `benchmarks.formats`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save_file

from benchmarks.compare.ours import forget_cached, open_store, setting_names
from benchmarks.frame.disk import sync_directories, sync_file
from benchmarks.frame.memory import peak_beyond
from benchmarks.frame.state import Tensors, make_state
from shardstore import Store

FORMAT_SETTING = "storage_format"
SHARD, PART = "block_000", "optim"


class Way(Protocol):
    """`save` is durable on return; `load` leaves tensors in memory that was touched before."""

    note: str

    def save(self, tensors: Tensors) -> None: ...

    def load(self, into: Tensors) -> None: ...

    def forget(self) -> None:
        """What the way itself has cached."""

    def close(self) -> None: ...


class PtFile:
    note = "a new file each time, synced; load with weights_only, copied into resident tensors"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "object.pt"

    def save(self, tensors: Tensors) -> None:
        self._path.unlink(missing_ok=True)
        torch.save(tensors, self._path)
        sync_file(self._path)
        sync_directories(self._path.parent)

    def load(self, into: Tensors) -> None:
        _copy(torch.load(self._path, weights_only=True), into)

    def forget(self) -> None:
        """Has no cache."""

    def close(self) -> None:
        """Holds no file."""


class SafetensorsFile:
    note = "a new file each time, synced; load_file, copied into resident tensors"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "object.safetensors"

    def save(self, tensors: Tensors) -> None:
        self._path.unlink(missing_ok=True)
        save_file(tensors, self._path)
        sync_file(self._path)
        sync_directories(self._path.parent)

    def load(self, into: Tensors) -> None:
        _copy(load_file(self._path), into)

    def forget(self) -> None:
        """Has no cache."""

    def close(self) -> None:
        """Holds no file."""


class InStore:
    """A store of one part."""

    note = "a commit of one part, with digests and log; load verified, tensors are views"

    def __init__(self, directory: Path, storage_format: str) -> None:
        self._path = directory / "run"
        self._settings = {FORMAT_SETTING: storage_format}
        self._opened: Store | None = None

    @property
    def _store(self) -> Store:
        if self._opened is None:
            self._opened = open_store(self._path, "a", self._settings)
        return self._opened

    def save(self, tensors: Tensors) -> None:
        head = self._store.head
        with self._store.begin(head.step + 1 if head else 1) as transaction:
            transaction.stage(SHARD, PART, tensors)
            transaction.commit()

    def load(self, into: Tensors) -> None:
        with self._store.load(SHARD, PART) as loaded:
            loaded.torch()

    def forget(self) -> None:
        forget_cached(self._store)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def ways() -> dict[str, Callable[[Path], Way]]:
    """Name -> how to make one in a directory."""
    stored = ("raw", "safetensors", "pt") if FORMAT_SETTING in setting_names() else ("raw",)
    found: dict[str, Callable[[Path], Way]] = {
        ".pt file": PtFile,
        "safetensors file": SafetensorsFile,
    }
    for name in stored:
        found[f"store, {name}"] = partial(InStore, storage_format=name)
    return found


def make_object(model: str) -> Tensors:
    return make_state(model).parts[SHARD, PART]


def _copy(loaded: Tensors, into: Tensors) -> None:
    for name, target in into.items():
        target.copy_(loaded[name])


def main() -> None:
    name, model, directory, action = sys.argv[1:]
    tensors = make_object(model)
    way = ways()[name](Path(directory))
    act = {"save": lambda: way.save(tensors), "load": lambda: way.load(tensors)}[action]
    print(peak_beyond(act))
    way.close()


if __name__ == "__main__":
    main()
