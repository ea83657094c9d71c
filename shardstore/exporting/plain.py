"""A commit's parts as plain files: `PART/SHARD.safetensors` or `PART/SHARD.pt`.

Contract: a file holds the part's tensors under their names, bit for bit. A safetensors file says in
its metadata which shard, part and step it is, so that `shardstore import` puts it back under the
same names; a .pt file is one dict, as torch.load gives it, and needs torch to be written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardstore.codecs.pt import torch_side
from shardstore.errors import UsageError
from shardstore.exporting.new_files import NewFile, NewFiles
from shardstore.format.manifest import Part
from shardstore.format.names import PT
from shardstore.format.placement import LENGTH_BYTES, METADATA_KEY
from shardstore.format.safetensors_file import data_places
from shardstore.loaded import LoadedObject
from shardstore.pinned_view import PinnedView
from shardstore.plain_names import PART_KEY, SHARD_KEY, STEP_KEY, file_name

_ALIGNMENT_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """One file that was written."""

    path: str
    shard: str | None
    part: str | None
    bytes: int


def chosen_parts(view: PinnedView, shards: Sequence[str], parts: Sequence[str]) -> list[Part]:
    """The commit's parts, or those of the named shards and parts; each name has to be there."""
    every = sorted(view.commit.parts)
    for kind, place, names in (("shard", 0, shards), ("part", 1, parts)):
        for name in names:
            if all(key[place] != name for key in every):
                raise UsageError(f"step {view.commit.step} has no {kind} {name!r}")
    chosen = [
        key for key in every if (not shards or key[0] in shards) and (not parts or key[1] in parts)
    ]
    if not chosen:
        raise UsageError(f"step {view.commit.step} has no part of these names: nothing to export")
    return chosen


def export_plain(
    view: PinnedView,
    directory: str,
    storage_format: str,
    keys: Sequence[Part],
    advance: Callable[[int], None],
) -> list[ExportedFile]:
    """Write each part's file. All of them are there when this returns, or none."""
    write = _write_pt if storage_format == PT else _write_safetensors
    if storage_format == PT:
        torch_side("written")  # refuse before anything is made
    names = [file_name(*key, storage_format) for key in keys]
    done = []
    needed = sum(view.size_of(*key) for key in keys)
    with NewFiles(directory, names, needed) as files:
        for key, name in zip(keys, names, strict=True):
            file = files.open(name)
            with view.load(*key) as loaded:
                write(file, loaded, view.commit.step)
                size = sum(spec.nbytes for spec in loaded.specs)
            file.finish()
            advance(size)
            done.append(ExportedFile(path=file.path, shard=key[0], part=key[1], bytes=size))
        files.publish()
    return done


def _write_safetensors(file: NewFile, loaded: LoadedObject, step: int) -> None:
    places = data_places(loaded.specs)
    metadata = {SHARD_KEY: loaded.shard, PART_KEY: loaded.part, STEP_KEY: str(step)}
    members: dict[str, Any] = {METADATA_KEY: metadata}
    for spec in loaded.specs:
        members[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": list(places[spec.name]),
        }
    text = json.dumps(members, separators=(",", ":")).encode("ascii")
    text = text.ljust(-(-len(text) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
    file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    for name in places:
        file.write(loaded.raw(name))


def _write_pt(file: NewFile, loaded: LoadedObject, step: int) -> None:
    # Each view's storage is its own bytes alone: no tensor brings its neighbours along.
    torch_side("written").torch.save(loaded.torch(), file)
