"""A full disk, a spent quota, an I/O error at each operation of whatever a store does.

Method: the operations of an action are counted, and the n-th is refused, for every n. The error
names the file and says what is free; the head is one that was committed; and once the refusal is
over the action is made and everything is, digest by digest, what it is without a refusal.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from shardstore import Store
from shardstore.cli.common import EXIT_UNAVAILABLE, exit_code
from shardstore.context import Settings
from shardstore.conversion import convert
from shardstore.errors import PoisonedError, ShardStoreError, StorageError, UsageError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.fs.posix import PosixFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import fsck
from tests.support.stores import PARTS, ROOT, commit, content, expected, open_store, values

pytestmark = [pytest.mark.req("S18"), pytest.mark.timeout(280)]
SETTINGS = Settings(prewrite_bytes=8192, commits_per_segment=4, host_budget_bytes=0)
OPERATIONS_MAX = 1500
TAKES_SPACE = {
    *("open_create", "open_replace", "pwrite", "truncate", "make_directory", "rename"),
    *("datasync", "sync_directory", "lock"),
}


class Refusal:
    """Refuses the n-th operation, and no other."""

    def __init__(self, inner: FileSystem, code: int) -> None:
        self.fs = FaultyFileSystem(inner, before=self._count)
        self.code = code
        self.left = 0
        self.hit: Operation | None = None

    def _count(self, operation: Operation) -> None:
        if operation.op == "release":
            return  # the lock's own failure has its own test
        self.left -= 1
        if self.left == 0:
            self.hit = operation
            raise OSError(self.code, os.strerror(self.code), operation.path)


def image() -> MemoryFileSystem:
    """Three commits, two snapshots, and free slots."""
    fs = MemoryFileSystem()
    with open_store(fs, settings=SETTINGS) as store:
        for step in (1, 2, 3):
            commit(store, step)
            if step < 3:
                store.snapshot(f"s{step}")
    return fs


# Each may be called again after it failed anywhere: what is done is not done twice.


def step_of(store: Store) -> int:
    assert store.head is not None
    return store.head.step


def commits(store: Store) -> None:
    for step in range(step_of(store) + 1, 7):
        commit(store, step)


def in_flight(store: Store) -> None:
    tickets = []
    for step in range(step_of(store) + 1, 7):
        with store.begin(step) as txn:
            for index, part in enumerate(PARTS):
                txn.stage(*part, content(step * 10 + index))
            tickets.append(txn.commit_async())
    for ticket in tickets:
        ticket.result()


def synced(store: Store) -> None:
    commits(store)
    store.sync()


def new_part(store: Store) -> None:
    if step_of(store) < 4:
        with store.begin(4) as txn:
            txn.stage("new", "part", content(7))
            txn.keep_rest()
            txn.commit(metadata={"text": "x" * 20000})


def names(store: Store) -> None:
    if "new" not in {snapshot.name for snapshot in store.snapshots}:
        store.snapshot("new")


def moves(store: Store) -> None:
    if step_of(store) == 3:
        store.rewind("s1")
    if not any(branch.name == "trial" for branch in store.branches):
        store.branch("trial")
    if store.current_branch != "trial":
        store.switch("trial")


def gone(store: Store) -> None:
    if len(store.snapshots) == 2:
        store.delete("s1")


def collected(store: Store) -> None:
    gone(store)
    store.gc(everything=True)


def packed(store: Store) -> None:
    if not next(found for found in store.snapshots if found.name == "s1").archived:
        store.archive("s1")


def converted(store: Store) -> None:
    convert(store, lambda count: None)


def published(store: Store) -> None:
    store.publish("durable")


def published_again(store: Store) -> None:
    """Into a store that is there; first what it gets is made."""
    commits(store)
    published(store)


def cloned(store: Store) -> None:
    fs = store._session.fs
    if not exists(fs.inner if isinstance(fs, FaultyFileSystem) else fs, "copy/STORE"):
        store.clone("copy")


def exists(fs: FileSystem, path: str) -> bool:
    try:
        fs.stat(path)
    except FileNotFoundError:
        return False
    return True


@dataclass(frozen=True)
class Case:
    act: Callable[[Store], None]
    durability: Any = "commit"
    storage_format: str = "raw"
    prepare: Callable[[Store], None] | None = None


CASES = {
    "commits": Case(commits),
    "commits in flight": Case(in_flight),
    "deferred commits": Case(synced, durability="deferred"),
    "a new part and a longer log": Case(new_part),
    "snapshot": Case(names),
    "rewind, branch, switch": Case(moves),
    "delete": Case(gone),
    "gc": Case(collected),
    "archive": Case(packed),
    "convert": Case(converted, storage_format="safetensors"),
    "publish": Case(published),
    "publish again": Case(published_again, prepare=published),
    "clone": Case(cloned),
    "open": Case(lambda store: None),
}


def outcome(fs: FileSystem) -> dict[str, object]:
    """All that can be seen of every store there is, but for times and chances."""
    found: dict[str, object] = {}
    for root in (ROOT, "durable", "copy"):
        if not exists(fs, f"{root}/STORE"):
            continue
        with Store.open(root, fs=fs) as store:
            refs = ["head", *(snapshot.name for snapshot in store.snapshots)]
            found[root] = (
                step_of(store),
                store.current_branch,
                {ref: (store.state_digest(ref), values(store, ref)) for ref in refs},
                [(o.shard, o.part, o.format) for o in store.objects()],
            )
    return found


def settings_of(case: Case) -> Settings:
    return replace(SETTINGS, durability=case.durability, storage_format=case.storage_format)


def run(fs: FileSystem, case: Case) -> None:
    with open_store(fs, settings=settings_of(case)) as store:
        case.act(store)


def prepared(case: Case) -> MemoryFileSystem:
    fs = image()
    if case.prepare is not None:
        run(fs, Case(case.prepare))
    return fs


def check_told(failure: ShardStoreError, refusal: Refusal) -> None:
    hit, text = refusal.hit, str(failure)
    assert hit is not None and isinstance(failure, StorageError | PoisonedError), repr(failure)
    assert exit_code(failure) == EXIT_UNAVAILABLE
    if isinstance(failure, PoisonedError):
        assert "close" in text and os.strerror(refusal.code) in text
        return
    assert hit.path in text and os.strerror(refusal.code) in text, f"{hit}: {text}"
    assert failure.errno == refusal.code
    if refusal.code != errno.EIO and hit.op in TAKES_SPACE:
        assert re.search(r"needed, \d+ free", text), f"{hit}: {text}"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", CASES)
def test_a_refusal_at_every_operation(name: str, code: int) -> None:
    case, begin = CASES[name], prepared(CASES[name])
    undisturbed = begin.clone()
    run(undisturbed, case)
    whole = outcome(undisturbed)
    for nth in range(1, OPERATIONS_MAX):
        if code == errno.EDQUOT and nth % 7 != 1:
            continue  # told from a full disk by its number only
        fs = begin.clone()
        refusal = Refusal(fs, code)
        refusal.left = nth
        try:
            run(refusal.fs, case)
        except (StorageError, PoisonedError) as failure:
            check_told(failure, refusal)
        if refusal.hit is None:
            return
        place = f"operation {nth}: {refusal.hit}"
        with open_store(fs, "r") as reader:
            assert values(reader) == expected(step_of(reader)) or "new" in name, place
        run(fs, case)  # there is space again
        assert outcome(fs) == whole, place
        assert fsck(fs, ROOT, deep=True).clean, place
    raise AssertionError("the action has no end")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["commits", "commits in flight", "snapshot", "gc", "archive"])
def test_the_same_handle_goes_on_after_a_refusal(name: str, code: int) -> None:
    """Without opening again, unless the store says that only the next opening can tell."""
    case, begin = CASES[name], image()
    undisturbed = begin.clone()
    run(undisturbed, case)
    whole = outcome(undisturbed)
    for nth in range(1, OPERATIONS_MAX):
        fs = begin.clone()
        refusal = Refusal(fs, code)
        store = open_store(refusal.fs, settings=SETTINGS)
        refusal.left = nth
        try:
            case.act(store)
        except (StorageError, PoisonedError) as failure:
            check_told(failure, refusal)
        refusal.left = 0
        try:
            case.act(store)
            store.close()
        except PoisonedError:
            store.close()
        poisoned = store._session.context.is_poisoned
        if refusal.hit is None:
            return
        if poisoned:
            run(fs, case)
        assert outcome(fs) == whole, f"operation {nth}: {refusal.hit}"
    raise AssertionError("the action has no end")


# A disk that is full for good


@dataclass
class SmallDisk:
    """A disk of 40 MiB, and a way to leave nothing free on it."""

    fs: FileSystem
    root: str
    real: bool

    def fill(self) -> None:
        if isinstance(self.fs, MemoryFileSystem):
            self.fs.capacity_bytes -= self.fs.free_bytes("/")
            return
        with open(f"{self.root}.ballast", "wb", buffering=0) as file:
            for size in (1 << 20, 4096):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError as full:
                    assert full.errno == errno.ENOSPC

    def empty(self) -> None:
        if isinstance(self.fs, MemoryFileSystem):
            self.fs.capacity_bytes += 16 << 20
        else:
            os.unlink(f"{self.root}.ballast")


def mounted(path: Path, options: str) -> bool:
    """Whether a RAM disk could be mounted there, which takes root."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture(params=["memory", "tmpfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    """The real one where mounting is allowed, else the pretended one twice."""
    place = tmp_path / "disk"
    place.mkdir()
    if request.param == "tmpfs" and mounted(place, "size=40m"):
        yield SmallDisk(PosixFileSystem(), str(place / "run"), real=True)
        subprocess.run(["umount", "-l", str(place)], check=True)
        return
    fs = MemoryFileSystem()
    fs.capacity_bytes = 40 << 20
    yield SmallDisk(fs, ROOT, real=False)


def test_a_full_disk_does_not_stop_the_next_500_commits(disk: SmallDisk) -> None:
    """What they need was taken before: two sets of slots, and zeros ahead of the log's end."""
    with Store.open(disk.root, "a", fs=disk.fs) as store:
        for step in range(1, 6):
            commit(store, step)
        disk.fill()
        assert disk.fs.free_bytes(str(Path(disk.root).parent)) < 4096
        for step in range(6, 506):
            commit(store, step)
        assert values(store) == expected(505)
        step, refused = 505, None
        while refused is None:
            step += 1
            try:
                commit(store, step)
            except StorageError as failure:
                refused = failure
        assert refused.errno == errno.ENOSPC
        assert re.search(r"[1-9]\d* bytes needed, \d+ free", str(refused))
        assert values(store) == expected(step - 1)
        disk.empty()
        commit(store, step)
        assert values(store) == expected(step)
        digest = store.state_digest()
    with Store.open(disk.root, "r+", fs=disk.fs) as store:
        assert store.state_digest() == digest and values(store) == expected(step)
        commit(store, step + 1)
    assert fsck(disk.fs, disk.root, deep=True).clean


# Not allowed


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A store on a read-only mount, or in directories without permission; and the error."""
    place = tmp_path / "disk"
    place.mkdir()
    real = mounted(place, "size=40m")
    with Store.open(place / "run", "a") as store:
        for step in (1, 2):
            commit(store, step)
        store.snapshot("one")
    if real:
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        yield place / "run", errno.EROFS
        subprocess.run(["umount", "-l", str(place)], check=True)
        return
    paths = [place / "run", *(place / "run").rglob("*")]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    yield place / "run", errno.EACCES
    for path in paths:
        path.chmod(path.stat().st_mode | 0o200)


def test_where_nothing_may_be_written_everything_is_read(read_only: tuple[Path, int]) -> None:
    root, code = read_only
    with Store.open(root) as store:
        assert values(store) == expected(2) == values(store, "one")
        with store.pin("one") as view:
            assert view.pinned and view.state_digest() == store.state_digest()
    assert fsck(PosixFileSystem(), str(root), deep=True).clean
    for mode in ("r+", "a"):
        with pytest.raises(StorageError, match=f"{root}/LOCK") as refused:
            Store.open(root, mode)  # type: ignore[arg-type]
        assert refused.value.errno == code and exit_code(refused.value) == EXIT_UNAVAILABLE
        assert os.strerror(code) in str(refused.value)
    with pytest.raises(UsageError, match="new is inside of the store"):
        Store.create(root.parent / "run" / "new")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
@pytest.mark.parametrize("op", ["open_write", "open_create", "pwrite", "rename", "lock"])
def test_a_missing_permission_is_named(op: str, code: int) -> None:
    begin = image()
    fs = begin.clone()
    faulty = FaultyFileSystem(fs)
    rule = faulty.fail(op, error=code, times=None)
    try:
        run(faulty, CASES["commits"])
    except (StorageError, PoisonedError) as failure:
        assert os.strerror(code) in str(failure)
    else:
        raise AssertionError(f"{op} was refused, and nobody told")
    assert rule.hits
    run(fs, CASES["commits"])
    with open_store(fs, "r") as store:
        assert values(store) == expected(6)
