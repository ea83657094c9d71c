"""LMDB: a value per tensor, one synced transaction. It reuses its pages, as the store its slots."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.compare.peer import Loader, Peer
from benchmarks.frame.state import ModelState

MAP_FACTOR = 5
"""Of the state's size: two versions of every value, and what fragments."""
MAP_FLOOR = 64 << 20
# Values are views of a map that must not be written to; they are only copied from.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


class PutPerTensor:
    in_place = True

    def __init__(self, *, writemap: bool) -> None:
        self._writemap = writemap
        self._environments: dict[Path, Any] = {}
        self.name = "LMDB, writemap" if writemap else "LMDB"
        how = "written through the map" if writemap else "written by calls"
        self.note = f"a put per tensor, one synced transaction over reused pages, {how}"

    def save(self, state: ModelState, directory: Path) -> None:
        environment = self._open(directory, state.bytes)
        with environment.begin(write=True) as transaction:
            for name, tensor in state.flat().items():
                transaction.put(name.encode(), _bytes(tensor).numpy().data)

    def loaders(self) -> Sequence[Loader]:
        if self._writemap:
            return []  # reading is the same
        note = "get of each tensor as a view of the map, copied into resident tensors"
        return [Loader(name="LMDB + copy", note=note, load=self._load)]

    def close(self) -> None:
        for environment in self._environments.values():
            environment.close()
        self._environments.clear()

    def _load(self, directory: Path, into: ModelState) -> None:
        environment = self._open(directory, into.bytes)
        with environment.begin(buffers=True) as transaction:
            for name, target in into.flat().items():
                value = torch.frombuffer(transaction.get(name.encode()), dtype=torch.uint8)
                _bytes(target).copy_(value)

    def _open(self, directory: Path, state_bytes: int) -> Any:
        import lmdb

        if directory not in self._environments:
            self._environments[directory] = lmdb.open(
                str(directory),
                map_size=MAP_FACTOR * state_bytes + MAP_FLOOR,
                writemap=self._writemap,
            )
        return self._environments[directory]


def installed() -> list[Peer]:
    if importlib.util.find_spec("lmdb") is None:
        return []
    return [PutPerTensor(writemap=False), PutPerTensor(writemap=True)]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
