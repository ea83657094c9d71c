"""Goal: every file system's pins keep `protocol.PinFile`. Method: one suite over each of them.

Where the suite looks behind the interface (other processes, forks), it does so for the real one.
The portable one has no pins and has to say so.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardstore.fs import posix_pins
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.pin_runs import runs
from shardstore.fs.portable import PortableFileSystem
from shardstore.fs.posix import PosixFileSystem
from shardstore.fs.protocol import FileSystem, PinFile

pytestmark = pytest.mark.req("S8")
ROOT = Path(__file__).resolve().parents[2]
EVERY = range(5000)


@dataclass
class Place:
    fs: FileSystem
    path: str

    def open(self) -> PinFile:
        return self.fs.open_pins(self.path)


def made(fs: FileSystem, path: str) -> Place:
    fs.open(path, "create").close()
    return Place(fs, path)


@pytest.fixture(params=["posix", "memory", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "posix":
        return made(PosixFileSystem(), str(tmp_path / "PINS"))
    memory = MemoryFileSystem()
    return made(memory if request.param == "memory" else FaultyFileSystem(memory), "/PINS")


@pytest.fixture
def real(tmp_path: Path) -> Place:
    return made(PosixFileSystem(), str(tmp_path / "PINS"))


@pytest.fixture(params=["portable", "memory"])
def without(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "portable":
        return made(PortableFileSystem(), str(tmp_path / "PINS"))
    return made(MemoryFileSystem(pins=False), "/PINS")


def test_others_see_a_pin_and_its_holder_does_not(place: Place) -> None:
    one, two = place.open(), place.open()
    assert one.pin([3, 4, 5, 9])
    assert two.pinned(EVERY) == {3, 4, 5, 9}
    assert two.pinned([2, 4, 6]) == {4}
    assert two.pinned([]) == two.pinned([2, 6, 4999]) == set()
    assert one.pinned(EVERY) == set()


def test_pins_add_up_and_go_one_by_one(place: Place) -> None:
    one, two = place.open(), place.open()
    assert one.pin([0, 1]) and one.pin([2, 8]) and one.pin([])
    assert two.pinned(EVERY) == {0, 1, 2, 8}
    one.unpin([1, 8, 77])
    assert two.pinned(EVERY) == {0, 2}


def test_pins_are_shared(place: Place) -> None:
    files = [place.open() for _ in range(3)]
    for number, file in enumerate(files):
        assert file.pin([7, 100 + number, 200 - number])
    writer = place.open()
    assert writer.pinned(EVERY) == {7, 100, 101, 102, 198, 199, 200}
    files[0].close()
    assert writer.pinned(EVERY) == {7, 101, 102, 198, 199}
    for file in files:
        file.close()
    assert writer.pinned(EVERY) == set()


def test_a_closed_pin_file_holds_nothing_and_closes_again(place: Place) -> None:
    one, two = place.open(), place.open()
    assert one.pin([1])
    one.close()
    one.close()
    assert two.pinned([1]) == set()
    for call in (lambda: one.pin([1]), lambda: one.unpin([1]), lambda: one.pinned([1])):
        with pytest.raises(OSError) as refused:
            call()
        assert refused.value.errno == errno.EBADF
        assert refused.value.filename == place.path


def test_pin_files_of_two_paths_are_independent(place: Place) -> None:
    other = made(place.fs, place.path + "2")
    assert place.open().pin([1]) is True
    one, two = place.open(), other.open()
    assert one.pin([1])
    assert two.pinned([1]) == set()


def test_a_pin_file_has_to_be_there(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.fs.open_pins(place.path + "-missing")


def test_pinning_writes_nothing(place: Place) -> None:
    file = place.open()
    assert file.pin([0, 4000])
    assert place.fs.stat(place.path).size == 0


def test_where_no_lock_can_be_had_pin_says_so_and_nothing_is_pinned(without: Place) -> None:
    one, two = without.open(), without.open()
    assert one.pin([1, 2]) is False
    assert two.pinned(EVERY) == set()
    one.unpin([1])
    one.close()
    one.close()
    for call in (lambda: one.pin([1]), lambda: one.unpin([1]), lambda: one.pinned([1])):
        with pytest.raises(OSError) as refused:
            call()
        assert (refused.value.errno, refused.value.filename) == (errno.EBADF, without.path)
    with pytest.raises(FileNotFoundError):
        without.fs.open_pins(without.path + "-missing")


def test_neighbours_share_a_lock() -> None:
    assert list(runs([5, 3, 4, 4, 9, 0])) == [range(1), range(3, 6), range(9, 10)]
    assert list(runs([])) == []


# Behind the interface


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_refused_lock_leaves_nothing_held(
    real: Place, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    one, two = real.open(), real.open()
    fcntl_call, calls = posix_pins.fcntl.fcntl, []

    def second_fails(descriptor: int, command: int, argument: bytes) -> bytes:
        calls.append(command)
        if len(calls) == 2:
            raise OSError(code, os.strerror(code))
        return fcntl_call(descriptor, command, argument)

    with monkeypatch.context() as patched:
        patched.setattr(posix_pins.fcntl, "fcntl", second_fails)
        if code == errno.EIO:
            with pytest.raises(OSError, match="PINS"):
                one.pin([1, 3])
        else:
            assert one.pin([1, 3]) is False
    assert two.pinned(EVERY) == set()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_a_refused_test_is_told_unless_nobody_can_pin(
    real: Place, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fails(*_: object) -> bytes:
        raise OSError(code, os.strerror(code))

    file = real.open()
    with monkeypatch.context() as patched:
        patched.setattr(posix_pins.fcntl, "fcntl", fails)
        if code == errno.EIO:
            with pytest.raises(OSError, match="PINS"):
                file.pinned([1])
        else:
            assert file.pinned([1]) == set()


def test_a_file_that_may_only_be_read_is_enough(real: Place) -> None:
    os.chmod(real.path, 0o444)
    assert real.open().pin([1]) is True
    file, other = real.open(), real.open()
    assert file.pin([6])
    assert other.pinned(EVERY) == {6}


def test_pins_end_with_the_last_reference(real: Place) -> None:
    writer, file = real.open(), real.open()
    assert file.pin([6])
    del file
    assert writer.pinned(EVERY) == set()


def test_descriptors_of_pins_do_not_reach_started_programs(real: Place) -> None:
    file = real.open()
    assert not os.get_inheritable(file._descriptor)  # type: ignore[attr-defined]


def test_closed_pins_are_gone_whoever_has_a_copy_of_the_descriptor(real: Place) -> None:
    writer, file = real.open(), real.open()
    assert file.pin([6])
    copied = os.dup(file._descriptor)  # type: ignore[attr-defined]
    file.close()
    assert writer.pinned(EVERY) == set()
    os.close(copied)


CHILD = """
import os, sys
from shardstore.fs.posix import PosixFileSystem
file = PosixFileSystem().open_pins(sys.argv[1])
assert file.pin([2, 3, 9])
if sys.argv[2] == "fork":
    if os.fork() == 0:
        print("forked", os.getpid(), flush=True)
        sys.stdin.read()
    os._exit(0)
print("pinned", flush=True)
sys.stdin.read()
"""


def start_holder(place: Place, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, place.path, how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_pins_die_with_their_process(real: Place) -> None:
    writer = real.open()
    with start_holder(real, "alone") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "pinned\n"
        assert writer.pinned(EVERY) == {2, 3, 9}
        holder.kill()
        holder.wait()
        assert writer.pinned(EVERY) == set()


@pytest.mark.req("S27")
def test_a_forked_child_does_not_keep_its_parents_pins(real: Place) -> None:
    writer = real.open()
    with start_holder(real, "fork") as holder:
        assert holder.stdout is not None and holder.stdin is not None
        line = holder.stdout.readline()
        assert line.startswith("forked ")
        assert holder.wait() == 0
        os.kill(int(line.split()[1]), 0)  # the child is alive
        assert writer.pinned(EVERY) == set()
        holder.stdin.close()
