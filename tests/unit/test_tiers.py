"""Two tiers: what a publication brings, what the durable store keeps, which of both a start takes.

Method: stores in memory; every tensor of a small store says which step it is of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardstore import Best, Ref, Retention, Store, open_active, tiers
from shardstore.errors import LockedError, StorageError, TierConflictError, UsageError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem, Operation
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import fsck
from shardstore.history import read_history, read_step
from shardstore.wal.reader import read_log
from tests.format.independent_reader import IndependentReader
from tests.support.stores import (
    PARTS,
    ROOT,
    SETTINGS,
    commit,
    content,
    expected,
    open_store,
    tree,
    value_of,
    values,
)

pytestmark = pytest.mark.req("S16")
DURABLE = "durable"


def start(fs: MemoryFileSystem, **options: object) -> Store:
    return open_active(ROOT, DURABLE, fs=fs, settings=SETTINGS, **options)  # type: ignore[arg-type]


def behind(fs: MemoryFileSystem, mode: str = "r") -> Store:
    return Store.open(DURABLE, mode, fs=fs, settings=SETTINGS)  # type: ignore[arg-type]


def damage(fs: MemoryFileSystem) -> list[str]:
    return [
        str(finding)
        for path in (ROOT, DURABLE)
        for finding in fsck(fs, path, deep=True).findings
        if finding.severity != "note"
    ]


def story(fs: MemoryFileSystem, path: str) -> list[tuple[int, str, str]]:
    """What somebody did, newest first: sequence number, kind, chain hash."""
    entries = read_history(fs, path, commits_only=False)
    return [(e.seq, e.type, e.id) for e in entries if e.type not in ("open", "base", "sync")]


def train(store: Store, *steps: int) -> None:
    for step in steps:
        commit(store, step, metadata={"loss": 1.0 / step})


def test_only_what_changed_is_copied() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        train(store, 1, 2)
        first = store.publish(DURABLE)
        assert first.created and (first.step, first.records, first.objects) == (2, 2, 6)
        with store.begin(3) as txn:
            txn.stage("a", "params", content(30))
            txn.keep_rest()
            txn.commit()
        second = store.publish(DURABLE)
        assert (second.created, second.step, second.records, second.objects) == (False, 3, 1, 1)
        before = tree(fs, DURABLE)
        again = store.publish(DURABLE)
        assert (again.records, again.objects) == (0, 0) and tree(fs, DURABLE) == before
    with behind(fs) as durable:
        assert value_of(durable, "a", "params") == 30 and value_of(durable, "b", "params") == 22
    assert damage(fs) == []


def test_what_the_cache_holds_is_not_read_but_verified() -> None:
    fs = MemoryFileSystem()
    read: list[str] = []

    def note(operation: Operation) -> None:
        if operation.op == "pread" and operation.path.startswith(f"{ROOT}/objects/"):
            read.append(operation.path)

    settings = replace(SETTINGS, host_budget_bytes=1 << 20)
    with open_store(FaultyFileSystem(fs, before=note), settings=settings) as store:
        train(store, 1)
        store.publish(DURABLE)
        assert not read
        train(store, 2)
        cached = store._session.cache.share(store._session.state.head.manifest["a", "params"])
        cached[0].view[-4096] ^= 1  # as somebody does who has the object open
        store.publish(DURABLE)
        assert len(set(read)) == 1
    with behind(fs) as durable:
        assert values(durable) == expected(2)


def test_names_branches_and_what_can_be_undone_arrive() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        train(store, 1)
        store.publish(DURABLE)
        store.snapshot("one")
        train(store, 2, 3)
        store.branch("trial")
        store.snapshot("gone")
        train(store, 4, 5)
        store.delete("gone")
        store.rewind(Ref.step(4))
        train(store, 6)
        store.switch("trial")
        store.publish(DURABLE)
        told = story(fs, ROOT)
        ids = {s.name: store.commit_of(s.name).id for s in store.snapshots}
    assert story(fs, DURABLE) == told
    with behind(fs, "r+") as durable:
        assert durable.current_branch == "trial" and values(durable) == expected(3)
        assert values(durable, "main") == expected(6) and values(durable, "one") == expected(1)
        assert {s.name: durable.commit_of(s.name).id for s in durable.snapshots} == ids
        for _ in range(3):
            durable.undo()
        assert values(durable) == expected(5) and values(durable, "gone") == expected(3)
        train(durable, 7, 8, 9, 10)
        assert values(durable, "one") == expected(1) and values(durable, "gone") == expected(3)
    assert damage(fs) == []


def test_history_is_whole_after_the_active_store_is_lost() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        for first in (1, 11, 21):
            train(store, *range(first, first + 10))
            store.publish(DURABLE)
        told = story(fs, ROOT)
        train(store, 31)
    fs.rename(ROOT, "lost")
    assert story(fs, DURABLE) == told
    steps = [(e.step, e.status, e.body["metadata"]) for e in read_history(fs, DURABLE)]
    assert steps == [(s, "effective", {"loss": 1.0 / s}) for s in range(30, 0, -1)]
    assert [e.seq for e in read_step(fs, DURABLE, 15)] == [s for s, _, i in told if _is(fs, 15, i)]
    with start(fs) as store:
        assert values(store) == expected(30)
        train(store, 31)
        store.publish(DURABLE)
        assert story(fs, DURABLE) == story(fs, ROOT) and len(story(fs, ROOT)) == len(told) + 1
    assert damage(fs) == []


def _is(fs: MemoryFileSystem, step: int, chain: str) -> bool:
    return any(e.id == chain and e.step == step for e in read_history(fs, DURABLE))


def test_the_durable_store_keeps_by_its_own_rule_and_the_active_rule_comes_back() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        train(store, 1)
        store.set_retention(Retention(last=3))
        store.publish(DURABLE)
        with behind(fs, "r+") as durable:
            durable.set_retention(Retention(last=4, every=10, best=Best(metric="loss", mode="max")))
        for step in range(2, 24):
            train(store, step)
            if step % 5 == 0:
                store.publish(DURABLE)
        store.publish(DURABLE)
        assert [c.step for c in store.kept] == [21, 22, 23]
    with behind(fs) as durable:
        assert [c.step for c in durable.kept] == [1, 10, 15, 20, 23]
        assert all(values(durable, Ref.step(s)) == expected(s) for s in (1, 10, 15, 20, 23))
    fs.rename(ROOT, "lost")
    with start(fs) as store:
        assert store.retention == Retention(last=3) and store.head is not None
    with behind(fs) as durable:
        assert durable.retention.last == 4


def test_a_reader_publishes_beside_the_writer_and_it_is_found_without_a_note() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as writer:
        train(writer, 1)
        with open_store(fs, "r") as reader:
            reader.publish(DURABLE)
        assert writer._session.state.base is None
        train(writer, 2)
        with open_store(fs, "r") as reader:
            assert reader.publish(DURABLE).records == 1
        train(writer, 3)
        done = writer.publish(DURABLE)
        noted = writer._session.state.base
        assert done.records == 1 and noted is not None and noted.step == 3
        assert noted.chain == read_log(fs, DURABLE).last.chain
    with behind(fs) as durable:
        told = durable._session.state.origin
        assert told is not None and told.step == 3


def test_a_transaction_may_be_open() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        train(store, 1)
        with store.begin(2) as txn:
            for shard, part in PARTS:
                txn.stage(shard, part, content(2))
            store.publish(DURABLE)
            txn.commit()
        assert value_of(store, "a", "params") == 2


def test_commits_that_a_power_cut_could_take_are_made_durable_first() -> None:
    fs = MemoryFileSystem()
    deferred = SETTINGS.__class__(
        prewrite_bytes=32 * 1024, host_budget_bytes=0, durability="deferred"
    )
    store = open_store(fs, settings=deferred)
    train(store, 1, 2)
    with open_store(fs, "r") as reader:
        assert reader.publish(DURABLE).step is None
    store.publish(DURABLE)
    assert store.durable_head is not None and store.durable_head.step == 2
    with behind(fs) as durable:
        assert durable.head is not None and durable.head.step == 2
    store.close()


def test_work_on_the_durable_store_refuses_a_publication() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        train(store, 1)
        store.publish(DURABLE)
        with behind(fs, "r+") as durable:
            train(durable, 2)
        before = tree(fs, DURABLE)
        train(store, 2, 3)
        with pytest.raises(TierConflictError, match=r"step 3 .*2 records.*step 2 .*1 records"):
            store.publish(DURABLE)
        assert tree(fs, DURABLE) == before


def test_another_store_is_no_tier() -> None:
    fs = MemoryFileSystem()
    Store.create(DURABLE, fs=fs, settings=SETTINGS).close()
    with open_store(fs) as store, pytest.raises(TierConflictError, match="not a tier of run"):
        store.publish(DURABLE)
    with pytest.raises(TierConflictError, match="not a tier of run"):
        start(fs)


# -------------------------------------------------------------------------------- at a start


def published(fs: MemoryFileSystem) -> None:
    with start(fs) as store:
        train(store, 1, 2)
        store.publish(DURABLE)


def test_the_active_store_goes_on_where_it_has_all() -> None:
    fs = MemoryFileSystem()
    published(fs)
    with start(fs) as store:
        train(store, 3)
        store.rewind(Ref.step(2))
    with start(fs) as store:
        assert values(store) == expected(2)
        store.undo()
        assert values(store) == expected(3)
    assert fs.list_directory("/") == ["durable", "run"] or not fs.list_directory("/")


def test_the_durable_store_goes_on_where_only_it_did_even_to_a_lower_step() -> None:
    fs = MemoryFileSystem()
    published(fs)
    with behind(fs, "r+") as durable:
        durable.rewind(Ref.step(1))
    stale = tree(fs)
    with start(fs) as store:
        assert values(store) == expected(1)
        assert fs.stat(f"{ROOT}.set-aside-1").is_directory
        train(store, 2, 3)
        store.publish(DURABLE)
    old = tree(fs, f"{ROOT}.set-aside-1")
    assert {n.partition("/")[2] for n in stale} <= {n.partition("/")[2] for n in old}
    with behind(fs) as durable:
        assert values(durable) == expected(3)


@pytest.mark.parametrize("take", ["active", "durable"])
def test_where_both_went_on_somebody_has_to_choose_and_the_loser_is_set_aside(take: str) -> None:
    fs = MemoryFileSystem()
    published(fs)
    with behind(fs, "r+") as durable:
        train(durable, 3)
    with open_store(fs) as store:
        train(store, 3, 4)
    with pytest.raises(TierConflictError, match=r"run is at step 4 .*durable is at step 3 "):
        start(fs)
    loser, winner = (DURABLE, 4) if take == "active" else (ROOT, 3)
    with start(fs, take=take) as store:
        assert values(store) == expected(winner)
        train(store, 5)
        store.publish(DURABLE)
    with Store.open(f"{loser}.set-aside-1", fs=fs) as aside:
        assert values(aside) == expected(7 - winner)
    with start(fs) as store:
        assert values(store) == expected(5)
    assert damage(fs) == []


def test_without_a_durable_store_the_active_one_is_opened_or_created() -> None:
    fs = MemoryFileSystem()
    with start(fs) as store:
        train(store, 1)
    with start(fs) as store:
        assert values(store) == expected(1)
        with pytest.raises(LockedError):
            start(fs)
    with pytest.raises(UsageError, match="take is 'newest'"):
        start(fs, take="newest")


@pytest.mark.req("S18")
@pytest.mark.parametrize("op", ["open_*", "pwrite", "datasync", "sync_directory", "rename"])
def test_wherever_a_publication_fails_the_old_state_stays_and_the_next_one_succeeds(
    op: str,
) -> None:
    fs = MemoryFileSystem()
    published(fs)
    with open_store(fs) as store:
        train(store, 3)
        store.snapshot("three")
        train(store, 4)
    for nth in range(1, 1000):
        twin = fs.clone()
        faulty = FaultyFileSystem(twin)
        rule = faulty.fail(op, f"{DURABLE}*", nth=nth)
        with open_store(faulty) as store:
            try:
                assert store.publish(DURABLE).records == 3
                assert values(behind(twin)) == expected(4)
            except StorageError:
                assert values(behind(twin)) in (expected(2), expected(4))
            if not rule.hits:
                break
            store.publish(DURABLE)
        assert values(behind(twin)) == expected(4) and damage(twin) == []
        assert values(behind(twin), "three") == expected(3)
    assert nth > 2


@pytest.mark.req("S18")
@pytest.mark.parametrize("nth", [1, 2])
def test_pins_that_cannot_be_opened_end_in_the_stores_own_error(nth: int) -> None:
    """Found by interrupting system calls: the operating system's error came through."""
    faulty = FaultyFileSystem(MemoryFileSystem())
    with open_store(faulty) as store:
        train(store, 1)
        faulty.fail("open_pins", f"{ROOT}/*", nth=nth)
        with pytest.raises(StorageError, match=f"pinning the state to copy failed on {ROOT}/PINS"):
            store.publish(DURABLE)
        assert store.publish(DURABLE).step == 1


@pytest.mark.req("S28")
def test_another_reader_of_the_format_agrees(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run", "a") as store:
        for step in range(1, 5):
            with store.begin(step) as txn:
                txn.stage("s", "p", {"x": np.arange(step)})
                txn.commit()
            store.publish(tmp_path / "durable")
        digest = store.state_digest()
    for path in (tmp_path / "run", tmp_path / "durable"):
        reader = IndependentReader(path)
        assert reader.check_history() == len(reader.segments)
    with Store.open(tmp_path / "durable") as durable:
        assert durable.state_digest() == digest


def two_tiers(fs: MemoryFileSystem) -> None:
    """Published at step 1; both went on by themselves."""
    with open_store(fs) as store:
        train(store, 1)
        store.publish(DURABLE)
        train(store, 2)
    with behind(fs, "r+") as durable:
        train(durable, 5)


def test_nothing_is_set_aside_while_somebody_writes_there() -> None:
    fs = MemoryFileSystem()
    two_tiers(fs)
    with behind(fs, "r+") as writer:
        with pytest.raises(LockedError, match="is being written"):
            start(fs, take="active")
        train(writer, 6)
    assert values(behind(fs)) == expected(6)
    start(fs, take="active").close()
    assert "durable.set-aside-1" in fs.list_directory("")


def test_what_was_worked_on_meanwhile_is_not_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFileSystem()
    two_tiers(fs)
    rename = tiers.set_aside

    def late(system: FileSystem, path: str, last: str) -> str:
        with open_store(fs, "r+") as store:
            train(store, 3)
        return rename(system, path, last)

    monkeypatch.setattr(tiers, "set_aside", late)
    with pytest.raises(TierConflictError, match="while it was judged"):
        start(fs, take="durable")
    assert values(open_store(fs, "r")) == expected(3)


def test_two_tiers_are_two_directories(tmp_path: Path) -> None:
    root = tmp_path / "a"
    with Store.open(root, "a", settings=SETTINGS) as store:
        train(store, 1)
    (tmp_path / "link").symlink_to("a")
    for other in (root, tmp_path / "link", root / "in", tmp_path / "link" / "in"):
        with Store.open(root, "r", settings=SETTINGS) as store:
            for copy in (store.publish, store.clone):
                with pytest.raises(UsageError, match="the store itself, or inside"):
                    copy(other)
    for take in (None, "durable"):
        with pytest.raises(UsageError, match="two tiers are two directories"):
            open_active(root, tmp_path / "link", settings=SETTINGS, take=take)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "link"]


def test_relative_destinations_are_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with Store.open("a", "a", settings=SETTINGS) as store:
        train(store, 1)
        with pytest.raises(UsageError, match="inside of it"):
            store.clone("a/in")

        @contextmanager
        def moving(_total: int) -> Iterator[Callable[[int], None]]:
            monkeypatch.chdir(tmp_path / "elsewhere")
            yield lambda _count: None

        assert store.clone("b", progress=moving).path == str(tmp_path / "b")
    assert values(Store.open(tmp_path / "b")) == expected(1)


def test_a_clone_of_one_commit_does_not_stand_for_the_whole() -> None:
    """Publishing it would take the durable store's names from it."""
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        for step in (1, 2, 3):
            train(store, step)
            store.snapshot(f"s{step}")
        store.publish(DURABLE)
        store.clone("part", ref="s1")
    with Store.open("part", "r+", fs=fs, settings=SETTINGS) as part:
        with pytest.raises(TierConflictError, match="went on by themselves"):
            part.publish(DURABLE)
        train(part, 10)
        with pytest.raises(TierConflictError, match="take='active'"):
            part.publish(DURABLE)
        part.publish("another")
        train(part, 11)
        part.publish("another")
    with behind(fs) as durable:
        assert [s.name for s in durable.snapshots] == ["s1", "s2", "s3"]
        assert values(durable) == expected(3)
    with Store.open("another", fs=fs, settings=SETTINGS) as other:
        assert values(other) == expected(11)


def test_where_only_the_durable_store_went_on_the_message_says_so() -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        train(store, 1)
        store.publish(DURABLE)
        with behind(fs, "r+") as durable:
            train(durable, *range(2, 9))
        with pytest.raises(TierConflictError, match="the durable store went on") as caught:
            store.publish(DURABLE)
    with behind(fs) as durable:
        newest = durable.head
    assert newest is not None and f"{newest.seq};" in str(caught.value)
