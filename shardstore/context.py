"""What the parts of one open store share: where it is, who works for it, and whether it may go on.

Locks: `calls` is held by whoever changes the store, for as long as the change takes; `mutex` is
held for moments, by any thread, around slots and states. Whoever holds `mutex` waits for nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shardstore.buffers import PAGE_BYTES
from shardstore.errors import ClosedError, PoisonedError, StorageError, UsageError
from shardstore.format.names import FORMATS, RAW
from shardstore.fs.calls import storage_error
from shardstore.fs.protocol import FileSystem
from shardstore.objects import PIECE_BYTES
from shardstore.wal.writer import COMMITS_PER_SEGMENT, PREWRITE_BYTES, SEGMENT_BYTES
from shardstore.workers import Workers, make_workers

Trace = Callable[[str, Mapping[str, Any]], None]
"""Called with an event's name and fields, on the thread that acts, before it acts."""
Durability = Literal["commit", "deferred"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What may differ between openings of the same store."""

    durability: Durability = "commit"
    """commit: each commit is durable when it returns. deferred: each survives the end of its
    process, and is durable after `sync`, snapshots and other refs, every `sync_every` commits and
    close."""
    sync_every: int = 100
    """Commits between two durable ones when deferred."""
    host_budget_bytes: int | None = None
    """Memory for buffers that the store holds by its own will: staged, prefetched and cached
    objects. None: a quarter of the machine's. What callers hold open is not refused."""
    io_threads: int | None = None
    """Pieces in flight; 0 makes every call where it is asked for. None: 2, and 0 on a file system
    whose calls do not overlap."""
    piece_bytes: int = PIECE_BYTES
    """Size of one transfer, a multiple of 4,096."""
    commits_in_flight: int = 2
    """Asynchronous commits that may be unfinished; the next one waits."""
    prewrite_bytes: int = PREWRITE_BYTES
    """Zeros written ahead of the log's end."""
    commits_per_segment: int = COMMITS_PER_SEGMENT
    segment_bytes: int = SEGMENT_BYTES
    """A segment that is longer than this, or holds that many commits, is succeeded."""
    storage_format: str = RAW
    """What new objects are written as: raw, safetensors or pt; those of snapshots are raw."""
    trace: Trace | None = None
    workers: Workers | None = None
    """Instead of threads of the store's own."""

    def __post_init__(self) -> None:
        if self.durability not in ("commit", "deferred"):
            raise UsageError(f"durability is {self.durability!r}, expected 'commit' or 'deferred'")
        if self.storage_format not in FORMATS:
            raise UsageError(
                f"storage format {self.storage_format!r} is not known; expected one of "
                f"{', '.join(FORMATS)}"
            )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name in ("host_budget_bytes", "io_threads"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"{name} is {value!r}, expected an integer of {least} or more")
        if self.piece_bytes % PAGE_BYTES:
            raise UsageError(
                f"piece_bytes is {self.piece_bytes}, expected a multiple of {PAGE_BYTES}"
            )


_LEAST = {
    "sync_every": 1,
    "host_budget_bytes": 0,
    "io_threads": 0,
    "piece_bytes": PAGE_BYTES,
    "commits_in_flight": 1,
    "prewrite_bytes": 0,
    "commits_per_segment": 1,
    "segment_bytes": 1,
}
"""Settings that are numbers, and the smallest that makes sense."""


IO_THREADS = 2


def io_threads(fs: FileSystem, settings: Settings) -> int:
    """What the settings say, or what suits the file system."""
    if settings.io_threads is not None:
        return settings.io_threads
    return IO_THREADS if fs.parallel else 0


class Context:
    """See the module's docstring."""

    def __init__(
        self, fs: FileSystem, root: str, *, uuid: str, epoch: int, settings: Settings
    ) -> None:
        self.fs = fs
        self.root = root
        self.uuid = uuid
        self.epoch = epoch
        self.settings = settings
        self.workers = settings.workers or make_workers(io_threads(fs, settings))
        self.calls = threading.RLock()
        self.mutex = threading.RLock()
        self.closed = False
        self._counter = 0
        self._poison: BaseException | None = None
        self._process = fs.process()[0]

    def check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"store {self.root} is closed")
        self.check_process()

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that opened the store."""
        return self.fs.process()[0] != self._process

    def check_process(self) -> None:
        if self.is_forked:
            raise ClosedError(f"store {self.root} was opened by the parent process; open it again")

    def check_sound(self) -> None:
        """Raises where only the next opening can tell what is durable."""
        if self._poison is not None:
            raise PoisonedError(
                f"store {self.root} refuses work since an append or sync failed "
                f"({self._poison}); close it and open it again"
            ) from self._poison

    @property
    def is_poisoned(self) -> bool:
        return self._poison is not None

    def poison(self, error: BaseException) -> None:
        self._poison = error

    def end(self) -> None:
        """The store is closed: what stood in the way stays known, without the files and buffers
        that its traceback holds on to."""
        self.closed = True
        if self._poison is not None:
            self._poison.__traceback__ = None

    def trace(self, event: str, **fields: Any) -> None:
        if self.settings.trace is not None:
            self.settings.trace(event, fields)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def storage_error(self, doing: str, error: OSError, *, needed: int = 0) -> StorageError:
        """The store's error for one of the operating system's, with the space that there is."""
        return storage_error(self.fs, self.root, doing, error, needed=needed)

    def next_write_id(self) -> tuple[int, int]:
        with self.mutex:
            self._counter += 1
            return self.epoch, self._counter
