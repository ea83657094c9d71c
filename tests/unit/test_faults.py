"""The file system refuses one operation, each in turn, before or after it took effect.

Whatever is refused: a StorageError or PoisonedError comes out (or nothing, where nothing was at
stake), the head is the old one or the new one and never a mixture, a store that is not poisoned
goes on, and every store opens again and takes the next commit.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from shardstore import Ref, Store
from shardstore.context import Settings
from shardstore.errors import PoisonedError, ShardStoreError, StorageError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.wal.reader import list_segments
from tests.support.stores import PARTS, commit, content, expected, open_store, values

SETTINGS = Settings(prewrite_bytes=8192, commits_per_segment=4, host_budget_bytes=0)
OPERATIONS_MAX = 400
pytestmark = pytest.mark.req("S3", "S4")


class Fault:
    """Counts the operations of a file system and raises at the n-th."""

    def __init__(self, code: int, *, after: bool) -> None:
        self.fs: FaultyFileSystem | None = None
        self.code = code
        self.after = after
        self.left = 0
        self.hit: Operation | None = None

    def around(self, inner: MemoryFileSystem) -> FaultyFileSystem:
        hooks = {"after" if self.after else "before": self._count}
        return FaultyFileSystem(inner, **hooks)

    def _count(self, operation: Operation) -> None:
        if operation.op == "release" or (operation.op == "lock" and self.after):
            return  # the lock's own failure has its own test
        self.left -= 1
        if self.left == 0:
            self.hit = operation
            raise OSError(self.code, os.strerror(self.code), operation.path)


def base_image() -> MemoryFileSystem:
    """A store with three commits, two snapshots, a rewind and a deletion to undo."""
    fs = MemoryFileSystem()
    with open_store(fs, settings=SETTINGS) as store:
        commit(store, 1)
        store.snapshot("one")
        commit(store, 2)
        store.snapshot("two")
        store.rewind("one")
        store.delete("two")
        commit(store, 3)
    return fs


def _grow(store: Store) -> None:
    commit(store, 4, metadata={"text": "x" * 20000})


def _new_part(store: Store) -> None:
    with store.begin(4) as txn:
        txn.stage("new", "part", content(9))
        txn.checkout("a", "params").close()
        txn.load("a", "params").close()
        txn.stage("new", "part", content(4))
        txn.keep_rest()
        txn.commit()


def _go_on(store: Store) -> None:
    """A commit of the usual parts with the value 8, whatever the head holds."""
    assert store.head is not None
    with store.begin(20) as txn:
        for shard, part in store.head.parts - set(PARTS):
            txn.remove(shard, part)
        for (shard, part), value in expected(8).items():
            txn.stage(shard, part, content(value))
        txn.commit()


def _roll(store: Store) -> None:
    for step in (4, 5, 6, 7, 8, 9):
        commit(store, step)


ACTIONS: dict[str, Callable[[Store], object]] = {
    "commit": lambda store: commit(store, 4),
    "commit that grows the log": _grow,
    "commit into a new file": _new_part,
    "commits over a roll": _roll,
    "snapshot": lambda store: store.snapshot("new"),
    "rewind": lambda store: store.rewind("one"),
    "rewind by reading the snapshot": lambda store: store.rewind(Ref.name("one")),
    "delete": lambda store: store.delete("one"),
    "undo": lambda store: store.undo(),
    "load": lambda store: values(store),
    "tensors": lambda store: store.tensors("one"),
}


@dataclass(frozen=True)
class Observed:
    """All that a user can see of a store."""

    head: str
    digests: tuple[tuple[str, str], ...]


def observe(store: Store) -> Observed:
    assert store.head is not None
    names = ("head", *(snapshot.name for snapshot in store.snapshots))
    digests = tuple((name, store.state_digest(name)) for name in names)
    for name in names:
        values(store, name)
    return Observed(f"{store.head.step}:{store.head.id}", digests)


def observe_image(fs: MemoryFileSystem) -> Observed:
    with open_store(fs.clone(), "r") as store:
        return observe(store)


def outcomes(action: Callable[[Store], object]) -> list[Observed]:
    """What the store may be afterwards: as before, or after each record of the action."""
    fs = base_image()
    images: list[MemoryFileSystem] = []

    def note(event: str, _fields: object) -> None:
        if event == "append":
            images.append(fs.kill())

    with open_store(fs, settings=SETTINGS, trace=note) as store:
        found = [observe(store)]
        action(store)
        return [*found, *(observe_image(image) for image in images), observe(store)]


def _content_only(observed: Observed) -> tuple[str, ...]:
    """Without chain hashes, which hold times and write ids."""
    return (observed.head.partition(":")[0], *(f"{n}={d}" for n, d in observed.digests))


@pytest.mark.parametrize(
    ("code", "after"), [(errno.EIO, False), (errno.ENOSPC, False), (errno.EIO, True)]
)
@pytest.mark.parametrize("name", ACTIONS)
def test_a_refusal_inside_an_open_store(name: str, code: int, after: bool) -> None:
    action = ACTIONS[name]
    allowed = {_content_only(observed) for observed in outcomes(action)}
    image = base_image()
    for nth in range(1, OPERATIONS_MAX):
        fs, fault = image.clone(), Fault(code, after=after)
        store = open_store(fault.around(fs), settings=SETTINGS)
        before = observe(store)
        fault.left = nth
        failure: ShardStoreError | None = None
        try:
            action(store)
        except (StorageError, PoisonedError) as error:
            failure = error
        place = f"operation {nth}: {fault.hit}, {failure!r}"
        if fault.hit is None:
            store.close()
            assert nth > 1
            return
        poisoned = store._session.context.is_poisoned
        if isinstance(failure, StorageError) and not poisoned:
            if "roll" not in name:
                assert observe(store) == before, place
            _go_on(store)
            assert values(store) == expected(8), place
            store.close()
        else:
            store.close()
            with open_store(fs, settings=SETTINGS) as again:
                assert _content_only(observe(again)) in allowed, place
                _go_on(again)
        with open_store(fs, "r") as reader:
            assert values(reader) == expected(8), place
    raise AssertionError("the action has no end")


@pytest.mark.parametrize("mode", ["r", "r+", "a"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("end", ["clean", "torn"])
def test_a_refusal_while_opening(mode: str, after: bool, end: str) -> None:
    image = base_image()
    if end == "torn":
        image = _killed_in_the_append(image)
    allowed = observe_image(image)
    for nth in range(1, OPERATIONS_MAX):
        fs, fault = image.clone(), Fault(errno.EIO, after=after)
        system = fault.around(fs)
        fault.left = nth
        failure: ShardStoreError | None = None
        try:
            store = open_store(system, mode, settings=SETTINGS)
        except StorageError as error:
            failure = error
        else:
            done, fault.left = fault.hit is None, 0
            assert observe(store).digests == allowed.digests
            store.close()
            if done:
                return
        assert failure is None or (fault.hit and fault.hit.path in str(failure))
        with open_store(fs, settings=SETTINGS) as again:  # the lock is free
            assert observe(again) == allowed, f"operation {nth}: {fault.hit}, {failure!r}"
            commit(again, 20)
    raise AssertionError("opening has no end")


def _killed_in_the_append(image: MemoryFileSystem) -> MemoryFileSystem:
    """Half of the frame is there; a frame of several blocks, so that half of it is no frame."""
    fs = image.clone()
    faulty = FaultyFileSystem(fs)
    store = open_store(faulty, settings=SETTINGS)
    faulty.shorten("*/wal/*", kept_bytes=8192, nth=2)  # the first grows the log
    with pytest.raises(PoisonedError):
        _grow(store)
    return fs.kill()


@pytest.mark.parametrize("after", [False, True])
def test_a_refusal_while_creating(after: bool) -> None:
    for nth in range(1, OPERATIONS_MAX):
        fs, fault = MemoryFileSystem(), Fault(errno.ENOSPC, after=after)
        system = fault.around(fs)
        fault.left = nth
        try:
            store = open_store(system, settings=SETTINGS)
        except StorageError:
            pass
        else:
            store.close()
            if fault.hit is None:
                return
        with open_store(fs, settings=SETTINGS) as again:
            assert again.head is None, f"operation {nth}: {fault.hit}"
            commit(again, 1)
            assert values(again) == expected(1)
    raise AssertionError("creating has no end")


@pytest.mark.parametrize("name", ["commit", "commit into a new file", "snapshot", "rewind"])
def test_an_interrupt_at_any_step_of_the_protocol(name: str) -> None:
    """Ctrl-C comes anywhere: nothing is mixed, nothing live is written over."""
    allowed = {_content_only(observed) for observed in outcomes(ACTIONS[name])}
    image = base_image()
    for nth in range(1, 40):
        fs, left = image.clone(), 0

        def interrupt(_event: str, _fields: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        store = open_store(fs, settings=SETTINGS, trace=interrupt)
        left = nth
        try:
            ACTIONS[name](store)
        except KeyboardInterrupt:
            left = 0
        else:
            store.close()
            return
        observe(store)
        if not store._session.context.is_poisoned:
            _go_on(store)
            assert values(store) == expected(8)
        store.close()
        if store._session.context.is_poisoned:
            with open_store(fs, settings=SETTINGS) as again:
                assert _content_only(observe(again)) in allowed, nth
                _go_on(again)
    raise AssertionError("the action has no end")


def test_a_lock_that_cannot_be_released_is_told() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    store = open_store(faulty)
    faulty.fail("release", after=True)
    with pytest.raises(StorageError, match="releasing the lock"):
        store.close()
    store.close()
    open_store(fs).close()


def test_a_full_disk_fails_the_commit_and_not_the_store() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        fs.capacity_bytes = 0  # nothing may grow any more
        with pytest.raises(StorageError, match=r"needed, 0 free") as caught:
            commit(store, 2)
        assert caught.value.errno == errno.ENOSPC
        assert values(store) == expected(1)
        fs.capacity_bytes = 1 << 30
        commit(store, 2)
        commit(store, 3)
        fs.capacity_bytes = 0
        commit(store, 4)  # in the steady state a commit allocates nothing
        assert values(store) == expected(4)


def test_a_short_write_of_an_object_is_a_refusal() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    with open_store(faulty) as store:
        commit(store, 1)
        faulty.shorten("*/objects/*", kept_bytes=5000)
        with pytest.raises(StorageError):
            commit(store, 2)
        commit(store, 2)
        assert values(store) == expected(2) and values(store, Ref.step(1)) == expected(1)


@pytest.mark.parametrize("path", ["*/objects/*", "*/wal/*"])
def test_what_a_failed_sync_lost_is_never_taken_for_durable(path: str) -> None:
    """The kernel drops what it could not write and calls it clean; then power fails."""
    image = base_image()
    for nth in (1, 2, 3):
        fs = image.clone()
        faulty = FaultyFileSystem(fs)
        store = open_store(faulty, settings=SETTINGS)
        rule = faulty.fail_datasync(path, nth=nth)
        acknowledged = 3
        try:
            for step in (4, 5, 6):
                commit(store, step)
                acknowledged = step
        except PoisonedError:
            with pytest.raises(PoisonedError, match="close it and open it again"):
                store.begin(7)
            store.close()
            store = open_store(faulty, settings=SETTINGS)
            assert store.head is not None
            acknowledged = store.head.step
        except StorageError:
            commit(store, 6)
            acknowledged = 6
        assert rule.hits == 1
        for cut in fs.power_cuts(limit=50):
            with open_store(cut, settings=SETTINGS) as again:
                assert values(again) == expected(acknowledged)
        store.close()


def test_a_slot_whose_sync_failed_is_not_written_again_by_this_opening() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    staged: list[int] = []

    def note(event: str, fields: Mapping[str, object]) -> None:
        if event == "stage":
            staged.append(int(str(fields["slot"])))

    with open_store(faulty, trace=note) as store:
        commit(store, 1)
        faulty.fail_datasync("*/objects/000004.raw")
        with pytest.raises(StorageError, match=r"000004\.raw"):
            commit(store, 2)
        assert staged[-3:] == [3, 4, 5]
        staged.clear()
        for step in range(2, 9):
            commit(store, step)
        assert 4 not in staged and {3, 5} <= set(staged)


def test_a_poisoned_store_refuses_everything_that_writes_and_still_reads() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    store = open_store(faulty)
    commit(store, 1)
    store.snapshot("one")
    faulty.fail("datasync", "*/wal/*")
    txn = store.begin(2)
    txn.stage("a", "params", content(9))
    txn.keep_rest()
    with pytest.raises(PoisonedError, match="next opening"):
        txn.commit()
    assert txn.finished
    for call in (
        lambda: store.begin(2),
        store.snapshot,
        lambda: store.rewind("one"),
        lambda: store.delete("one"),
        store.undo,
    ):
        with pytest.raises(PoisonedError):
            call()
    assert values(store) == expected(1)
    store.close()
    with open_store(fs) as store:
        assert values(store, "one") == expected(1)
        assert store.head is not None and store.head.step == 2  # this time it had been written


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_fails_no_commit_while_the_old_segment_has_room(code: int) -> None:
    """The segment that is due cannot be made; it is once there is space again."""
    fs = MemoryFileSystem()
    roomy = Settings(prewrite_bytes=256 * 1024, commits_per_segment=2)
    faulty = FaultyFileSystem(fs)
    with open_store(faulty, settings=roomy) as store:
        for step in (1, 2):
            commit(store, step)
        segments = len(list_segments(fs, "run"))
        rule = faulty.shorten("*/wal/tmp", kept_bytes=4096, times=None, error=code)
        for step in (3, 4, 5):
            commit(store, step)
        assert rule.hits == 3
        assert len(list_segments(fs, "run")) == segments and "tmp" not in fs.list_directory(
            "run/wal"
        )
        faulty.clear()
        commit(store, 6)
        assert len(list_segments(fs, "run")) == segments + 1
        assert values(store) == expected(6)
    assert values(open_store(fs, "r")) == expected(6)


def test_a_full_disk_at_a_roll_that_may_be_visible_poisons() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    with open_store(faulty, settings=Settings(prewrite_bytes=8192, commits_per_segment=2)) as store:
        for step in (1, 2):
            commit(store, step)
        faulty.fail("sync_directory", "*/wal", error=errno.ENOSPC)
        with pytest.raises(StorageError):
            commit(store, 3)
        with pytest.raises(PoisonedError):
            commit(store, 3)
    with open_store(fs) as store:
        assert values(store) == expected(2)
