"""Goal: the crashable file system leaves every legal state and no illegal one.

Method: tiny states whose legal disks are written down by hand, and random programs whose disks are
judged by a second, much simpler model: a list of the versions that each sector and size had.
"""

from __future__ import annotations

import errno
import mmap
import threading
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.fs.crash_states import tears
from shardstore.fs.memory import CrashPoint, MemoryFile, MemoryFileSystem, Operation
from shardstore.fs.protocol import LockHeld

pytestmark = pytest.mark.req("S3", "S30")
SECTOR = 512


def sector(letter: str, count: int = 1) -> bytes:
    return letter.encode() * (SECTOR * count)


def durable_file(fs: MemoryFileSystem, path: str, data: bytes) -> MemoryFile:
    file = fs.open(path, "create")
    file.pwrite(0, data)
    file.datasync()
    fs.sync_directory("/")
    return file


def get(fs: MemoryFileSystem, path: str) -> bytes:
    file = fs.open(path, "read")
    buffer = bytearray(file.size())
    file.pread(0, buffer)
    return bytes(buffer)


def tree(fs: MemoryFileSystem, path: str = "") -> dict[str, bytes]:
    """Everything a recovery sees; directories end with "/"."""
    found: dict[str, bytes] = {}
    for name in fs.list_directory(path or "/"):
        below = f"{path}/{name}"
        if fs.stat(below).is_directory:
            found[f"{below}/"] = b""
            found.update(tree(fs, below))
        else:
            found[below] = get(fs, below)
    return found


def contents(fs: MemoryFileSystem, path: str) -> set[bytes]:
    return {get(image, path) for image in fs.power_cuts()}


def names(fs: MemoryFileSystem) -> set[frozenset[str]]:
    return {frozenset(tree(image)) for image in fs.power_cuts()}


def all_of(*groups: Iterable[str]) -> set[frozenset[str]]:
    return {frozenset(group) for group in groups}


# Data


def test_synced_data_and_names_are_never_lost() -> None:
    fs = MemoryFileSystem()
    durable_file(fs, "/a", sector("A", 3))
    assert [tree(image) for image in fs.power_cuts()] == [{"/a": sector("A", 3)}]


def test_an_unsynced_overwrite_is_old_new_or_torn_at_sectors() -> None:
    fs = MemoryFileSystem()
    file = durable_file(fs, "/a", sector("A", 3))
    file.pwrite(0, sector("B", 3))
    found = contents(fs, "/a")
    every = {sector(x) + sector(y) + sector(z) for x in "AB" for y in "AB" for z in "AB"}
    assert found == every - {sector("A") + sector("B") + sector("A")}  # middle alone: not tried


def test_each_sector_may_have_any_version_since_the_sync() -> None:
    fs = MemoryFileSystem()
    file = durable_file(fs, "/a", sector("A"))
    file.pwrite(0, sector("B"))
    file.pwrite(0, sector("C"))
    assert contents(fs, "/a") == {sector("A"), sector("B"), sector("C")}


def test_part_of_a_sector_is_never_torn() -> None:
    fs = MemoryFileSystem()
    file = durable_file(fs, "/a", sector("A"))
    file.pwrite(10, b"one")
    file.pwrite(20, b"two")
    with_one = sector("A")[:10] + b"one" + sector("A")[13:]
    with_both = with_one[:20] + b"two" + with_one[23:]
    assert contents(fs, "/a") == {sector("A"), with_one, with_both}


def test_size_and_data_of_an_appended_sector_are_apart() -> None:
    fs = MemoryFileSystem()
    file = durable_file(fs, "/a", sector("A"))
    file.pwrite(SECTOR, sector("B"))
    assert contents(fs, "/a") == {
        sector("A"),
        sector("A") + bytes(SECTOR),  # size without data
        sector("A") + sector("B"),  # data without size is cut, so nothing else
    }


def test_every_size_in_between_may_be_left() -> None:
    fs = MemoryFileSystem()
    file = durable_file(fs, "/a", b"")
    for at in range(3):
        file.pwrite(at * SECTOR, sector("ABC"[at]))
    assert {len(data) for data in contents(fs, "/a")} == {0, 512, 1024, 1536}
    assert bytes(2 * SECTOR) + sector("C") in contents(fs, "/a")


def test_truncation_may_be_lost_and_a_kept_one_brings_nothing_back() -> None:
    fs = MemoryFileSystem()
    file = durable_file(fs, "/a", sector("A", 2))
    file.truncate(0)
    file.truncate(2 * SECTOR)
    assert contents(fs, "/a") == {sector("A", 2), b"", bytes(2 * SECTOR)}
    file.datasync()
    assert contents(fs, "/a") == {bytes(2 * SECTOR)}


def test_zeros_written_over_nothing_count_as_no_effect() -> None:
    fs = MemoryFileSystem()
    file = durable_file(fs, "/a", b"")
    file.truncate(8192)
    file.datasync()
    file.pwrite(0, bytes(8192))
    assert fs.unsynced_count() == 0
    file.pwrite(0, sector("A"))
    file.pwrite(0, sector("\0"))
    assert fs.unsynced_count() == 3  # the zeros may now be what the sector had before, or after


def test_a_failed_sync_keeps_the_old_bytes_on_the_disk_for_good() -> None:
    fs = MemoryFileSystem()
    file = durable_file(fs, "/a", sector("A", 2))
    file.pwrite(0, sector("B", 2))
    file.drop_unsynced()
    assert get(fs, "/a") == sector("B", 2)
    assert contents(fs, "/a") == {sector("A", 2)}
    file.datasync()
    assert contents(fs, "/a") == {sector("A", 2)}
    file.pwrite(0, sector("C"))
    assert contents(fs, "/a") == {sector("A", 2), sector("C") + sector("A")}
    file.datasync()
    assert get(fs, "/a") == sector("C") + sector("B")
    assert contents(fs.kill(), "/a") == {sector("C") + sector("A")}


def test_after_a_failed_sync_an_appended_part_is_zeros() -> None:
    fs = MemoryFileSystem()
    file = durable_file(fs, "/a", b"")
    file.pwrite(0, sector("A"))
    file.drop_unsynced()
    assert contents(fs, "/a") == {b"", bytes(SECTOR)}
    file.datasync()
    assert contents(fs, "/a") == {bytes(SECTOR)}


def test_tears_of_short_and_long_writes() -> None:
    assert tears(1) == ()
    assert set(tears(2)) == {((0, 1),), ((1, 2),)}
    missing_one = {((0, at), (at + 1, 8)) for at in range(1, 7)} | {((1, 8),), ((0, 7),)}
    assert missing_one <= set(tears(8))
    assert {((0, at),) for at in range(1, 8)} <= set(tears(8))
    assert len(tears(200)) < 10
    assert ((0, 100),) in tears(200) and ((100, 200),) in tears(200)


# Names


def test_an_unsynced_create_may_be_lost_though_its_data_was_synced() -> None:
    fs = MemoryFileSystem()
    file = fs.open("/a", "create")
    file.pwrite(0, sector("A"))
    file.datasync()
    assert [tree(image) for image in fs.power_cuts()] == [{}, {"/a": sector("A")}]
    fs.sync_directory("/")
    assert names(fs) == all_of({"/a"})


def test_a_synced_name_of_unsynced_data_is_an_empty_file_at_worst() -> None:
    fs = MemoryFileSystem()
    fs.open("/a", "create").pwrite(0, sector("A"))
    fs.sync_directory("/")
    assert contents(fs, "/a") == {b"", bytes(SECTOR), sector("A")}


def test_names_persist_in_any_subset() -> None:
    fs = MemoryFileSystem()
    durable_file(fs, "/old", b"")
    fs.open("/x", "create")
    fs.open("/y", "create")
    fs.unlink("/old")
    some = ["/old", "/x", "/y"]
    subsets = [[name for at, name in enumerate(some) if mask >> at & 1] for mask in range(8)]
    assert names(fs) == all_of(*subsets)


def test_a_rename_leaves_the_old_name_the_new_one_or_both_never_neither() -> None:
    fs = MemoryFileSystem()
    durable_file(fs, "/a", sector("A"))
    fs.rename("/a", "/b")
    assert names(fs) == all_of({"/a"}, {"/b"}, {"/a", "/b"})
    assert all(set(tree(image).values()) == {sector("A")} for image in fs.power_cuts())
    fs.sync_directory("/")
    assert names(fs) == all_of({"/b"})


def test_a_name_used_again_has_one_of_its_files() -> None:
    fs = MemoryFileSystem()
    durable_file(fs, "/a", b"old")
    fs.unlink("/a")
    file = fs.open("/a", "create")
    file.pwrite(0, b"new")
    file.datasync()
    assert {tree(image).get("/a") for image in fs.power_cuts()} == {None, b"old", b"new"}


@pytest.mark.parametrize("order", [["/d", "/e"], ["/e", "/d"]])
def test_a_move_between_directories_needs_both_synced(order: list[str]) -> None:
    fs = MemoryFileSystem()
    for name in ("/d", "/e"):
        fs.make_directory(name)
    fs.sync_directory("/")
    fs.open("/d/a", "create")
    fs.sync_directory("/d")
    fs.rename("/d/a", "/e/b")
    either = all_of({"/d/", "/e/", "/d/a"}, {"/d/", "/e/", "/e/b"}, {"/d/", "/e/", "/d/a", "/e/b"})
    assert names(fs) == either
    fs.sync_directory(order[0])
    half = either if order[0] == "/d" else {name for name in either if "/e/b" in name}
    assert names(fs) == half
    fs.sync_directory(order[1])
    assert names(fs) == all_of({"/d/", "/e/", "/e/b"})


def test_what_is_in_a_lost_directory_is_lost() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    fs.open("/d/a", "create").datasync()
    fs.sync_directory("/d")
    assert names(fs) == all_of([], {"/d/", "/d/a"})


# The enumeration as a whole


class Versions:
    """The second model: what each sector and the size were at any time since the last sync."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.synced()

    def synced(self) -> None:
        self.sizes = {len(self.data)}
        self.sectors: dict[int, set[bytes]] = {}
        self.record()

    def record(self) -> None:
        self.sizes.add(len(self.data))
        for at in range(8):
            piece = bytes(self.data[at * SECTOR : (at + 1) * SECTOR])
            self.sectors.setdefault(at, set()).add(piece.ljust(SECTOR, b"\0"))

    def write(self, offset: int, data: bytes) -> None:
        self.data.extend(bytes(max(0, offset + len(data) - len(self.data))))
        self.data[offset : offset + len(data)] = data
        self.record()

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.record()

    def allows(self, found: bytes) -> bool:
        """A sector cut by a size may have lost what another size would have shown."""
        if len(found) not in self.sizes:
            return False
        for at in range(-(-len(found) // SECTOR)):
            piece = found[at * SECTOR : (at + 1) * SECTOR]
            legal = {
                version[:cut].ljust(SECTOR, b"\0")[: len(piece)]
                for version in self.sectors[at]
                for cut in [SECTOR, *(max(0, size - at * SECTOR) for size in self.sizes)]
            }
            if piece not in legal:
                return False
        return True


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3000), st.integers(1, 1000)),
        st.tuples(st.just("write"), st.sampled_from([0, 512, 1024]), st.just(1024)),
        st.tuples(st.just("truncate"), st.integers(0, 4096), st.just(0)),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
    ),
    max_size=8,
)


@given(STEPS)
def test_no_illegal_state_of_a_file_is_ever_left(steps: list[tuple[str, int, int]]) -> None:
    fs, model = MemoryFileSystem(), Versions(sector("A", 2))
    file = durable_file(fs, "/a", sector("A", 2))
    for at, (step, first, second) in enumerate(steps):
        if step == "write":
            data = bytes([66 + at]) * second
            file.pwrite(first, data)
            model.write(first, data)
        elif step == "truncate":
            file.truncate(first)
            model.truncate(first)
        else:
            file.datasync()
            model.synced()
    assert get(fs, "/a") == bytes(model.data)
    found = [get(image, "/a") for image in fs.power_cuts(subsets_max=5)]
    assert bytes(model.data) in found
    assert all(model.allows(data) for data in found)
    assert len(set(found)) == len(found)


def busy() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    file = durable_file(fs, "/a", sector("A", 8))
    for at in range(12):
        file.pwrite(at % 8 * SECTOR, sector(chr(98 + at)))
        fs.open(f"/n{at}", "create")
    return fs


def test_beyond_the_limit_prefixes_and_small_differences_are_tried() -> None:
    fs = busy()
    assert fs.unsynced_count() == 24
    found = [tree(image) for image in fs.power_cuts()]
    assert 100 < len(found) < 2000
    for count in range(13):  # prefixes in time
        assert any(set(one) == {"/a", *(f"/n{at}" for at in range(count))} for one in found)
    for at in range(12):  # one missing
        missing = {"/a", *(f"/n{other}" for other in range(12) if other != at)}
        assert any(set(one) == missing for one in found)


def test_images_are_distinct_limited_and_the_same_each_time() -> None:
    fs = busy()
    digests = [image.image_digest() for image in fs.power_cuts(seed=3)]
    assert len(set(digests)) == len(digests)
    assert digests == [image.image_digest() for image in fs.power_cuts(seed=3)]
    assert digests[:10] == [image.image_digest() for image in fs.power_cuts(limit=10)]
    assert digests != [image.image_digest() for image in fs.power_cuts(seed=4)]


def test_an_image_is_a_disk_like_any_other() -> None:
    """Nothing unsynced, usable, losing power again; the original goes on undisturbed."""
    fs = MemoryFileSystem()
    durable_file(fs, "/a", sector("A")).pwrite(0, sector("B"))
    before = fs.image_digest(unsynced=True)
    for image in fs.power_cuts():
        assert image.unsynced_count() == 0
        image.open("/a", "write").pwrite(0, sector("C"))
        assert sector("C") in contents(image, "/a")
        assert get(image, "/a") == sector("C")
    assert fs.image_digest(unsynced=True) == before


# Crashes, kills, clones


@pytest.mark.parametrize(("when", "left"), [("before", "A"), ("during", "BA"), ("after", "B")])
def test_the_process_dies_at_the_named_operation(when: str, left: str) -> None:
    fs = MemoryFileSystem()
    file = durable_file(fs, "/a", sector("A", 2))
    fs.crash_at = len(fs.log) + 1
    fs.crash_when = when  # type: ignore[assignment]
    with pytest.raises(CrashPoint):
        file.pwrite(0, sector("B", 2))
    assert fs.log[-1] == Operation("pwrite", "/a", (0, 2 * SECTOR))
    for call in (file.datasync, file.size, lambda: fs.stat("/a"), lambda: fs.open("/b", "create")):
        with pytest.raises(CrashPoint):
            call()
    file.close()
    expected = sector(left[0]) + sector(left[-1])
    assert get(fs.kill(), "/a") == expected
    assert expected in contents(fs, "/a")


def test_no_handler_swallows_a_crash() -> None:
    assert not issubclass(CrashPoint, Exception)


def test_the_log_has_every_mutating_operation_and_no_other() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("d")
    file = fs.open("d/a", "create")
    file.pwrite(3, b"xyz")
    file.truncate(2)
    file.datasync()
    fs.open("d/a", "replace").close()
    fs.rename("d/a", "d/b")
    fs.sync_directory("d")
    fs.lock("LOCK", "me").release()
    fs.unlink("d/b")
    for harmless in (file.size, lambda: fs.stat("d"), lambda: fs.list_directory("d")):
        harmless()
    with pytest.raises(FileNotFoundError):
        fs.unlink("d/b")
    assert [operation.op for operation in fs.log] == [
        "make_directory",
        "open_create",
        "pwrite",
        "truncate",
        "datasync",
        "open_replace",
        "rename",
        "sync_directory",
        "lock",
        "release",
        "unlink",
    ]
    assert fs.log[6] == Operation("rename", "d/a", ("d/b",))


def test_the_hook_sees_the_state_before_each_operation() -> None:
    fs = MemoryFileSystem()
    seen: list[tuple[str, dict[str, bytes]]] = []
    fs.before = lambda operation: seen.append((operation.op, tree(fs.clone())))
    fs.open("a", "create").pwrite(0, b"x")
    assert seen == [("open_create", {}), ("pwrite", {"/a": b""})]


def test_a_kill_keeps_what_was_written_and_frees_locks() -> None:
    fs = MemoryFileSystem()
    fs.open("/a", "create").pwrite(0, sector("A"))
    fs.lock("/LOCK", "old")
    dead = fs.kill()
    assert get(dead, "/a") == sector("A")
    assert dead.boot_id() == fs.boot_id()
    assert dead.process() != fs.process()
    assert dead.unsynced_count() == fs.unsynced_count()
    dead.lock("/LOCK", "new")
    with pytest.raises(LockHeld):
        fs.lock("/LOCK", "new")


def test_a_clone_is_independent_both_ways_and_keeps_locks() -> None:
    fs = MemoryFileSystem()
    file = durable_file(fs, "/a", sector("A"))
    fs.lock("/LOCK", "me")
    twin = fs.clone()
    with pytest.raises(LockHeld):
        twin.lock("/LOCK", "other")
    file.pwrite(0, sector("B"))
    twin.open("/b", "create")
    assert get(twin, "/a") == sector("A")
    assert fs.list_directory("/") == ["LOCK", "a"]
    assert twin.log == [Operation("open_create", "/b")]


def test_a_power_cut_changes_the_boot_id_and_frees_locks() -> None:
    fs = MemoryFileSystem()
    fs.lock("/LOCK", "me")
    fs.sync_directory("/")
    (image,) = fs.power_cuts()
    assert image.boot_id() != fs.boot_id()
    image.lock("/LOCK", "other")
    (second,) = image.power_cuts()
    assert len({fs.boot_id(), image.boot_id(), second.boot_id()}) == 3


def test_clock_and_random_bytes_repeat_and_never_recur() -> None:
    first, second = MemoryFileSystem(), MemoryFileSystem()
    draws = [first.random_bytes(8), first.random_bytes(8)]
    assert draws == [second.random_bytes(8), second.random_bytes(8)]
    assert next(first.power_cuts()).random_bytes(8) not in draws
    assert MemoryFileSystem(seed=1).random_bytes(8) != draws[0]
    assert first.now() == second.now() < first.now()


def test_the_image_digest_is_of_what_can_be_observed() -> None:
    def state(data: bytes, *, name: str = "/a", owner: str = "me") -> MemoryFileSystem:
        fs = MemoryFileSystem()
        durable_file(fs, name, data)
        fs.lock("/LOCK", owner)
        return fs

    same = state(b"x").image_digest()
    longer = state(b"x")
    longer.now()
    longer.random_bytes(4)
    longer.open("/a", "write").datasync()
    assert longer.image_digest() == same
    assert state(b"x", owner="another").image_digest() == same
    others = [state(b"y"), state(b"x\0"), state(b"x", name="/b"), next(state(b"x").power_cuts())]
    assert len({same, *(other.image_digest() for other in others)}) == 5
    unsynced = state(b"z")
    unsynced.open("/a", "write").pwrite(0, b"x")
    assert unsynced.image_digest() == same
    assert unsynced.image_digest(unsynced=True) != state(b"x").image_digest(unsynced=True)


# The rest


def test_direct_files_refuse_what_is_not_aligned() -> None:
    fs = MemoryFileSystem()
    file = fs.open("/a", "create", direct=True)
    assert file.direct
    whole = memoryview(mmap.mmap(-1, 3 * 4096))
    file.pwrite(4096, whole[4096:8192].toreadonly())
    assert file.pread(0, whole[:8192]) == 8192
    for offset, buffer in ((512, whole[:4096]), (0, whole[:512]), (0, whole[512 : 512 + 4096])):
        for call in (file.pread, file.pwrite):
            with pytest.raises(OSError) as refused:
                call(offset, buffer)
            assert refused.value.errno == errno.EINVAL
    assert MemoryFileSystem(direct=False).open("/a", "create", direct=True).direct is False


def test_a_full_disk() -> None:
    fs = MemoryFileSystem(capacity_bytes=3 * 4096)
    file = fs.open("/a", "create")
    file.pwrite(0, bytes(2 * 4096))
    assert fs.free_bytes("/") == 4096
    calls: list[Callable[[], None]] = [
        lambda: file.pwrite(0, bytes(4 * 4096)),
        lambda: file.truncate(1 << 20),
    ]
    for call in calls:
        with pytest.raises(OSError) as full:
            call()
        assert full.value.errno == errno.ENOSPC
    assert file.size() == 2 * 4096
    file.pwrite(0, b"in place")
    fs.unlink("/a")
    assert fs.free_bytes("/") == 3 * 4096


def test_threads_may_write_side_by_side() -> None:
    fs = MemoryFileSystem()
    files = [fs.open(f"/{at}", "create") for at in range(4)]

    def work(at: int) -> None:
        for place in range(50):
            files[at].pwrite(place * SECTOR, sector(str(at)))
            files[at].datasync()

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fs.sync_directory("/")
    assert tree(next(fs.power_cuts())) == {f"/{at}": sector(str(at), 50) for at in range(4)}
    assert len(fs.log) == 4 + 400 + 1
