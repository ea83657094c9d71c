"""A reader that pins and a writer that goes on, in turn: each stops before any of its operations.

The reader runs up to its r-th operation on the file system, then the writer up to its w-th, then
the reader to its end, then the writer to its own; afterwards the writer reuses every free slot. A
view that was made has to give one step, whole. Two threads of which one runs at a time: the same
numbers give the same run. What a rule is worth shows when it is left out (`PIN_MUTATIONS`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from shardstore.context import Settings
from shardstore.errors import RefNotFoundError, ShardStoreError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem, Operation
from shardstore.pinned_view import PinnedView
from shardstore.refs import Ref
from shardstore.store import Store
from tests.crash import patches

ROOT = "/run"
SHARDS = ("a", "b")
SETTINGS = Settings(prewrite_bytes=16 * 1024, commits_per_segment=3)
NEVER = 1_000_000
WAIT_SECONDS = 60
"""Only a test that is broken itself waits for longer."""


def commit(store: Store) -> None:
    """The next step; every byte of it says so."""
    step = store.head.step + 1 if store.head else 1
    with store.begin(step) as txn:
        for number, shard in enumerate(SHARDS):
            txn.stage(shard, "p", {"w": np.full(500, step * 10 + number, "i8")})
        txn.commit()


def check(view: PinnedView) -> None:
    """Every read of the view comes from its step."""
    for number, shard in enumerate(SHARDS):
        with view.load(shard, "p") as loaded:
            wanted = view.commit.step * 10 + number
            assert (loaded.numpy()["w"] == wanted).all(), f"{shard} is not that of {view}"


def commits(store: Store) -> None:
    for _ in range(3):
        commit(store)


def delete(store: Store) -> None:
    """The deletion is forgotten by undo, so that its slots are free."""
    store.delete("old")
    for _ in range(3):
        store.rewind("base")
    commit(store)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str
    ref: Ref
    work: Callable[[Store], None]


PROGRAMS = {
    program.name: program
    for program in (
        Program(name="pin the head; commits", ref=Ref.head, work=commits),
        Program(name="pin a step; commits", ref=Ref.step(4), work=commits),
        Program(name="pin a snapshot; it is deleted", ref=Ref.name("old"), work=delete),
    )
}


class Baton:
    """Who may run; once one of the two has ended, the other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turn = "reader"

    def pass_to(self, who: str) -> None:
        with self._changed:
            self._turn = who if self._turn != "end" else "end"
            self._changed.notify_all()

    def await_turn(self, who: str) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._turn in (who, "end"), WAIT_SECONDS):
                raise AssertionError(f"{who} was never given its turn")


class Actor:
    """Stops once, before its operation number `stop`, and hands over."""

    def __init__(self, fs: MemoryFileSystem, name: str, other: str, baton: Baton) -> None:
        self.fs = FaultyFileSystem(fs, before=self._before)
        self.stop = NEVER
        self.operations: list[str] = []
        self._name = name
        self._other = other
        self._baton = baton

    def begin(self, stop: int) -> None:
        self.stop, self.operations = stop, []

    def _before(self, operation: Operation) -> None:
        if len(self.operations) == self.stop:
            self.stop = NEVER
            self._baton.pass_to(self._other)
            self._baton.await_turn(self._name)
        self.operations.append(f"{operation.op} {operation.path.removeprefix(ROOT + '/')}")


class Run:
    """One run; afterwards `found` is what went wrong, empty where nothing did."""

    def __init__(self, program: Program, image: MemoryFileSystem, reader: int, writer: int) -> None:
        self._baton = Baton()
        self._fs = image.clone()
        self.reader = Actor(self._fs, "reader", "writer", self._baton)
        self.writer = Actor(self._fs, "writer", "reader", self._baton)
        self.program = program
        self.stops = (reader, writer)
        self._view: PinnedView | None = None
        self.gone = False
        """The ref was no longer there to pin."""
        self.found = ""
        self._places = self._play(reader, writer)

    def __str__(self) -> str:
        reader, writer = self._places
        return f"reader up to {reader or 'nothing'}; writer up to {writer or 'its end'}"

    def _play(self, reader: int, writer: int) -> tuple[str, str]:
        with (
            Store.open(ROOT, "r+", fs=self.writer.fs, settings=SETTINGS) as store,
            Store.open(ROOT, "r", fs=self.reader.fs, settings=SETTINGS) as source,
        ):
            self.reader.begin(reader)
            thread = threading.Thread(target=self._read, args=(source,))
            thread.start()
            self._baton.await_turn("writer")
            before_reader = self.reader.operations[-1:]
            self.writer.begin(writer)
            self.program.work(store)
            self.writer.stop = NEVER
            before_writer = self.writer.operations[writer - 1 : writer]
            self._baton.pass_to("end")
            thread.join()
            try:
                commits(store)
                self._judge()
            finally:
                if self._view is not None:
                    self._view.close()
        return "".join(before_reader), "".join(before_writer)

    def _read(self, source: Store) -> None:
        try:
            self._view = source.pin(self.program.ref)
        except RefNotFoundError:
            self.gone = True
        except Exception as error:
            self.found = f"{type(error).__name__}: {error}"
        finally:
            self.reader.stop = NEVER
            self._baton.pass_to("end")

    def _judge(self) -> None:
        if self._view is None:
            if self.gone and self.program.ref == Ref.head:
                self.found = "there was no head"
            return
        try:
            assert self._view.pinned
            check(self._view)
        except (ShardStoreError, AssertionError) as error:
            self.found = f"{type(error).__name__}: {error}"


@functools.cache
def prepared() -> MemoryFileSystem:
    """A store in its steady state with two snapshots; closed."""
    fs = MemoryFileSystem()
    with Store.open(ROOT, "a", fs=fs, settings=SETTINGS) as store:
        commit(store)
        store.snapshot("old")
        commit(store)
        store.snapshot("base")
        commit(store)
        commit(store)
    return fs


def lengths(program: Program) -> tuple[int, int]:
    """Operations of the reader and of the writer when nobody interferes."""
    run = Run(program, prepared(), NEVER, NEVER)
    return len(run.reader.operations), len(run.writer.operations)


def runs(program: Program, stride: int) -> Iterator[Run]:
    """Every pair of places to stop at, or every `stride`-th of the writer's."""
    readers, writers = lengths(program)
    for reader in range(readers + 1):
        for writer in range(reader % stride, writers + 1, stride):
            yield Run(program, prepared(), reader, writer)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinMutation:
    name: str
    program: str
    patch: Callable[[], AbstractContextManager[object]] = nullcontext


RULE = "un-keep before testing pins; lock before the kept check, on the log and not on the catalog"
PIN_MUTATIONS = (
    PinMutation(
        name="pins are tested before the commit is un-kept",
        program="pin a step; commits",
        patch=patches.pins_tested_before_unkeeping,
    ),
    PinMutation(
        name="a pinned slot is written all the same",
        program="pin a step; commits",
        patch=patches.pins_ignored,
    ),
    PinMutation(
        name="the kept check comes before the lock",
        program="pin a step; commits",
        patch=patches.kept_check_before_lock,
    ),
    PinMutation(
        name="the kept check asks what lags behind the log",
        program="pin a step; commits",
        patch=patches.kept_check_behind_the_log,
    ),
    PinMutation(
        name="the kept check is left out",
        program="pin a snapshot; it is deleted",
        patch=patches.no_kept_check,
    ),
)


@functools.cache
def caught(index: int) -> Run | None:
    """The first run that goes wrong with the rule broken."""
    mutation = PIN_MUTATIONS[index]
    with mutation.patch():
        return next((run for run in runs(PROGRAMS[mutation.program], 1) if run.found), None)


def render_pins() -> list[str]:
    """The part of the document that is about pins."""
    lines = [
        "Pins are a matter of two processes, not of crashes: a reader and a writer are stopped at",
        "every pair of their operations (`tests/crash/turns.py`), and a view has to give one step.",
        "",
        "| rule | left out or done wrongly | program | first places |",
        "|---|---|---|---|",
    ]
    for index, mutation in enumerate(PIN_MUTATIONS):
        run = caught(index)
        shown = "**NOT CAUGHT**" if run is None else str(run)
        lines.append(f"| {RULE} | {mutation.name} | {mutation.program} | {shown} |")
    return lines
