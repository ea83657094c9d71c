"""A store and its model in step: any order of calls, openings and deaths of the process.

Openings differ: commits durable or deferred, at once or in flight, with a host cache or without;
the machine remembers what a power cut may go back to. `accidents` adds what goes wrong inside of
an operation, and other processes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from shardstore import Best, Ref, Retention, Store
from shardstore.context import Settings
from shardstore.errors import (
    IncompleteCommitError,
    NameTakenError,
    PartNotFoundError,
    RefNotFoundError,
    TransactionError,
    UsageError,
)
from shardstore.format.names import RAW, slot_of
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from tests.stateful.model import UNDO_ENTRIES, Content, MCommit, Model
from tests.support.stores import content, object_files, open_store, value_of
from tests.support.workers import HeldWorkers

SETTINGS = Settings(prewrite_bytes=8192, commits_per_segment=5, host_budget_bytes=0)
PARTS = [("a", "p"), ("a", "q"), ("b", "p")]
NAMES = ["x", "y", "z"]
part_of = st.sampled_from(PARTS)
OPENINGS: list[dict[str, Any]] = [
    {"durability": durability, "host_budget_bytes": budget, "in_flight": in_flight}
    for durability in ("commit", "deferred")
    for budget in (0, 40_000, 1 << 30)
    for in_flight in (0, 3)
]


class Disk(MemoryFileSystem):
    """Its clock can be set."""

    shift = 0.0

    def now(self) -> float:
        return super().now() + self.shift


class StoreMachine(RuleBasedStateMachine):
    @initialize(opening=st.sampled_from(OPENINGS))
    def create(self, opening: dict[str, Any]) -> None:
        self.fs = Disk()
        self.faulty = FaultyFileSystem(self.fs)
        self.model = Model()
        self.views: list[tuple[Any, int]] = []
        self.before: list[Model] = []
        """What a power cut may go back to: the last durable state and what came after it."""
        self.store = open_store(self.faulty, settings=self._settings(opening))
        self.txn: Any = None
        self.staged: dict[tuple[str, str], int | None] = {}
        self.said: set[tuple[str, str]] = set()
        self.value = 0
        self.sets = self.more = self.odd = 0

    # The transaction

    def _parent(self) -> Content:
        return dict(self.model.head.content) if self.model.head else {}

    @rule(step=st.integers(0, 3), behind=st.booleans())
    def begin(self, step: int, behind: bool) -> None:
        base = self.model.head.step if self.model.head else 0
        if self.txn is not None:
            with pytest.raises(TransactionError):
                self.store.begin(base)
        elif behind and base:
            with pytest.raises(TransactionError):
                self.store.begin(base - 1)
        else:
            self.txn = self.store.begin(base + step)
            self.staged, self.said = {}, set()

    @precondition(lambda self: self.txn is not None)
    @rule(part=part_of)
    def stage(self, part: tuple[str, str]) -> None:
        self.value += 1
        self.txn.stage(*part, content(self.value))
        self.staged[part] = self.value
        self.said.add(part)

    @precondition(lambda self: self.txn is not None)
    @rule(part=part_of, donate=st.booleans(), watched=st.booleans())
    def check_out(self, part: tuple[str, str], donate: bool, watched: bool) -> None:
        if watched:
            self.look(part)
        now = self._seen().get(part)
        if now is None:
            with pytest.raises(PartNotFoundError):
                self.txn.checkout(*part)
            return
        checkout = self.txn.checkout(*part)
        assert int(checkout.numpy()["n"]) == now
        checkout.numpy()["n"][...] = self.value + 1
        checkout.numpy()["w"][...] = self.value + 1
        if donate:
            self.value += 1
            self.txn.stage(*part, checkout, donate=True)
            self.staged[part] = self.value
            self.said.add(part)

    @precondition(lambda self: self.txn is not None)
    @rule(part=part_of)
    def keep(self, part: tuple[str, str]) -> None:
        if part not in self._parent():
            with pytest.raises(PartNotFoundError):
                self.txn.keep(*part)
            return
        self.txn.keep(*part)
        self.staged.pop(part, None)
        self.said.add(part)

    @precondition(lambda self: self.txn is not None)
    @rule(part=part_of)
    def remove(self, part: tuple[str, str]) -> None:
        if part not in self._parent() and self.staged.get(part) is None:
            with pytest.raises(PartNotFoundError):
                self.txn.remove(*part)
            return
        self.txn.remove(*part)
        self.staged[part] = None
        self.said.add(part)

    @precondition(lambda self: self.txn is not None)
    @rule()
    def keep_rest(self) -> None:
        self.txn.keep_rest()
        self.said |= set(self._parent())

    def _seen(self) -> Content:
        merged = {**self._parent(), **self.staged}
        return {part: value for part, value in merged.items() if value is not None}

    @precondition(lambda self: self.txn is not None)
    @rule(part=part_of)
    def load_inside(self, part: tuple[str, str]) -> None:
        now = self._seen().get(part)
        if now is None:
            with pytest.raises(PartNotFoundError):
                self.txn.load(*part)
            return
        with self.txn.load(*part) as loaded:
            assert int(loaded.numpy()["n"]) == now

    def _whole_commit(self, step: int, parts: set[tuple[str, str]]) -> None:
        """A step of an ordinary run: some parts are staged, the rest stays."""
        if self.txn is None:
            self.begin(step, behind=False)
        for part in sorted(parts):
            self.stage(part)
        self.keep_rest()
        self.commit()

    # Most of what happens to a store are commits: three of a kind, so that they are drawn often.
    commit_1 = commit_2 = commit_3 = rule(
        step=st.integers(0, 2), parts=st.sets(part_of, min_size=1)
    )(_whole_commit)

    def _settings(self, opening: dict[str, Any]) -> Settings:
        self.deferred = opening["durability"] == "deferred"
        self.in_flight = opening["in_flight"]
        return replace(
            SETTINGS,
            durability=opening["durability"],
            host_budget_bytes=opening["host_budget_bytes"],
            workers=HeldWorkers() if self.in_flight else None,
            commits_in_flight=max(1, self.in_flight),
            sync_every=4,
        )

    @precondition(lambda self: self.txn is not None)
    @rule()
    def commit(self) -> None:
        missing = set(self._parent()) - self.said
        if missing:
            with pytest.raises(IncompleteCommitError) as caught:
                self.txn.commit()
            assert set(caught.value.missing) == missing
            return
        metadata = {"metrics": {"loss": (self.value * 7) % 5}}
        self.before.append(self.model.copy())
        if self.in_flight:
            self.txn.commit_async(metadata=metadata)
            made = self.store.head
            assert made is not None
        else:
            made = self.txn.commit(metadata=metadata)
        assert made.parts == set(self._seen())
        if made.durable and not self.in_flight:
            self.before = []
        self.model.committed(made.seq, made.step, self._seen(), (self.value * 7) % 5)
        self.txn = None

    @precondition(lambda self: self.txn is not None)
    @rule()
    def abort(self) -> None:
        self.txn.abort()
        self.txn = None

    @rule()
    def sync(self) -> None:
        self.store.sync()
        self.before = []
        assert self.store.durable_head == self.store.head

    @rule(parts=st.lists(part_of))
    def prefetch(self, parts: list[tuple[str, str]]) -> None:
        there = [part for part in parts if part in self._parent()]
        if there:
            assert 0 <= self.store.prefetch(there) <= len(there)

    @rule(part=part_of)
    def look(self, part: tuple[str, str]) -> None:
        """A view of what was loaded, which somebody keeps."""
        if part in self._parent():
            with self.store.load(*part) as loaded:
                self.views = [*self.views, (loaded.numpy()["w"], self._parent()[part])][-3:]

    @invariant()
    def views_keep_their_bytes(self) -> None:
        assert all((view == value).all() for view, value in self.views)

    @rule()
    def clear_cache(self) -> None:
        self.store.clear_cache()

    # Refs

    def _try_beside(self, call: Any) -> None:
        """An open transaction stands in the way, as it has to; then it is given up. What follows
        is durable, if it happens."""
        if self.txn is not None:
            with pytest.raises(TransactionError):
                call()
            self.abort()

    @rule(name=st.sampled_from(NAMES), at=st.sampled_from(["head", *NAMES]))
    def snapshot(self, name: str, at: str) -> None:
        model = self.model
        target = model.head if at == "head" else model.snapshots.get(at) or model.heads.get(at)
        self._try_beside(lambda: self.store.snapshot(name, at))
        if target is None:
            with pytest.raises(RefNotFoundError):
                self.store.snapshot(name, at)
        elif model.taken(name):
            with pytest.raises(NameTakenError):
                self.store.snapshot(name, at)
        else:
            assert self.store.snapshot(name, at).seq == target.seq
            self.before = []
            model.named_as(name, target)

    @rule(name=st.sampled_from([*NAMES, "main"]), data=st.data())
    def branch(self, name: str, data: st.DataObject) -> None:
        self._try_beside(lambda: self.store.branch(name))
        if self.model.head is None:
            with pytest.raises((RefNotFoundError, NameTakenError)):
                self.store.branch(name)
            return
        target = data.draw(st.sampled_from(sorted(self.model.named().values(), key=_seq)))
        if self.model.taken(name):
            with pytest.raises(NameTakenError):
                self.store.branch(name, Ref.seq(target.seq))
            return
        assert self.store.branch(name, Ref.seq(target.seq)).seq == target.seq
        self.before = []
        self.model.stand(name, target)

    def _switch(self, name: str) -> None:
        self._try_beside(lambda: self.store.switch(name))
        if name == self.model.current or name not in self.model.heads:
            with pytest.raises(UsageError):
                self.store.switch(name)
            return
        self.store.switch(name)
        self.before = []
        self.model.switched(name)

    switch_1 = switch_2 = rule(name=st.sampled_from([*NAMES, "main"]))(_switch)

    @rule(name=st.sampled_from([*NAMES, "main"]))
    def delete(self, name: str) -> None:
        self._try_beside(lambda: self.store.delete(name))
        model = self.model
        if name == model.current:
            with pytest.raises(UsageError, match="current"):
                self.store.delete(name)
        elif not model.taken(name):
            with pytest.raises(RefNotFoundError):
                self.store.delete(name)
        else:
            self.store.delete(name)
            self.before = []
            model.deleted(name)

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        self._try_beside(lambda: self.store.rewind("head"))
        if self.model.head is None:
            with pytest.raises(RefNotFoundError):
                self.store.rewind("head")
            return
        target = data.draw(st.sampled_from(sorted(self.model.named().values(), key=_seq)))
        names = [n for n, c in self.model.snapshots.items() if c.seq == target.seq]
        by_name = bool(names) and data.draw(st.booleans())
        found = self.store.rewind(names[0] if by_name else Ref.seq(target.seq))
        self.before = []
        assert found.seq == target.seq
        self.model.rewound(target)

    def _undo(self) -> None:
        self._try_beside(self.store.undo)
        entry = self.model.next_undo()
        if entry is None:
            with pytest.raises(UsageError, match="nothing to undo"):
                self.store.undo()
            return
        if entry.op == "delete" and self.model.taken(entry.name):
            with pytest.raises(NameTakenError):
                self.store.undo()
            return
        self.store.undo()
        self.before = []
        self.model.undone()

    undo_1 = undo_2 = rule()(_undo)

    # Space

    @rule(last=st.integers(1, 4), every=st.sampled_from([None, None, 1, 2, 3]),
          mode=st.sampled_from(["min", "max", None]), count=st.integers(1, 2))  # fmt: skip
    def set_retention(self, last: int, every: int | None, mode: Any, count: int) -> None:
        best = Best(metric="metrics.loss", mode=mode, count=count) if mode else None
        changed = Retention(last=last, every=every, best=best)
        self._try_beside(lambda: self.store.set_retention(changed))
        if changed != self.model.rule:
            self.before = []
        self.store.set_retention(changed)
        self.model.rule = changed

    @rule(everything=st.booleans())
    def gc(self, everything: bool) -> None:
        self._try_beside(lambda: self.store.gc())
        before = set(object_files(self.fs))
        expected = self.store.gc(everything=everything, dry_run=True)
        assert set(object_files(self.fs)) == before
        kept = set(self.model.kept)
        self.model.prune()
        done = self.store.gc(everything=everything)
        self.before = []
        assert done == expected and set(done.unkept) == kept - set(self.model.kept)
        after = set(object_files(self.fs))
        assert after <= before and done.files == len(before - after)
        needed, slots = self.store._session.state.needed(), set(map(_slot, after))
        assert needed <= slots
        spare = slots - needed - self.store.pinned_slots()
        assert len(spare) <= (0 if everything else len(PARTS))
        self.sets = self.more = self.odd = 0

    # Openings

    @rule(opening=st.sampled_from(OPENINGS))
    def reopen(self, opening: dict[str, Any]) -> None:
        self.store.close()
        self.before = []
        self._open(opening, None)

    @rule(opening=st.sampled_from(OPENINGS))
    def die(self, opening: dict[str, Any]) -> None:
        """What has landed in the log is there."""
        landed = self.store._session.pipeline.protocol.tail.head
        if not self.in_flight:
            assert (landed.seq if landed else None) == _seq_or_none(self.model.head)
        self.fs = self.fs.kill()
        self._open(opening, landed.seq if landed else None)
        assert _seq_or_none(self.model.head) == (landed.seq if landed else None)

    @rule(data=st.data(), opening=st.sampled_from(OPENINGS))
    def lose_power(self, data: st.DataObject, opening: dict[str, Any]) -> None:
        """What is durable is there, or something newer, whatever else the disk kept."""
        durable = self.store.durable_head
        cuts = list(self.fs.power_cuts(limit=6, samples=4, subsets_max=3))
        self.fs = data.draw(st.sampled_from(cuts))
        self._open(opening, durable.seq if durable else None)

    def _open(self, opening: dict[str, Any], least: int | None) -> None:
        self._start(opening)
        head = self.store.head
        found = head.seq if head else None
        self.model = next(m for m in (self.model, *self.before) if _seq_or_none(m.head) == found)
        possible = [_seq_or_none(m.head) for m in (*self.before, self.model)]
        assert least is None or possible.index(least) <= possible.index(found)
        self.before = []

    def _start(self, opening: dict[str, Any]) -> None:
        """Open for writing; a transaction that was open is gone."""
        self.faulty = FaultyFileSystem(self.fs)
        storage_format = opening.get("format", RAW)
        settings = self._settings(opening)
        self.store = open_store(self.faulty, "r+", settings=settings, format=storage_format)
        self.txn = None

    # What must always hold

    @invariant()
    def the_head_is_the_models(self) -> None:
        head, expected = self.store.head, self.model.head
        assert (head.seq if head else None) == (expected.seq if expected else None)
        if expected is not None:
            assert self._content(Ref.head) == dict(expected.content)

    @invariant()
    def what_is_kept_is_the_models(self) -> None:
        assert shown(self.store) == wanted(self.model)

    @rule()
    def everything_kept_can_be_read(self) -> None:
        for seq, commit in self.model.named().items():
            assert self._content(Ref.seq(seq)) == dict(commit.content)
        for name, commit in self.model.snapshots.items():
            assert self._content(name) == dict(commit.content)
        with open_store(self.fs, "r") as reader:
            for name, commit in self.model.snapshots.items():
                assert reader.commit_of(name).seq == commit.seq

    @rule(step=st.integers(0, 20))
    def a_step_means_one_commit(self, step: int) -> None:
        expected = self.model.by_step(step)
        if isinstance(expected, MCommit):
            assert self.store.commit_of(Ref.step(step)).seq == expected.seq
        else:
            with pytest.raises(expected):
                self.store.commit_of(Ref.step(step))

    @invariant()
    def files_stay_bounded(self) -> None:
        """A set for each distinct commit that is or was kept at once, two to spare; a manifest for
        each snapshot that is named or may come back, one to spare. `odd` files are of other
        formats or were pinned."""
        self.sets = max(self.sets, self.model.distinct_kept())
        snapshots = len(NAMES) + UNDO_ENTRIES + 1
        if self.deferred or self.in_flight:  # what the durable state needs, and what is in flight
            self.more = max(self.more, self.sets + 2 + self.in_flight)
        bound = (self.sets + self.more + 2) * len(PARTS) + snapshots + self.odd
        assert len(object_files(self.fs)) <= bound

    def _content(self, ref: Ref | str) -> Content:
        parts = self.store.commit_of(ref).parts
        return {part: value_of(self.store, *part, ref) for part in parts}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


def shown(store: Store) -> tuple[Any, ...]:
    """What a store says of itself."""
    return (
        [commit.seq for commit in store.kept],
        store.retention,
        {(branch.name, branch.seq, branch.current) for branch in store.branches},
        {snapshot.name: snapshot.seq for snapshot in store.snapshots},
    )


def wanted(model: Model) -> tuple[Any, ...]:
    """The same, as the model has it."""
    return (
        sorted(model.kept),
        model.rule,
        {
            (name, _seq_or_none(commit), name == model.current)
            for name, commit in model.heads.items()
        },
        {name: commit.seq for name, commit in model.snapshots.items()},
    )


def _slot(name: str) -> int:
    place = slot_of(name)
    assert place is not None
    return place[0]


def _seq_or_none(commit: MCommit | None) -> int | None:
    return None if commit is None else commit.seq


def _seq(commit: MCommit) -> int:
    return commit.seq
