"""A process that works on a store: each operation is done for real and noted in the ghost.

A `World` owns one memory file system. What a mutation changes is put around the file system at
every opening (`mutate`), so that rules count from the opening on.

Two ghosts: what a kill may leave (`ghost`: the state in the log, and what is being made or in
flight), and what a power cut may (`cut`: the last durable state, and every one after it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from shardstore.archive import Archived
from shardstore.context import Settings
from shardstore.conversion import convert
from shardstore.errors import NotAStoreError, PoisonedError, ShardStoreError, StorageError
from shardstore.format.names import RAW
from shardstore.format.placement import TensorSpec
from shardstore.format.policy import Retention
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.store import Store
from shardstore.ticket import Ticket
from tests.crash.ghost import EMPTY, NO_STORE, PART, Ghost, GhostState, payload
from tests.crash.oracle import ROOT, Observed, Violation, match, observe

SETTINGS = Settings(prewrite_bytes=16 * 1024, commits_per_segment=3, host_budget_bytes=0)
MakeSettings = Callable[[], Settings]
Mutate = Callable[[FaultyFileSystem, str], None]
"""Called with "create" or "open" before an opening and with "work" after it."""


class CrashFileSystem(MemoryFileSystem):
    """The clock stands still, so that equal histories leave equal images."""

    def now(self) -> float:
        return 1_700_000_000.0

    def file_digest(self, path: str) -> bytes:
        """Digest of a file's bytes; empty where none is."""
        try:
            return self.file_node(self._resolve(path)).content.digest
        except FileNotFoundError:
            return b""

    def holds_what(self, other: CrashFileSystem) -> bool:
        """Whether names, bytes and what is unsynced are the other's."""
        return self._nodes == other._nodes and self._names == other._names


class World:
    """See the module's docstring. Operations raise what the store raises."""

    def __init__(
        self,
        fs: CrashFileSystem,
        ghost: Ghost,
        mutate: Mutate | None = None,
        *,
        cut: Ghost | None = None,
        settings: MakeSettings = lambda: SETTINGS,
    ) -> None:
        self.fs = fs
        self.ghost = ghost
        self.cut = ghost if cut is None else cut
        self._make_settings = settings
        self._settings = settings()
        self._tickets: list[Ticket] = []
        self.faulty = FaultyFileSystem(fs)
        self._mutate = mutate
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    @property
    def state(self) -> GhostState:
        """What the open store shows."""
        return self.ghost[-1]

    # Opening and closing

    def create(self) -> Observed:
        """As `open`, where no store may be."""
        return self.open(create=True)

    def open(self, storage_format: str = RAW, *, create: bool = False) -> Observed:
        """Open for writing, recovering; afterwards one state is the acknowledged one."""
        if NO_STORE in self.ghost and EMPTY not in self.ghost:
            self.ghost = (*self.ghost, EMPTY)
            self.cut = (*self.cut, EMPTY)
        self._settings = self._make_settings()
        self.faulty = FaultyFileSystem(self.fs)
        self._rules("open" if has_store(self.fs) else "create")
        options: dict[str, Any] = {
            "fs": self.faulty,
            "settings": self._settings,
            "format": storage_format,
        }
        try:
            made = Store.create(ROOT, **options) if create else Store.open(ROOT, "a", **options)
            self._store = made
        except ShardStoreError as error:
            raise Violation(f"cannot be opened: {type(error).__name__}: {error}") from error
        self.faulty.clear()
        observed = observe(self._store, self.fs.file_digest)
        self._is_durable(match(self.ghost, observed))
        self._rules("work")
        return observed

    def close(self) -> None:
        if self._store is not None:
            store, self._store = self._store, None
            store.close()
            self._tickets.clear()
            if not store._session.context.is_poisoned:
                self._is_durable(self.state)

    def reopen(self) -> None:
        self.close()
        self.open()

    def fail_to_open(self, fault: Callable[[FaultyFileSystem], object]) -> None:
        """An opening that the disk refuses; the store stays as it is."""
        self.close()
        faulty = FaultyFileSystem(self.fs)
        fault(faulty)
        try:
            Store.open(ROOT, "r+", fs=faulty, settings=self._settings).close()
        except StorageError:
            return
        raise Violation("the store was opened although the disk refused")

    # Changing

    def commit(
        self,
        *stage: str,
        remove: tuple[str, ...] = (),
        flavour: str = "",
    ) -> None:
        """The next step: `stage` are written, the rest but `remove` is kept."""
        head = self.state.head
        step = head.step + 1 if head else 1
        after = self.state.committed(step, flavour, stage, remove)
        in_flight = self._settings.workers is not None
        around = self._begin(after) if in_flight else self._attempt(after, durable=None)
        with around, self.store.begin(step) as txn:
            for shard in stage:
                txn.stage(shard, PART, tensors(shard, step, flavour))
            for shard in remove:
                txn.remove(shard, PART)
            txn.keep_rest()
            if in_flight:
                self._tickets.append(txn.commit_async({"flavour": flavour}))
            else:
                txn.commit({"flavour": flavour})

    def donate(self, shard: str, *, blank: bool = False) -> None:
        """The next step changes a part in the buffer that holds it, or in a new one; the others are
        kept by name."""
        head = self.state.head
        assert head is not None
        step = head.step + 1
        after = self.state.committed(step, "", (shard,), ())
        with self._attempt(after, durable=None), self.store.begin(step) as txn:
            data = tensors(shard, step, "")["w"]
            specs = [TensorSpec(name="w", dtype="U8", shape=data.shape)]
            checkout = txn.blank(shard, PART, specs) if blank else txn.checkout(shard, PART)
            checkout.numpy()["w"][...] = data
            txn.stage(shard, PART, checkout, donate=True)
            for other, _ in head.parts:
                if other != shard:
                    txn.keep(other, PART)
            txn.commit({"flavour": ""})

    def stage_again(self, shard: str) -> None:
        """The next step stages the bytes that the part has: its object is named once more."""
        head = self.state.head
        assert head is not None
        after = self.state.committed(head.step + 1, "", (), ())
        with self._attempt(after, durable=None), self.store.begin(head.step + 1) as txn:
            txn.stage(shard, PART, tensors(shard, *dict(head.parts)[shard]))
            txn.keep_rest()
            txn.commit({"flavour": ""})

    def sync(self) -> None:
        self.store.sync()
        self._tickets.clear()
        self._is_durable(self.state)

    def abort(self, *stage: str, flavour: str = "") -> None:
        """Stage and give up."""
        head = self.state.head
        step = head.step + 1 if head else 1
        with self.store.begin(step) as txn:
            for shard in stage:
                txn.stage(shard, PART, tensors(shard, step, flavour))

    def convert(self, storage_format: str) -> None:
        """Open again and write the head in another storage format: the same state, once more."""
        self.close()
        self.open(storage_format)
        with self._attempt(replace(self.state, previous=self.state.head)):
            convert(self.store, lambda _count: None)

    def archive(self, name: str, against: str | None = None) -> Archived:
        """The same snapshot, of other objects."""
        with self._attempt(self.state):
            return self.store.archive(name, against=against)

    def snapshot(self, name: str) -> None:
        with self._attempt(self.state.named(name)):
            self.store.snapshot(name)

    def delete(self, name: str) -> None:
        with self._attempt(self.state.deleted(name)):
            self.store.delete(name)

    def rewind(self, name: str) -> None:
        with self._attempt(self.state.rewound(name)):
            self.store.rewind(name)

    def branch(self, name: str) -> None:
        with self._attempt(self.state.branched(name)):
            self.store.branch(name)

    def switch(self, name: str) -> None:
        with self._attempt(self.state.switched(name)):
            self.store.switch(name)

    def delete_branch(self, name: str) -> None:
        with self._attempt(self.state.branch_deleted(name)):
            self.store.delete(name)

    def keep_last(self, last: int) -> None:
        with self._attempt(self.state.keeping(last)):
            self.store.set_retention(Retention(last=last))

    def gc(self, *, everything: bool = False) -> None:
        with self._attempt(self.state.collected()):
            self.store.gc(everything=everything)

    def undo(self) -> None:
        with self._attempt(self.state.undone()):
            self.store.undo()

    def check(self) -> None:
        """The open store shows exactly what was acknowledged."""
        match((self.state,), observe(self.store))

    @contextmanager
    def _attempt(self, after: GhostState, *, durable: bool | None = True) -> Iterator[None]:
        """One change that is in the log at the end; with None the store says whether durable."""
        before, ghost, cut = self.state, self.ghost, self.cut
        self.ghost, self.cut = (*ghost, after), (*cut, after)
        try:
            yield
        except PoisonedError:
            raise
        except StorageError:
            self.ghost, self.cut = (before,), cut
            raise
        self._tickets.clear()
        self.ghost = (after,)
        if durable is None:
            head = self.store.head
            durable = head is not None and head.durable
        if durable:
            self._is_durable(after)

    @contextmanager
    def _begin(self, after: GhostState) -> Iterator[None]:
        """A commit that goes on in flight: what has landed by the end counts."""
        self.ghost, self.cut = (*self.ghost, after), (*self.cut, after)
        yield
        landed = 0
        while self._tickets and self._tickets[0].done():
            landed += 1
            if self._tickets.pop(0).result().durable:
                self.cut = self.cut[self.cut.index(self.ghost[landed]) :]
        self.ghost = self.ghost[landed:]

    def _is_durable(self, state: GhostState) -> None:
        self.ghost = self.cut = (state,)

    def _rules(self, phase: str) -> None:
        if self._mutate is not None:
            self._mutate(self.faulty, phase)


def read_only(fs: CrashFileSystem) -> Observed | None:
    """What a reader sees, None where no store is. It must not change a byte."""
    before = fs.clone()
    try:
        store = Store.open(ROOT, "r", fs=fs, settings=SETTINGS)
    except NotAStoreError:
        return None
    except ShardStoreError as error:
        raise Violation(f"cannot be read: {type(error).__name__}: {error}") from error
    observed = observe(store, fs.file_digest)
    store.close()
    if fs.log or not fs.holds_what(before):
        raise Violation(f"opening for reading changed the store: {fs.log}")
    return observed


def given_up(fs: CrashFileSystem) -> Observed:
    """What an opening makes of the log that does not trust what is not proven durable."""
    options: dict[str, Any] = {"settings": SETTINGS, "assume_power_cut": True}
    try:
        with Store.open(ROOT, "r+", fs=fs, **options) as store:
            return observe(store, fs.file_digest)
    except ShardStoreError as error:
        raise Violation(f"cannot be opened without what is unproven: {error}") from error


def has_store(fs: CrashFileSystem) -> bool:
    """Whether the judged store was ever made."""
    try:
        return "STORE" in fs.list_directory(ROOT)
    except FileNotFoundError:
        return False


def tensors(shard: str, step: int, flavour: str) -> dict[str, np.ndarray]:
    """The payload of one writing."""
    return {"w": np.frombuffer(payload(shard, (step, flavour)), dtype=np.uint8)}
