"""Reads files ahead of those who check them, and hands their bytes over in order, piece by piece.

Contract: reads only. Pieces of several files are in flight at once, by the threads of `workers`;
everything else, each call of a check included, happens on the caller's thread and in the order of
the files. With workers that have no threads a piece is read when the one before was taken. Memory
is `count` buffers of `piece_bytes`, made at need and used again and again, whatever the files'
sizes. What fails in one file is told to its check and stops no other, unless the check raises. When
`run` is over, however it ended, so are the threads, and the files are closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from shardstore.buffers import Buffer, BufferPool
from shardstore.format.placement import BLOCK_BYTES
from shardstore.fs.calls import close_quietly
from shardstore.fs.protocol import File, FileSystem
from shardstore.jobs import Job
from shardstore.workers import Workers


class FileCheck(Protocol):
    """What is told about one file."""

    path: str
    wants: int
    """Bytes of the file that are of use, from its beginning, as far as is known. What was read
    beyond them is thrown away."""

    def begin(self, size: int) -> None:
        """The file is open and this long. Called while files before it are still being read."""

    def take(self, piece: memoryview) -> None:
        """The next bytes. Their memory is used again afterwards."""

    def cut_off(self, at: int) -> None:
        """The file ends here by now, before the end that it had."""

    def fail(self, error: OSError) -> None:
        """Opening, reading or closing it failed. What is raised here ends the run."""

    def end(self) -> None:
        """All that was wanted was taken, or cannot be had."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A piece that was asked for, or the end of a file."""

    check: FileCheck
    file: File | None
    begin: int
    end: int
    buffer: Buffer | None = None
    job: Job[int | OSError] | None = None
    """What came of it: how many bytes, or why none."""


class PieceReader:
    """Checks files once; see the module's docstring."""

    def __init__(
        self, fs: FileSystem, workers: Workers, *, count: int, piece_bytes: int, direct: bool
    ) -> None:
        self._fs = fs
        self._workers = workers
        self._piece_bytes = piece_bytes
        self._direct = direct
        self._pool = BufferPool()
        self._missing = count
        """Buffers that may still be made."""
        self._free: list[Buffer] = []
        self._queue: deque[_Step] = deque()
        self._queue_max = 2 * count
        self._open: dict[int, File] = {}

    def run(self, checks: Iterable[FileCheck]) -> None:
        """Returns when the last check was told of its file's end."""
        steps = self._steps(checks)
        try:
            self._submit(steps)
            while self._queue:
                self._receive(self._queue.popleft())
                self._submit(steps)
        finally:
            self._workers.close()  # first: they read from the files into the buffers
            for file in self._open.values():
                close_quietly(file)
            self._open.clear()

    def _steps(self, checks: Iterable[FileCheck]) -> Iterator[_Step]:
        """What is to be read. Each step is asked for when there is room for it."""
        for check in checks:
            file = self._opened(check)
            at = 0
            while file is not None and at < check.wants:  # which may change between two steps
                end = min(check.wants, at + self._piece_bytes)
                yield _Step(check, file, at, end)
                at = end
            yield _Step(check, file, at, at)

    def _opened(self, check: FileCheck) -> File | None:
        try:
            file = self._fs.open(check.path, "read", direct=self._direct)
        except OSError as error:
            check.fail(error)
            return None
        self._open[id(file)] = file
        try:
            check.begin(file.size())
        except OSError as error:
            check.fail(error)
        return file

    def _submit(self, steps: Iterator[_Step]) -> None:
        """Ask for as much as there are buffers. (A queue of ends alone would hold files open.)"""
        while len(self._queue) < self._queue_max and (self._free or self._missing):
            step = next(steps, None)
            if step is None:
                return
            self._queue.append(self._submitted(step) if step.end > step.begin else step)

    def _submitted(self, step: _Step) -> _Step:
        if not self._free:
            self._missing -= 1
            self._free.append(self._pool.acquire(self._piece_bytes))
        buffer = self._free.pop()
        assert step.file is not None
        length = step.end - step.begin
        if step.file.direct:  # such transfers are of whole blocks, also where the file ends
            length = -(-length // BLOCK_BYTES) * BLOCK_BYTES
        job = self._workers.io(_read, step.file, step.begin, buffer.view[:length])
        return _Step(step.check, step.file, step.begin, step.end, buffer, job)

    def _receive(self, step: _Step) -> None:
        if step.buffer is None or step.job is None:
            self._finish(step)
            return
        outcome = step.job.result()
        check, wanted = step.check, step.end - step.begin
        if isinstance(outcome, OSError):
            check.fail(outcome)
        elif step.begin < check.wants:
            check.take(step.buffer.view[: min(outcome, wanted)])
            if outcome < wanted:
                check.cut_off(step.begin + outcome)
        self._free.append(step.buffer)

    def _finish(self, step: _Step) -> None:
        if step.file is not None:
            del self._open[id(step.file)]
            try:
                step.file.close()
            except OSError as error:
                step.check.fail(error)
        step.check.end()


def _read(file: File, at: int, piece: memoryview) -> int | OSError:
    try:
        return file.pread(at, piece)
    except OSError as error:
        return error
