"""The physical references of a run: what disk and memory can do, without any protocol.

`WriteProbe` is plain direct I/O over two alternating sets of existing files of the objects' sizes,
synced at the end: what a commit has to do at least. `ReadProbe` reads such a set directly into
memory that was touched before. Threads and piece size are the best of those tried, so that the
references are no easier to reach than they should be.
"""

from __future__ import annotations

import itertools
import mmap
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.frame.rounds import Variant

MIB = 1 << 20
DIRECT: int = getattr(os, "O_DIRECT", 0)
MEMCPY_BYTES = 256 * MIB
ARENA_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How a probe cuts up its work."""

    threads: int
    piece_bytes: int

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.piece_bytes // MIB} MiB"


CHOICES = tuple(
    Tuning(threads=threads, piece_bytes=mib * MIB)
    for threads, mib in itertools.product((1, 2, 4, 8), (4, 8, 16))
)
QUICK_CHOICES = (Tuning(threads=1, piece_bytes=16 * MIB), Tuning(threads=2, piece_bytes=4 * MIB))


def touched_memory(size: int) -> memoryview:
    """Page-aligned memory in huge pages where there are such, used once before."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, dtype=np.uint8)[:] = 0
    return memoryview(memory)


class Arena:
    """Touched, aligned memory for both probes: a part for each size.

    Parts of a large state share it, so that it leaves room for the peers; it stays far larger than
    any cache of the processor's.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        view = touched_memory(max(*sizes, min(sum(sizes), ARENA_BYTES_MAX)))
        whole = np.frombuffer(view, dtype=np.uint64)
        chunk = np.random.default_rng(1).integers(0, 2**63, MIB, dtype=np.uint64)
        for begin in range(0, len(whole), len(chunk)):
            end = min(begin + len(chunk), len(whole))
            whole[begin:end] = chunk[: end - begin]
        self.parts: list[memoryview] = []
        end = 0
        for size in sizes:
            begin = end if end + size <= len(view) else 0
            end = begin + size
            self.parts.append(view[begin:end])


class Probe:
    """Files of the given sizes, and threads that move pieces between them and an arena."""

    def __init__(self, directory: Path, sizes: Sequence[int], arena: Arena, sets: int) -> None:
        self.bytes = sum(sizes)
        self._sizes = list(sizes)
        self._arena = arena
        self._sets = [
            [directory / f"probe-{number}-{index:03d}" for index in range(len(sizes))]
            for number in range(sets)
        ]
        self._turn = itertools.cycle(self._sets)
        self._pool = ThreadPoolExecutor(max_workers=max(t.threads for t in CHOICES))
        self.tuning = Tuning(threads=2, piece_bytes=4 * MIB)
        self.tried: dict[str, float] = {}
        directory.mkdir(parents=True, exist_ok=True)
        for paths in self._sets:
            self._transfer(paths, os.O_WRONLY | os.O_CREAT, os.pwritev, sync=True)

    def write(self) -> None:
        """Over the set that was not written last, durable."""
        self._transfer(next(self._turn), os.O_WRONLY, os.pwritev, sync=True)

    def read(self) -> None:
        self._transfer(self._sets[0], os.O_RDONLY, os.preadv, sync=False)

    def tune(self, act: Callable[[], None], choices: Sequence[Tuning], repeats: int) -> None:
        """Keep the choice with the best median."""
        times: dict[Tuning, list[float]] = {choice: [] for choice in choices}
        for _ in range(repeats):
            for choice in choices:
                self.tuning = choice
                began = time.perf_counter()
                act()
                times[choice].append(time.perf_counter() - began)
        medians = {choice: statistics.median(taken) for choice, taken in times.items()}
        self.tuning = min(medians, key=lambda choice: medians[choice])
        self.tried = {str(choice): round(self.bytes / s) for choice, s in medians.items()}

    def _transfer(
        self,
        paths: Sequence[Path],
        flags: int,
        move: Callable[[int, list[memoryview], int], int],
        *,
        sync: bool,
    ) -> None:
        files = [os.open(path, flags | DIRECT, 0o644) for path in paths]
        pieces = iter(self._pieces())

        def work() -> None:
            # The iterator is shared; advancing it is one step under the interpreter's lock.
            for index, at, end in pieces:
                done = move(files[index], [self._arena.parts[index][at:end]], at)
                assert done == end - at, f"{done} bytes moved of {end - at}"

        try:
            for worker in [self._pool.submit(work) for _ in range(self.tuning.threads)]:
                worker.result()
            if sync:
                list(self._pool.map(os.fdatasync, files))
        finally:
            for descriptor in files:
                os.close(descriptor)

    def _pieces(self) -> list[tuple[int, int, int]]:
        step = self.tuning.piece_bytes
        return [
            (index, at, min(at + step, size))
            for index, size in enumerate(self._sizes)
            for at in range(0, size, step)
        ]


class Physical:
    """The references over one list of object sizes."""

    def __init__(self, directory: Path, sizes: Sequence[int], *, quick: bool) -> None:
        self._arena = Arena(sizes)
        self._choices = QUICK_CHOICES if quick else CHOICES
        self._directory = directory
        self._sizes = sizes
        self._memory = (np.ones(MEMCPY_BYTES, np.uint8), np.ones(MEMCPY_BYTES, np.uint8))

    def write_probe(self, name: str = "probe") -> Variant:
        probe = Probe(self._directory / "write", self._sizes, self._arena, sets=2)
        probe.tune(probe.write, self._choices, repeats=3)
        note = "direct writes over two alternating sets of existing files of the objects' sizes"
        return self._variant(name, probe, probe.write, f"{note}, synced; {probe.tuning}")

    def read_probe(self, name: str = "read probe") -> Variant:
        probe = Probe(self._directory / "read", self._sizes, self._arena, sets=1)
        probe.tune(probe.read, self._choices, repeats=3)
        note = "direct reads of files of the objects' sizes into memory touched before"
        return self._variant(
            name, probe, probe.read, f"{note}; {probe.tuning}", cold_bytes=probe.bytes
        )

    def memcpy(self) -> Variant:
        target, source = self._memory
        return Variant(
            name="memcpy",
            kind="reference",
            note="one thread, memory touched before",
            bytes=MEMCPY_BYTES,
            act=lambda: np.copyto(target, source),
        )

    @staticmethod
    def _variant(
        name: str, probe: Probe, act: Callable[[], None], note: str, cold_bytes: int = 0
    ) -> Variant:
        return Variant(
            name=name,
            kind="reference",
            note=note,
            bytes=probe.bytes,
            act=act,
            cold_bytes=cold_bytes,
        )
