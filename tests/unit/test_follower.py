"""Following a live log gives what reading all of it gives, and reads only what is new.

Method: the same store looked at in both ways after every change, and after damage.
"""

from __future__ import annotations

import pytest

from shardstore.context import Settings
from shardstore.errors import CorruptionError
from shardstore.format.names import segment_file
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem, Operation
from shardstore.store import Store
from shardstore.wal.follower import PIECE_BYTES, LogFollower
from shardstore.wal.reader import list_segments, read_log
from tests.support.stores import ROOT, commit, open_store

pytestmark = pytest.mark.req("S8")


class Watched:
    """A follower that counts the bytes of the log it reads."""

    def __init__(self, inner: MemoryFileSystem) -> None:
        self.inner, self.read_bytes = inner, 0
        fs = FaultyFileSystem(inner, before=self._count)
        view = read_log(fs, ROOT)
        self.follower = LogFollower(fs, ROOT, str(view.segment.header["uuid"]), view)

    def _count(self, operation: Operation) -> None:
        if operation.op == "pread":
            self.read_bytes += int(operation.detail[1])

    def look(self) -> int:
        """Compare with a fresh look; returns the bytes that were read."""
        self.read_bytes = 0
        state = self.follower.state()
        assert state.to_json() == read_log(self.inner, ROOT).state.to_json()
        return self.read_bytes


def _newest(fs: MemoryFileSystem) -> str:
    return f"{ROOT}/{segment_file(list_segments(fs, ROOT)[-1])}"


def _changes(store: Store) -> list[object]:
    """Every kind of record."""
    return [
        lambda: commit(store, 3),
        lambda: store.snapshot("one"),
        lambda: commit(store, 4),
        lambda: store.rewind("one"),
        store.undo,
        lambda: store.delete("one"),
        store.undo,
        lambda: [commit(store, step) for step in range(5, 9)],
    ]


def test_following_gives_what_reading_gives_after_every_record() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 2)
        every, seldom = Watched(fs), Watched(fs)
        for change in _changes(store):
            change()  # type: ignore[operator]
            assert every.look() <= PIECE_BYTES
            assert every.look() <= PIECE_BYTES  # nothing new
        seldom.look()
        assert every.follower._offset > 10 * 4096


def test_a_new_segment_is_read_whole_and_then_followed() -> None:
    fs = MemoryFileSystem()
    settings = Settings(prewrite_bytes=32 * 1024, commits_per_segment=3)
    with open_store(fs, settings=settings) as store:
        watched = Watched(fs)
        for step in range(1, 12):
            commit(store, step)
            watched.look()
    assert len(list_segments(fs, ROOT)) > 3
    with open_store(fs, settings=settings) as store:
        watched.look()
        commit(store, 12)
        watched.look()


def test_a_record_longer_than_a_piece_is_followed() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        watched = Watched(fs)
        commit(store, 1, blobs={"big": bytes(range(256)) * 2000})
        commit(store, 2)
        watched.look()
        assert watched.look() <= PIECE_BYTES


def test_states_that_were_given_out_stay_as_they_are() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        watched = Watched(fs)
        commit(store, 1)
        first = watched.follower.state()
        before = first.to_json()
        commit(store, 2)
        assert watched.follower.state() is not first
        assert first.to_json() == before


@pytest.mark.parametrize("place", [0, 200, 4000])
def test_damage_in_what_is_new_is_told_as_ever(place: int) -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        watched = Watched(fs)
        end = watched.follower._offset
        commit(store, 2)
        fs.open(_newest(fs), "write").pwrite(end + place, b"\xff")
        with pytest.raises(CorruptionError) as followed:
            watched.follower.state()
        with pytest.raises(CorruptionError) as read:
            read_log(fs, ROOT)
        assert str(followed.value) == str(read.value)
    assert str(end) in str(read.value)


def test_a_torn_end_is_passed_over_as_ever() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        watched = Watched(fs)
        end = watched.follower._offset
        commit(store, 2)
        fs.open(_newest(fs), "write").pwrite(end + 3584, bytes(512))
        watched.look()
        head = watched.follower.state().head
        assert head is not None and head.step == 1


def test_another_store_in_the_same_place_is_refused() -> None:
    fs = MemoryFileSystem()
    open_store(fs).close()
    watched = Watched(fs)
    fs.rename(ROOT, "away")
    open_store(fs).close()
    with pytest.raises(CorruptionError, match="another store"):
        watched.follower.state()


def test_after_another_boot_everything_is_read_each_time() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
    image = next(fs.power_cuts(limit=1))
    watched = Watched(image)
    assert watched.look() > PIECE_BYTES // 4
    with open_store(image) as store:
        watched.look()
        commit(store, 2)
        assert watched.look() <= PIECE_BYTES
