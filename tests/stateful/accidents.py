"""What goes wrong around a store, and what others do with it, added to the machine.

An accident hits one operation: the disk refuses at its n-th call, or the process dies there, with
or without power. Before it everything is durable; afterwards the store is what the model was before
the operation or what it is after it, whole, and goes on. Readers in other processes pin commits;
a durable store is published to; clones are made of all or of one commit, and stay what they were;
files are damaged, in a copy; clocks jump.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import invariant, precondition, rule

from shardstore import Best, CorruptionError, PinnedView, Ref, Retention, Store
from shardstore.conversion import convert
from shardstore.errors import (
    NotAStoreError,
    PoisonedError,
    RefNotFoundError,
    ShardStoreError,
    StorageError,
    StoreExistsError,
    UsageError,
)
from shardstore.format.names import PT, RAW, SAFETENSORS
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import CrashPoint
from shardstore.fsck import fsck
from tests.stateful.machine import (
    NAMES,
    OPENINGS,
    PARTS,
    Content,
    Disk,
    MCommit,
    Model,
    StoreMachine,
    _seq,
    _seq_or_none,
    part_of,
    shown,
    wanted,
)
from tests.support.stores import ROOT, content, object_files, open_store, tree, value_of

DURABLE = "durable"
PINS_MAX = 2

Fault = Callable[[FaultyFileSystem, int], object]
FAULTS: dict[str, Fault] = {
    "full": lambda fs, nth: fs.fail("pwrite", nth=nth, times=None, error=errno.ENOSPC),
    "full for once": lambda fs, nth: fs.fail("pwrite", nth=nth, error=errno.ENOSPC),
    "no inode": lambda fs, nth: fs.fail("open_create", nth=nth, error=errno.ENOSPC),
    "unreadable": lambda fs, nth: fs.fail("pread", nth=nth),
    "unwritable": lambda fs, nth: fs.fail("pwrite", nth=nth),
    "half a write": lambda fs, nth: fs.shorten(nth=nth, kept_bytes=1536),
    "an object's sync": lambda fs, nth: fs.fail_datasync("*/objects/*", nth=nth),
    "the log's sync": lambda fs, nth: fs.fail_datasync("*/wal/*", nth=nth),
    "a directory's sync": lambda fs, nth: fs.fail("sync_directory", nth=nth),
    "rename": lambda fs, nth: fs.fail("rename", nth=nth),
    "renamed all the same": lambda fs, nth: fs.fail("rename", nth=nth, after=True),
    "truncate": lambda fs, nth: fs.fail("truncate", nth=nth),
    "unlink": lambda fs, nth: fs.fail("unlink", nth=nth),
}


@dataclass
class Action:
    """One operation: the call, and what the model makes of it, given the head's number."""

    call: Callable[[], object]
    change: Callable[[Model, int | None], None]


@dataclass
class Pinned:
    """A reader in another process."""

    reader: Store
    view: PinnedView
    held: Content

    def close(self) -> None:
        self.view.close()
        self.reader.close()


@dataclass
class Published:
    """What the durable store may hold; None is no store."""

    states: list[Model | None] = field(default_factory=lambda: [None])


@dataclass
class Clone:
    """A directory that a clone was made into, and what may be there; None is no store."""

    path: str
    states: list[Model | None]
    only: MCommit | None = None
    """The one commit that came along, where it was not all."""

    def check(self, fs: Disk) -> None:
        try:
            store = Store.open(self.path, "r", fs=fs)
        except NotAStoreError:
            assert None in self.states
            return
        with store:
            if self.only is not None:
                assert _seq_or_none_of(store) == self.only.seq and not store.snapshots
                _check_parts(store, Ref.head, self.only)
                return
            found = next(m for m in self.states if m and shown(store) == wanted(m))
            assert _seq_or_none_of(store) == _seq_or_none(found.head)
            for seq, commit in found.kept.items():
                _check_parts(store, Ref.seq(seq), commit)
            for name, commit in found.snapshots.items():
                _check_parts(store, Ref.name(name), commit)


def _check_parts(store: Store, ref: Ref, commit: MCommit) -> None:
    assert all(value_of(store, *part, ref) == value for part, value in commit.content)


class Machine(StoreMachine):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.pins: list[Pinned] = []
        self.published = Published()
        self.clones: list[Clone] = []

    # ------------------------------------------------------------------ operations and accidents

    def _settle(self) -> None:
        """Nothing is open, in flight or unproven."""
        if self.txn is not None:
            self.abort()
        self.sync()

    def _action(self, data: st.DataObject) -> Action | None:
        """An operation that can be done now; None where the one drawn cannot."""
        kinds = [self._commit, self._commit, self._snapshot, self._branch, self._switch_to,
                 self._delete, self._rewind, self._undo_one, self._retain, self._gc,
                 self._archive, self._clone]  # fmt: skip
        return data.draw(st.sampled_from(kinds))(data)

    @rule(data=st.data(), fault=st.sampled_from(sorted(FAULTS)), nth=st.integers(1, 10))
    def refuse(self, data: st.DataObject, fault: str, nth: int) -> None:
        """The disk refuses once, or from then on, until the operation is over."""
        self._settle()
        action = self._action(data)
        if action is None:
            return
        FAULTS[fault](self.faulty, nth)
        try:
            action.call()
        except (StorageError, PoisonedError):
            self.faulty.clear()
            self._after(action, data.draw(st.sampled_from(OPENINGS)))
        else:
            self.faulty.clear()
            self._done(action)

    @rule(data=st.data(), at=st.integers(1, 25), when=st.sampled_from(["before", "during"]),
          power=st.booleans())  # fmt: skip
    def die_inside(
        self, data: st.DataObject, at: int, when: Literal["before", "during"], power: bool
    ) -> None:
        """The process dies at one of its calls; with the power, what was not synced may go."""
        self._settle()
        action = self._action(data)
        if action is None:
            return
        self.fs.crash_at, self.fs.crash_when = len(self.fs.log) + at, when
        try:
            action.call()
        except CrashPoint:
            cuts = list(self.fs.power_cuts(limit=6, samples=4, subsets_max=3)) if power else []
            self._restart(data.draw(st.sampled_from(cuts)) if power else self.fs.kill())
            self._start(data.draw(st.sampled_from(OPENINGS)))
            self._either(action)
        else:
            self.fs.crash_at = None
            self._done(action)

    def _restart(self, disk: Disk) -> None:
        """Every process is gone."""
        self.fs = disk
        self.pins.clear()

    def _done(self, action: Action) -> None:
        old = self.model.copy()
        action.change(self.model, _seq_or_none_of(self.store))
        head = self.store.head
        self.before = [] if head is None or head.durable else [old]

    def _after(self, action: Action, opening: dict[str, Any]) -> None:
        """After an error: the store goes on as it is, or is opened again if it says so."""
        try:
            self.store.begin(1 << 40).abort()
        except PoisonedError:
            with suppress(ShardStoreError):
                self.store.close()
            self._start(opening)
        self._either(action)

    def _either(self, action: Action) -> None:
        """The store is as it was before the operation or as it is after it."""
        after = self.model.copy()
        seq = _seq_or_none_of(self.store)
        undoable = [(entry.op, entry.name, entry.seq) for entry in self.store.undoable]
        found = (shown(self.store), seq, undoable)
        self.before = []
        if found == _all_of(self.model):
            return
        action.change(after, seq)
        assert found == _all_of(after)
        self.model = after

    # ------------------------------------------------------------------ the operations

    def _commit(self, data: st.DataObject) -> Action:
        parts = data.draw(st.sets(part_of, min_size=1))
        asynchronous = bool(self.in_flight) and data.draw(st.booleans())
        step = self.model.head.step + data.draw(st.integers(0, 2)) if self.model.head else 0
        values = {}
        for part in sorted(parts):
            self.value += 1
            values[part] = self.value
        metric = (self.value * 7) % 5
        metadata = {"metrics": {"loss": metric}}
        after = {**self._parent(), **values}

        def call() -> None:
            with self.store.begin(step) as txn:
                for part, value in values.items():
                    txn.stage(*part, content(value))
                txn.keep_rest()
                if asynchronous:
                    txn.commit_async(metadata).result()
                else:
                    txn.commit(metadata)

        def change(model: Model, seq: int | None) -> None:
            assert seq is not None
            model.committed(seq, step, after, metric)

        return Action(call, change)

    def _target(self, data: st.DataObject) -> MCommit | None:
        named = sorted(self.model.named().values(), key=_seq)
        return data.draw(st.sampled_from(named)) if named and self.model.head else None

    def _free_name(self, data: st.DataObject) -> str | None:
        free = [name for name in NAMES if not self.model.taken(name)]
        return data.draw(st.sampled_from(free)) if free else None

    def _snapshot(self, data: st.DataObject) -> Action | None:
        name, target = self._free_name(data), self._target(data)
        if name is None or target is None:
            return None
        return Action(
            lambda: self.store.snapshot(name, Ref.seq(target.seq)),
            lambda model, _: model.named_as(name, target),
        )

    def _branch(self, data: st.DataObject) -> Action | None:
        name, target = self._free_name(data), self._target(data)
        if name is None or target is None:
            return None
        return Action(
            lambda: self.store.branch(name, Ref.seq(target.seq)),
            lambda model, _: model.stand(name, target),
        )

    def _switch_to(self, data: st.DataObject) -> Action | None:
        others = sorted(self.model.heads.keys() - {self.model.current})
        if not others:
            return None
        name = data.draw(st.sampled_from(others))
        return Action(lambda: self.store.switch(name), lambda model, _: model.switched(name))

    def _delete(self, data: st.DataObject) -> Action | None:
        names = sorted({*self.model.snapshots, *self.model.heads} - {self.model.current})
        if not names:
            return None
        name = data.draw(st.sampled_from(names))
        return Action(lambda: self.store.delete(name), lambda model, _: model.deleted(name))

    def _rewind(self, data: st.DataObject) -> Action | None:
        target = self._target(data)
        if target is None:
            return None
        ref = Ref.seq(target.seq)
        return Action(lambda: self.store.rewind(ref), lambda model, _: model.rewound(target))

    def _undo_one(self, _data: st.DataObject) -> Action | None:
        entry = self.model.next_undo()
        if entry is None or (entry.op == "delete" and self.model.taken(entry.name)):
            return None
        return Action(lambda: self.store.undo(), lambda model, _: model.undone())

    def _retain(self, data: st.DataObject) -> Action:
        last = data.draw(st.integers(1, 4))
        best = (
            Best(metric="metrics.loss", mode="min", count=1) if data.draw(st.booleans()) else None
        )
        retention = Retention(last=last, best=best)

        def change(model: Model, _: int | None) -> None:
            model.rule = retention

        return Action(lambda: self.store.set_retention(retention), change)

    def _gc(self, data: st.DataObject) -> Action:
        everything = data.draw(st.booleans())
        return Action(lambda: self.store.gc(everything=everything), lambda model, _: model.prune())

    def _archive(self, data: st.DataObject) -> Action | None:
        names = [s.name for s in self.store.snapshots if not s.archived]
        if not names:
            return None
        name = data.draw(st.sampled_from(names))
        self.odd += 2 * (len(PARTS) + 1)
        return Action(lambda: self.store.archive(name), lambda _model, _seq: None)

    def _clone(self, data: st.DataObject) -> Action:
        """Into a directory of its own; the store itself stays as it is."""
        only = self._target(data) if data.draw(st.booleans()) else None
        made = Clone(f"clone{len(self.clones)}", [None, self.model.copy()], only)

        def call() -> None:
            self.clones.append(made)
            self.store.clone(made.path, ref=None if only is None else Ref.seq(only.seq))
            made.states.remove(None)

        return Action(call, lambda _model, _seq: None)

    # ------------------------------------------------------------------ beside commits and refs

    @rule(name=st.sampled_from(NAMES), other=st.sampled_from([None, *NAMES]))
    def archive(self, name: str, other: str | None) -> None:
        """The same commit, of packed objects."""
        self._try_beside(lambda: self.store.archive(name))
        archived = {s.name: s.archived for s in self.store.snapshots}
        missing = {name, other or name} - archived.keys()
        if missing or archived[name] or other == name:
            with pytest.raises(RefNotFoundError if missing else UsageError):
                self.store.archive(name, against=other)
            return
        done = self.store.archive(name, against=other)
        self.before = []
        self.odd += 2 * (len(PARTS) + 1)
        assert (done.seq, done.objects) == (
            self.model.snapshots[name].seq,
            len(self.model.snapshots[name].content),
        )
        assert next(s for s in self.store.snapshots if s.name == name).archived

    @rule(storage_format=st.sampled_from([RAW, SAFETENSORS, PT]), opening=st.sampled_from(OPENINGS))
    def convert(self, storage_format: str, opening: dict[str, Any]) -> None:
        """The head once more, in files of another format; what is staged next is in it too."""
        self.reopen_with({**opening, "format": storage_format})
        self.odd += 2 * len(PARTS)
        head = self.model.head
        if head is None:
            with pytest.raises(RefNotFoundError):
                convert(self.store, lambda _count: None)
            return
        old = self.model.copy()
        done = convert(self.store, lambda _count: None)
        assert {row.format for row in self.store.objects()} <= {storage_format}
        assert done.step == head.step
        if done.seq != head.seq:
            self.model.committed(done.seq, head.step, dict(head.content), head.metric)
            found = self.store.head
            assert found is not None
            self.before = [] if found.durable else [old]

    def reopen_with(self, opening: dict[str, Any]) -> None:
        self.store.close()
        self.before = []
        self._open(opening, None)

    @rule(seconds=st.sampled_from([-1e9, -3600.0, 1e-3, 86400.0, 1e9]))
    def jump(self, seconds: float) -> None:
        """The clock is set."""
        self.fs.shift += seconds

    # ------------------------------------------------------------------ other processes

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        if self.in_flight:
            self.sync()
        target = self._target(data)
        if target is None:
            return
        while len(self.pins) >= PINS_MAX:
            self.unpin()
        reader = open_store(self.fs, "r")
        view = reader.pin(Ref.seq(target.seq))
        assert view.pinned and view.commit.seq == target.seq
        self.odd += len(PARTS) + 1
        self.pins.append(Pinned(reader, view, dict(target.content)))

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        self.pins.pop(0).close()

    @precondition(lambda self: self.pins)
    @rule()
    def read_pinned(self) -> None:
        """Whatever the writer did meanwhile."""
        for pinned in self.pins:
            for part, value in pinned.held.items():
                with pinned.view.load(*part) as loaded:
                    assert int(loaded.numpy()["n"]) == value

    @rule(data=st.data(), fault=st.sampled_from([None, None, *sorted(FAULTS)]),
          nth=st.integers(1, 30))  # fmt: skip
    def publish(self, data: st.DataObject, fault: str | None, nth: int) -> None:
        """The durable store holds what the active one does; or what it did, if the disk refuses."""
        if fault is not None:
            self._settle()
            FAULTS[fault](self.faulty, nth)
        try:
            self.store.publish(DURABLE)
        except (StorageError, PoisonedError):
            self.faulty.clear()
            self.published.states.append(self.model.copy())
            self._after(_NOTHING, data.draw(st.sampled_from(OPENINGS)))
            return
        self.faulty.clear()
        self.before = []
        self.published = Published([self.model.copy()])

    @rule()
    def the_durable_store_is_what_was_published(self) -> None:
        try:
            durable = Store.open(DURABLE, "r", fs=self.fs)
        except NotAStoreError:
            assert None in self.published.states
            return
        with durable:
            found = next(m for m in self.published.states if m and _refs(m) == _refs_of(durable))
            for name, commit in found.snapshots.items():
                for part, value in commit.content:
                    assert value_of(durable, *part, name) == value
            for part, value in found.head.content if found.head else ():
                assert value_of(durable, *part) == value

    @rule(data=st.data())
    def clone(self, data: st.DataObject) -> None:
        """A clone that nothing happens to; what is in flight lands before."""
        if self.in_flight:
            self.sync()
        self._clone(data).call()
        self.before = []
        self.clones[-1].check(self.fs)

    @precondition(lambda self: any(None in clone.states for clone in self.clones))
    @rule()
    def clone_again(self) -> None:
        """Into what a failure left: its remains are no store and in nobody's way."""
        clone = next(clone for clone in self.clones if None in clone.states)
        try:
            Store.open(clone.path, "r", fs=self.fs).close()
        except NotAStoreError:
            self.store.clone(clone.path)
            self.before = []
            clone.states, clone.only = [self.model.copy()], None
        else:
            clone.states.remove(None)
            with pytest.raises(StoreExistsError):
                self.store.clone(clone.path)
            self.before = []
        clone.check(self.fs)

    @precondition(lambda self: self.clones)
    @rule()
    def the_clones_are_what_was_cloned(self) -> None:
        """Whatever became of the store since."""
        for clone in self.clones:
            clone.check(self.fs)

    # ------------------------------------------------------------------ damage

    @rule(data=st.data())
    def flip(self, data: st.DataObject) -> None:
        """One bit, in a copy: what is read is right, or refused, and then fsck finds it."""
        if self.in_flight:
            self.sync()
        twin = self.fs.kill()
        paths = [path for path, held in sorted(tree(twin).items()) if held]
        path = data.draw(st.sampled_from([path for path in paths if not path.endswith("LOCK")]))
        at = data.draw(st.integers(0, twin.stat(path).size - 1))
        file, byte = twin.open(path, "write"), bytearray(1)
        file.pread(at, byte)
        file.pwrite(at, bytes([byte[0] ^ (1 << data.draw(st.integers(0, 7)))]))
        try:
            with open_store(twin, "r") as store:
                assert _seq_or_none_of(store) == _seq_or_none(self.model.head)
                refs = [Ref.seq(seq) for seq in self.model.named()]
                refs += [Ref.name(name) for name in self.model.snapshots]
                commits = [*self.model.named().values(), *self.model.snapshots.values()]
                for ref, commit in zip(refs, commits, strict=True):
                    for part, value in commit.content:
                        assert value_of(store, *part, ref) == value
        except CorruptionError:
            assert any(finding.is_damage for finding in fsck(twin, ROOT, deep=True).findings)

    # ------------------------------------------------------------------ crashes between operations

    @rule(opening=st.sampled_from(OPENINGS))
    def die(self, opening: dict[str, Any]) -> None:
        self.pins.clear()
        super().die(opening)

    @rule(data=st.data(), opening=st.sampled_from(OPENINGS))
    def lose_power(self, data: st.DataObject, opening: dict[str, Any]) -> None:
        self.pins.clear()
        super().lose_power(data, opening)

    @invariant()
    def no_file_is_nobodys(self) -> None:
        """Whatever went wrong: the files of needed slots are there."""
        slots = {int(name[:6], 16) for name in object_files(self.fs)}
        assert self.store._session.state.needed() <= slots

    def teardown(self) -> None:
        for pinned in self.pins:
            pinned.close()
        super().teardown()


_NOTHING = Action(lambda: None, lambda _model, _seq: None)


def _seq_or_none_of(store: Store) -> int | None:
    return None if store.head is None else store.head.seq


def _all_of(model: Model) -> tuple[Any, ...]:
    """What a caller can see; a rewind to the head shows in what can be undone alone."""
    undoable = [
        (entry.op, entry.name, _seq_or_none(entry.snapshot or entry.commit))
        for entry in reversed(model.undo)
        if not entry.done
    ]
    return wanted(model), _seq_or_none(model.head), undoable


def _refs(model: Model) -> tuple[Any, ...]:
    """Head, branches and snapshots: what a publication brings whole."""
    return (*wanted(model)[2:], _seq_or_none(model.head))


def _refs_of(store: Store) -> tuple[Any, ...]:
    return (*shown(store)[2:], _seq_or_none_of(store))
