"""torch.distributed.checkpoint: save with the best number of threads, async_save, load."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from benchmarks.compare.peer import Loader
from benchmarks.frame.disk import fresh_directory, settle, sync_directories
from benchmarks.frame.state import ModelState

THREADS_TRIED = (1, 2, 4)
# Its threads too warn that there is no process group, which is meant.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")


class Saved:
    name = "DCP save"
    in_place = False

    def __init__(self) -> None:
        self.threads: int | None = None

    @property
    def note(self) -> str:
        best = f"best of {THREADS_TRIED} threads"
        chosen = f" ({self.threads})" if self.threads else ""
        return f"FileSystemWriter with sync_files to a new directory, {best}{chosen}"

    def save(self, state: ModelState, directory: Path) -> None:
        if self.threads is None:
            self.threads = best_threads(state, directory)
        save(state.flat(), storage_writer=_writer(directory, self.threads), no_dist=True)
        sync_directories(directory)

    def loaders(self) -> Sequence[Loader]:
        note = "FileSystemReader, into resident tensors"
        return [Loader(name="DCP load", note=note, load=_load)]

    def close(self) -> None:
        """Holds no file."""


class SavedInBackground:
    """The caller goes on once the state is copied; `blocked_s` is how long that took."""

    name = "DCP async_save"
    note = "until durable; the caller may go on after the time given as blocked"
    in_place = False

    def __init__(self) -> None:
        self._threads: int | None = None

    def save(self, state: ModelState, directory: Path) -> dict[str, float]:
        if self._threads is None:
            self._threads = best_threads(state, directory)
        began = time.perf_counter()
        writer = _writer(directory, self._threads)
        future = async_save(state.flat(), storage_writer=writer, no_dist=True)
        blocked = time.perf_counter() - began
        # With the default settings it is a Future, not an AsyncSaveResponse.
        future.result()  # type: ignore[union-attr]
        sync_directories(directory)
        return {"seconds": time.perf_counter() - began, "blocked_s": blocked}

    def loaders(self) -> Sequence[Loader]:
        return []

    def close(self) -> None:
        """Holds no file."""


def best_threads(state: ModelState, directory: Path) -> int:
    """Tried once, the better of two times each; the directory is fresh afterwards."""
    taken: dict[int, float] = {}
    for threads in THREADS_TRIED * 2:
        fresh_directory(directory)
        settle()
        began = time.perf_counter()
        save(state.flat(), storage_writer=_writer(directory, threads), no_dist=True)
        taken[threads] = min(time.perf_counter() - began, taken.get(threads, float("inf")))
    shutil.rmtree(directory)
    fresh_directory(directory)
    return min(taken, key=lambda threads: taken[threads])


def _load(directory: Path, into: ModelState) -> None:
    load(into.flat(), storage_reader=FileSystemReader(directory), no_dist=True)


def _writer(directory: Path, threads: int) -> FileSystemWriter:
    return FileSystemWriter(directory, thread_count=threads, sync_files=True)
