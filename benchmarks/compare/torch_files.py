"""torch.save: the whole state in one file, or a file per shard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.compare.peer import Loader
from benchmarks.frame.disk import sync_directories, sync_file
from benchmarks.frame.state import ModelState


class OneFile:
    name = "torch.save, one file"
    note = "torch.save of a dict of all tensors to a new file, synced, directory synced"
    in_place = False

    def save(self, state: ModelState, directory: Path) -> None:
        path = directory / "state.pt"
        torch.save(state.flat(), path)
        sync_file(path)
        sync_directories(directory)

    def loaders(self) -> Sequence[Loader]:
        return [
            Loader(
                name="torch.load(mmap) + copy",
                note="one file, weights_only, copied into resident tensors",
                load=lambda directory, into: _load(directory, into, mmap=True),
            ),
            Loader(
                name="torch.load + copy",
                note="one file, weights_only, copied into resident tensors",
                load=lambda directory, into: _load(directory, into, mmap=False),
            ),
        ]

    def close(self) -> None:
        """Holds no file."""


class FilePerShard:
    name = "torch.save, a file per shard"
    note = "as above, new files, each synced, directory synced"
    in_place = False

    def save(self, state: ModelState, directory: Path) -> None:
        paths = [directory / f"{shard}.pt" for shard in state.shards]
        for shard, path in zip(state.shards, paths, strict=True):
            torch.save(state.of_shard(shard), path)
        for path in paths:
            sync_file(path)
        sync_directories(directory)

    def loaders(self) -> Sequence[Loader]:
        return []  # the same as from one file

    def close(self) -> None:
        """Holds no file."""


def _load(directory: Path, into: ModelState, *, mmap: bool) -> None:
    loaded: dict[str, Any] = torch.load(directory / "state.pt", mmap=mmap, weights_only=True)
    for name, target in into.flat().items():
        target.copy_(loaded[name])
