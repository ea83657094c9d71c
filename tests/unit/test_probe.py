"""The probe of a disk: what it suggests, and that it leaves nothing behind, however it ends.

Method: the in-memory file system and a clock that the file system moves, so that each operation
takes the time that a test says; nothing depends on the machine.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from shardstore.errors import StorageError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.fs.posix import PosixFileSystem
from shardstore.probe import DEPTHS, MIB, PIECES, DiskProbe, Point, probe, steps

pytestmark = pytest.mark.req("S31")

SMALL = 16 * 4096


def place(**options: int) -> MemoryFileSystem:
    fs = MemoryFileSystem(**options)
    fs.make_directory("disk")
    return fs


def made(**changes: object) -> DiskProbe:
    points = tuple(
        Point(piece_bytes=piece, depth=depth, bytes_per_second=1e9)
        for piece, depth in itertools.product(PIECES, DEPTHS)
    )
    value = DiskProbe(
        direct=True, in_memory=False, free_bytes=1, set_bytes=1, writes=points,
        read_bytes_per_second=2e9, append_seconds=0.001, append_seconds_p99=0.002,
        copy_bytes_per_second=9e9, digest_bytes_per_second=30e9,
    )  # fmt: skip
    return replace(value, **changes)  # type: ignore[arg-type]


def test_it_measures_and_leaves_nothing_behind() -> None:
    fs, advanced = place(), []
    found = probe(fs, "disk", seconds=0.01, set_bytes=SMALL, advance=advanced.append)
    assert fs.list_directory("disk") == []
    assert sum(advanced) == steps() == len(found.writes) + 3
    settings = {(point.piece_bytes, point.depth) for point in found.writes}
    assert settings == set(itertools.product(PIECES, DEPTHS))
    assert found.direct and not found.in_memory and found.set_bytes == SMALL
    assert found.suggested in found.writes
    value = found.to_json()
    assert value["suggested"]["depth"] in DEPTHS and len(value["writes"]) == len(found.writes)


def test_a_refusal_of_direct_io_and_memory_are_said() -> None:
    fs = place(direct=False)
    fs.volatile = True
    found = probe(fs, "disk", seconds=0.01, set_bytes=SMALL)
    assert not found.direct and found.in_memory


def test_a_real_directory(tmp_path: Path) -> None:
    found = probe(PosixFileSystem(), str(tmp_path), seconds=0.1, set_bytes=MIB)
    assert list(tmp_path.iterdir()) == []
    assert all(point.bytes_per_second > 0 for point in found.writes)
    assert 0 < found.append_seconds <= found.append_seconds_p99


def test_too_little_space_is_found_out_before_anything_is_written() -> None:
    fs = place(capacity_bytes=3 * SMALL - 1)
    with pytest.raises(StorageError, match=f"needs {3 * SMALL} free bytes, found {3 * SMALL - 1}"):
        probe(fs, "disk", set_bytes=SMALL)
    assert [operation.op for operation in fs.log] == ["make_directory"]


@pytest.mark.parametrize("path", ["nowhere", "file"])
def test_what_is_no_directory_is_refused(path: str) -> None:
    fs = place()
    fs.open("file", "create").close()
    with pytest.raises(StorageError, match=path):
        probe(fs, path, set_bytes=SMALL)


OPERATIONS = ("open_create", "open_write", "pwrite", "pread", "datasync")


@pytest.mark.parametrize("op", OPERATIONS)
def test_files_go_also_when_the_disk_fails(op: str) -> None:
    inner = place()
    fs = FaultyFileSystem(inner)
    probe(fs, "disk", seconds=0.01, set_bytes=SMALL)
    count = fs.counts[op]
    assert count > 1
    for number in {1, 2, count // 2}:
        fs = FaultyFileSystem(inner)
        fs.fail(op, nth=number, after=number == 2)
        with pytest.raises(StorageError, match="measuring the disk failed"):
            probe(fs, "disk", seconds=0.01, set_bytes=SMALL)
        assert inner.list_directory("disk") == []


@pytest.mark.parametrize("nth", [1, 5, 40, 90])
def test_files_go_also_when_somebody_interrupts(nth: int) -> None:
    inner = place()
    fs, seen = FaultyFileSystem(inner), []

    def interrupt(operation: Operation) -> None:
        seen.append(operation)
        if len(seen) == nth and operation.op != "unlink":
            raise KeyboardInterrupt

    fs.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        probe(fs, "disk", seconds=0.01, set_bytes=SMALL)
    assert inner.list_directory("disk") == []


def test_a_slow_disk_gets_smaller_sets() -> None:
    """A clock that goes on by a second at each look: a trial pass then takes far too long."""
    ticks = itertools.count()
    found = probe(place(), "disk", seconds=1, set_bytes=48 * MIB, clock=lambda: float(next(ticks)))
    assert found.set_bytes == 16 * MIB
    assert {point.bytes_per_second for point in found.writes} == {16 * MIB}


def test_the_suggestion_is_the_least_that_is_about_the_best() -> None:
    def suggested(*rates: tuple[int, int, float]) -> tuple[int, int]:
        points = tuple(
            Point(piece_bytes=piece * MIB, depth=depth, bytes_per_second=rate)
            for piece, depth, rate in rates
        )
        point = made(writes=points).suggested
        return point.piece_bytes // MIB, point.depth

    assert suggested((1, 1, 90), (4, 1, 96), (16, 1, 97), (1, 2, 99), (4, 8, 100)) == (4, 1)
    assert suggested((1, 1, 50), (4, 1, 60), (1, 2, 99), (4, 8, 100)) == (1, 2)


def test_what_a_commit_costs_is_arithmetic() -> None:
    found = made()
    assert found.sync_seconds(32) == pytest.approx(0.005)  # four rounds of eight, and the log's
    assert found.commit_seconds(10**9, 32) == pytest.approx(1.005)
    slow = made(digest_bytes_per_second=5e8)
    assert slow.commit_seconds(10**9, 32) == pytest.approx(2.005)  # the digests hold it up
    assert found.durability(32, None).level == "durable"
    assert found.durability(32, 0.1).level == "durable"  # exactly five percent
    choice = found.durability(32, 0.01)
    assert (choice.level, choice.every) == ("deferred", 10)
