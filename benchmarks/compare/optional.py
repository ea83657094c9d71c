"""Peers that need packages of their own: orbax, torchsnapshot, tensorstore, where installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.compare.peer import Loader, Peer
from benchmarks.frame.disk import sync_tree
from benchmarks.frame.state import ModelState


class TorchSnapshot:
    name = "torchsnapshot"
    note = "Snapshot.take to a new directory, then every file and directory synced"
    module = "torchsnapshot"
    in_place = False

    def save(self, state: ModelState, directory: Path) -> None:
        package = importlib.import_module(self.module)
        held = package.StateDict(**state.flat())
        package.Snapshot.take(path=str(directory), app_state={"state": held})
        sync_tree(directory)

    def loaders(self) -> Sequence[Loader]:
        return [Loader(name="torchsnapshot restore", note="in place", load=self._load)]

    def _load(self, directory: Path, into: ModelState) -> None:
        package = importlib.import_module(self.module)
        held = package.StateDict(**into.flat())
        package.Snapshot(path=str(directory)).restore({"state": held})

    def close(self) -> None:
        """Holds no file."""


class Orbax:
    name = "orbax"
    note = "PyTreeCheckpointer (OCDBT) over arrays of host memory, then everything synced"
    module = "orbax"
    in_place = False

    def save(self, state: ModelState, directory: Path) -> None:
        ocp = importlib.import_module("orbax.checkpoint")
        with ocp.PyTreeCheckpointer(use_ocdbt=True) as checkpointer:
            checkpointer.save(directory.resolve() / "state", _arrays(state))
        sync_tree(directory)

    def loaders(self) -> Sequence[Loader]:
        note = "PyTreeCheckpointer.restore, copied into resident tensors"
        return [Loader(name="orbax restore + copy", note=note, load=self._load)]

    def _load(self, directory: Path, into: ModelState) -> None:
        ocp = importlib.import_module("orbax.checkpoint")
        with ocp.PyTreeCheckpointer(use_ocdbt=True) as checkpointer:
            loaded = checkpointer.restore(directory.resolve() / "state")
        for name, target in _arrays(into).items():
            target[...] = loaded[name]

    def close(self) -> None:
        """Holds no file."""


class TensorStore:
    name = "tensorstore"
    note = "a zarr3 array of one chunk per tensor, all writes at once, synced by its file driver"
    module = "tensorstore"
    in_place = False

    def save(self, state: ModelState, directory: Path) -> None:
        arrays = _arrays(state)
        opened = [
            self._open(directory, name, dtype=str(array.dtype), shape=list(array.shape))
            for name, array in arrays.items()
        ]
        pairs = zip(opened, arrays.values(), strict=True)
        for written in [store.result().write(array) for store, array in pairs]:
            written.result()
        sync_tree(directory)

    def loaders(self) -> Sequence[Loader]:
        note = "all reads at once, copied into resident tensors"
        return [Loader(name="tensorstore + copy", note=note, load=self._load)]

    def _load(self, directory: Path, into: ModelState) -> None:
        arrays = _arrays(into)
        opened = [self._open(directory, name) for name in arrays]
        reads = [store.result().read() for store in opened]
        for read, target in zip(reads, arrays.values(), strict=True):
            target[...] = read.result()

    def _open(self, directory: Path, name: str, **new: Any) -> Any:
        ts = importlib.import_module(self.module)
        place = {"driver": "file", "path": f"{directory.resolve()}/{name}/"}
        options = {"create": True, **new} if new else {"open": True}
        if new:
            options["chunk_layout"] = ts.ChunkLayout(chunk_shape=new["shape"])
        return ts.open({"driver": "zarr3", "kvstore": place}, **options)

    def close(self) -> None:
        """Holds no file."""


def installed() -> list[Peer]:
    return [kind() for kind in (Orbax, TorchSnapshot, TensorStore) if _is_there(kind.module)]


def missing() -> list[str]:
    return [k.name for k in (Orbax, TorchSnapshot, TensorStore) if not _is_there(k.module)]


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _arrays(state: ModelState) -> dict[str, Any]:
    """The tensors as numpy arrays over the same memory; names keep their order."""
    return {name: _plain(tensor) for name, tensor in state.flat().items()}


def _plain(tensor: torch.Tensor) -> Any:
    return tensor.detach().numpy()
