"""safetensors: a file per shard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file

from benchmarks.compare.peer import Loader
from benchmarks.frame.disk import sync_directories, sync_file
from benchmarks.frame.state import ModelState


class FilePerShard:
    name = "safetensors, a file per shard"
    note = "save_file to new files, each synced, directory synced"
    in_place = False

    def save(self, state: ModelState, directory: Path) -> None:
        paths = [directory / f"{shard}.safetensors" for shard in state.shards]
        for shard, path in zip(state.shards, paths, strict=True):
            save_file(state.of_shard(shard), path)
        for path in paths:
            sync_file(path)
        sync_directories(directory)

    def loaders(self) -> Sequence[Loader]:
        note = "load_file of each shard, copied into resident tensors"
        return [Loader(name="safetensors + copy", note=note, load=_load)]

    def close(self) -> None:
        """Holds no file."""


def _load(directory: Path, into: ModelState) -> None:
    for shard in into.shards:
        loaded = load_file(directory / f"{shard}.safetensors")
        for name, target in into.of_shard(shard).items():
            target.copy_(loaded[name])
