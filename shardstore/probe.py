"""What a disk can do, measured in seconds: the numbers that a commit is made of.

Writes like a commit: over two alternating sets of existing files, in pieces, by threads, then a
sync. Reads a set back into memory that is used again. Appends like the log: 4 KiB over zeros, then
a sync. Copying memory and digests are timed too, since they bound a commit on a fast disk.

Contract: all files are made in the given directory under names that begin with `PREFIX`, and are
removed whatever happens but the death of the process; where there is too little space nothing is
written. Figures are those of a quiet machine only if it is one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

from shardstore.buffers import Buffer, BufferPool
from shardstore.errors import StorageError
from shardstore.format.digests import digest
from shardstore.fs.calls import storage_error
from shardstore.fs.protocol import File, FileSystem
from shardstore.jobs import Pool
from shardstore.progress import Advance
from shardstore.wear import Durability

PREFIX = "shardstore-bench-"
_NAME = "shardstore-probe"
MIB = 1 << 20
PIECES = (1 * MIB, 4 * MIB, 16 * MIB)
DEPTHS = (1, 2, 4, 8)
SET_BYTES = 128 * MIB
SET_BYTES_MIN = 16 * MIB
APPENDS = 50
_LOG_BLOCK = 4096
_TRIAL_SHARE = 0.05
"""Of the time that is to be spent: what one pass may take, or the sets are made smaller."""
_GOOD_ENOUGH = 0.95
"""Settings within this share of the best are as good: the smallest of them is suggested."""
_SYNC_SHARE = 0.05
"""Of a step: what syncs may cost before deferring them is worth it."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting and its throughput."""

    piece_bytes: int
    depth: int
    """Threads that write at once."""
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskProbe:
    """What was measured."""

    direct: bool
    """Whether transfers bypassed the page cache."""
    in_memory: bool
    """The directory lies in memory: its syncs prove nothing."""
    free_bytes: int
    set_bytes: int
    """Size of each of the two sets."""
    writes: tuple[Point, ...]
    read_bytes_per_second: float
    """With the setting that wrote fastest."""
    append_seconds: float
    """Median of a 4 KiB append and its sync."""
    append_seconds_p99: float
    copy_bytes_per_second: float
    digest_bytes_per_second: float

    @property
    def suggested(self) -> Point:
        """The least depth, then the smallest pieces, that are about as fast as the best."""
        best = max(point.bytes_per_second for point in self.writes)
        good = [p for p in self.writes if p.bytes_per_second >= _GOOD_ENOUGH * best]
        return min(good, key=lambda point: (point.depth, point.piece_bytes))

    def sync_seconds(self, objects: int) -> float:
        """Syncs of a durable commit: its slots', some at a time, and the log's."""
        return self.append_seconds * (math.ceil(objects / max(DEPTHS)) + 1)

    def commit_seconds(self, state_bytes: int, objects: int) -> float:
        """A durable commit of buffers that are given away: digests and writes overlap."""
        slower = min(self.suggested.bytes_per_second, self.digest_bytes_per_second)
        return state_bytes / slower + self.sync_seconds(objects)

    def durability(self, objects: int, step_seconds: float | None) -> Durability:
        """What the speed of syncs suggests; how the disk wears is `wear`'s to say."""
        syncs = self.sync_seconds(objects)
        if step_seconds is None or syncs <= _SYNC_SHARE * step_seconds:
            return Durability(level="durable", every=1)
        return Durability(level="deferred", every=math.ceil(syncs / (_SYNC_SHARE * step_seconds)))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "suggested": asdict(self.suggested)}


def probe(
    fs: FileSystem,
    directory: str,
    *,
    seconds: float = 10.0,
    set_bytes: int = SET_BYTES,
    clock: Clock = time.perf_counter,
    advance: Advance | None = None,
) -> DiskProbe:
    """Measure the disk below `directory` for about `seconds`, with sets of at most `set_bytes`.

    `advance` is called with the settings done so far, of `steps()`. Raises StorageError where the
    space does not do or the system refuses.
    """
    free = _free_bytes(fs, directory)
    if free < 3 * set_bytes:  # the two sets, and room for those who use the disk meanwhile
        raise StorageError(
            f"measuring {directory} needs {3 * set_bytes} free bytes, found {free}; make room, or "
            "choose another directory"
        )
    prefix = f"{directory}/{PREFIX}{fs.random_bytes(8).hex()}"
    try:
        with _Bench(fs, prefix, set_bytes, clock) as bench:
            return bench.measure(seconds, free, fs.in_memory(directory), advance or _ignore)
    except OSError as error:
        raise storage_error(fs, directory, "measuring the disk", error) from error


def steps() -> int:
    """How often `advance` is called by a probe."""
    return len(PIECES) * len(DEPTHS) + 3


def _free_bytes(fs: FileSystem, directory: str) -> int:
    try:
        if not fs.stat(directory).is_directory:
            raise NotADirectoryError(20, "Not a directory", directory)
        return fs.free_bytes(directory)
    except OSError as error:
        raise storage_error(fs, directory, "looking at the directory", error) from error


class _Bench:
    """The files and the memory of one probe; leaving it removes the files."""

    def __init__(self, fs: FileSystem, prefix: str, set_bytes: int, clock: Clock) -> None:
        self._fs = fs
        self._paths = (f"{prefix}-0", f"{prefix}-1")
        self._log_path = f"{prefix}-log"
        self._set_bytes = set_bytes
        self._clock = clock
        self._stack = ExitStack()
        self._next = 0
        self._pool = BufferPool()
        self._buffer: Buffer = self._pool.acquire(max(PIECES))
        # Random, since some disks and file systems write less of what they can compress.
        self._buffer.view[:] = fs.random_bytes(max(PIECES))

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self._buffer.release()
        self._stack.close()

    def measure(self, seconds: float, free: int, in_memory: bool, advance: Advance) -> DiskProbe:
        direct = self._make_sets(seconds)
        share = seconds * 0.8 / (len(PIECES) * len(DEPTHS))
        points = []
        for piece in PIECES:
            for depth in DEPTHS:
                rate = self._rate(share, partial(self._write, piece, depth))
                points.append(Point(piece_bytes=piece, depth=depth, bytes_per_second=rate))
                advance(1)
        appends = self._appends()
        advance(1)
        best = max(points, key=lambda point: point.bytes_per_second)
        read = self._rate(share, partial(self._read, best.piece_bytes, best.depth))
        advance(1)
        copy, digests = self._memory()
        advance(1)
        return DiskProbe(
            direct=direct,
            in_memory=in_memory,
            free_bytes=free,
            set_bytes=self._set_bytes,
            writes=tuple(points),
            read_bytes_per_second=read,
            append_seconds=median(appends),
            append_seconds_p99=sorted(appends)[math.ceil(0.99 * len(appends)) - 1],
            copy_bytes_per_second=copy,
            digest_bytes_per_second=digests,
        )

    # ------------------------------------------------------------------ files

    def _create(self, path: str, *, direct: bool) -> File:
        # Before: an opening that is interrupted, or fails late, may have made the file.
        self._stack.callback(self._remove, path)
        return self._fs.open(path, "create", direct=direct)

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.unlink(path)

    def _make_sets(self, seconds: float) -> bool:
        """Write both sets for the first time; on a slow disk they become smaller. Returns whether
        direct transfers were taken."""
        direct = True
        for number, path in enumerate(self._paths):
            file = self._create(path, direct=True)
            try:
                if number == 0:
                    self._shrink(file, seconds)
                self._fill(file, self._set_bytes)
                file.datasync()
                direct = direct and file.direct
            finally:
                file.close()
        return direct

    def _shrink(self, file: File, seconds: float) -> None:
        trial = min(self._set_bytes, SET_BYTES_MIN)
        began = self._clock()
        self._fill(file, trial)
        file.datasync()
        took = self._clock() - began
        allowed = trial * _TRIAL_SHARE * seconds / took if took > 0 else self._set_bytes
        size = max(trial, min(self._set_bytes, int(allowed)))
        self._set_bytes = max(_LOG_BLOCK, size // max(PIECES) * max(PIECES) or size)

    def _fill(self, file: File, size: int) -> None:
        for at in range(0, size, max(PIECES)):
            file.pwrite(at, self._buffer.view[: min(max(PIECES), size - at)])

    @contextmanager
    def _opened(self, path: str, depth: int) -> Iterator[list[File]]:
        """One descriptor a thread: a file is written by one thread at a time."""
        with ExitStack() as stack:
            files = []
            for _ in range(depth):
                files.append(self._fs.open(path, "write", direct=True))
                stack.callback(files[-1].close)
            yield files

    # ------------------------------------------------------------------ passes

    def _rate(self, share: float, run: Callable[[], float]) -> float:
        """Bytes a second: the median pass of those that fit into the share, at least two."""
        took: list[float] = []
        while len(took) < 2 or sum(took) < share:
            took.append(max(run(), 1e-9))
        return self._set_bytes / median(took)

    def _write(self, piece: int, depth: int) -> float:
        path = self._paths[self._next]
        self._next = 1 - self._next
        with self._opened(path, depth) as files, closing(Pool(depth, _NAME)) as threads:
            began = self._clock()

            def work(number: int) -> None:
                for at in range(number * piece, self._set_bytes, depth * piece):
                    size = min(piece, self._set_bytes - at)
                    files[number].pwrite(at, self._buffer.view[:size])

            for job in [threads.submit(work, number) for number in range(depth)]:
                job.result()
            files[0].datasync()
            return self._clock() - began

    def _read(self, piece: int, depth: int) -> float:
        path = self._paths[self._next]
        self._next = 1 - self._next
        buffers = [self._pool.acquire(piece) for _ in range(depth)]
        with self._opened(path, depth) as files, closing(Pool(depth, _NAME)) as threads:
            began = self._clock()

            def work(number: int) -> None:
                for at in range(number * piece, self._set_bytes, depth * piece):
                    size = min(piece, self._set_bytes - at)
                    files[number].pread(at, buffers[number].view[:size])

            for job in [threads.submit(work, number) for number in range(depth)]:
                job.result()
            took = self._clock() - began
        for buffer in buffers:
            buffer.release()
        return took

    def _appends(self) -> list[float]:
        """As the log does it: buffered, over zeros that were written ahead and synced."""
        file = self._create(self._log_path, direct=False)
        try:
            file.pwrite(0, bytes(APPENDS * _LOG_BLOCK))
            file.datasync()
            took = []
            for number in range(APPENDS):
                began = self._clock()
                file.pwrite(number * _LOG_BLOCK, self._buffer.view[:_LOG_BLOCK])
                file.datasync()
                took.append(self._clock() - began)
            return took
        finally:
            file.close()

    def _memory(self) -> tuple[float, float]:
        """Copying into warm memory, and digests, one thread each."""
        size = max(PIECES)
        other = self._pool.acquire(size)
        rates = []
        for run in (lambda: _copy(other, self._buffer), lambda: digest(self._buffer.view)):
            took = []
            for _ in range(5):
                began = self._clock()
                run()
                took.append(max(self._clock() - began, 1e-9))
            rates.append(size / median(took))
        other.release()
        return rates[0], rates[1]


def _copy(target: Buffer, source: Buffer) -> None:
    target.view[:] = source.view


def _ignore(_count: int) -> None:
    """Nobody is watching."""
