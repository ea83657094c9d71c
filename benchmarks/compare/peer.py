"""What a peer has to offer, and which peers there are.

Contract of `save`: everything durable on return, in an empty directory, or in the one that it used
before where it reuses space (`in_place`). Deleting old files is never timed. Contract of a
`Loader`: every tensor of `into` holds the saved bytes on return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.frame.state import ModelState


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """One way of loading what a peer saved."""

    name: str
    note: str
    load: Callable[[Path, ModelState], None]


class Peer(Protocol):
    """See the module's docstring."""

    name: str
    in_place: bool

    @property
    def note(self) -> str: ...

    def save(self, state: ModelState, directory: Path) -> dict[str, float] | None:
        """May return figures of its own, as a variant does."""

    def loaders(self) -> Sequence[Loader]: ...

    def close(self) -> None:
        """Let go of files, so that they can be put out of the cache."""


def peers() -> list[Peer]:
    """Those that are installed; the first three always are, with the development extras."""
    from benchmarks.compare import dcp, lmdb_env, optional, safetensors_files, torch_files

    always: list[Peer] = [
        torch_files.OneFile(),
        torch_files.FilePerShard(),
        safetensors_files.FilePerShard(),
        dcp.Saved(),
        dcp.SavedInBackground(),
    ]
    return [*always, *lmdb_env.installed(), *optional.installed()]


def missing() -> list[str]:
    """Peers that could not be asked, for the notes of a result."""
    from benchmarks.compare import lmdb_env, optional

    absent = [name for name in ("lmdb",) if not lmdb_env.installed()]
    return absent + optional.missing()
