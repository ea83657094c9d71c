"""Snapshot, rewind, branch, opening, recovery: against the log's length and the model's size."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare.ours import open_store
from benchmarks.frame.question import Bench, Question
from benchmarks.frame.result import Claim, Figure, Result, Table
from benchmarks.frame.rounds import Variant
from benchmarks.frame.state import ModelState, make_state
from shardstore import Ref, Store
from shardstore.fs.posix import PosixFile, PosixFileSystem
from shardstore.fs.protocol import OpenMode

COMMITS = (10, 100, 1000, 10_000)
QUICK_COMMITS = (5, 20)
MODELS = ("nano", "v2.8", "v2.9")
QUICK_MODELS = ("nano",)
PARTS = 32
REF_MS_MAX = 5.0
CLAIMS = {
    "snapshot": REF_MS_MAX,
    "rewind": REF_MS_MAX,
    "branch": REF_MS_MAX,
    "open to read": 30.0,
    "recover after a crash": 500.0,
}
CRASH = """
import os, sys
import numpy as np
from shardstore import Store
store = Store.open(sys.argv[1], "r+")
for last in (False, True):
    transaction = store.begin(store.head.step + 1)
    shard, part = sys.argv[2:4]
    transaction.stage(shard, part, {"w": np.full(8, store.head.step, np.float32)})
    if not last:
        transaction.keep_rest()
        transaction.commit()
os._exit(9)
"""


class UnsyncedFile(PosixFile):
    def datasync(self) -> None:
        """Leave it to the kernel."""


class Unsynced(PosixFileSystem):
    """For making long logs: 33 syncs a commit would take minutes and change nothing measured."""

    def open(self, path: str, mode: OpenMode, *, direct: bool = False) -> PosixFile:
        file = super().open(path, mode, direct=False)
        file.__class__ = UnsyncedFile
        return file

    def sync_directory(self, path: str) -> None:
        """Leave it to the kernel."""


class RefsOf:
    """One store, and the changes that are measured on it; each is taken back outside the timing."""

    def __init__(self, path: Path, x: float, bench: Bench) -> None:
        self._path = path
        self._x = x
        self._bench = bench
        self._number = 0
        self._store: Store | None = None
        with Store.open(path) as store:
            self._part = store.tensors()[0]

    def variants(self) -> list[Variant]:
        make = partial(Variant, x=self._x)
        found = [
            make(name="snapshot", act=self._snapshot, before=self._open, after=self._delete),
            make(name="rewind", act=self._rewind, before=self._open, after=self._unrewind),
            make(name="open to read", act=lambda: self._opened("r"), before=self._close),
            make(name="open to write", act=lambda: self._opened("r+"), before=self._close),
            make(name="recover after a crash", act=lambda: self._opened("r+"), before=self._crash),
        ]
        if callable(getattr(Store, "branch", None)):
            found.append(
                make(name="branch", act=self._branch, before=self._open, after=self._delete)
            )
        return found

    def close(self) -> None:
        self._close()

    def _open(self) -> None:
        if self._store is None:
            self._store = open_store(self._path, "r+", self._bench.settings)

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    @property
    def _live(self) -> Any:
        assert self._store is not None
        return self._store

    def _name(self) -> str:
        return f"name-{self._number}"

    def _snapshot(self) -> None:
        self._number += 1
        self._live.snapshot(self._name())

    def _delete(self) -> None:
        self._live.delete(self._name())

    def _rewind(self) -> None:
        self._live.rewind(Ref.seq(self._live.kept[0].seq))

    def _unrewind(self) -> None:
        self._live.undo()

    def _branch(self) -> None:
        self._number += 1
        self._live.branch(self._name())

    def _opened(self, mode: Any) -> None:
        open_store(self._path, mode, self._bench.settings).close()

    def _crash(self) -> None:
        """A process commits, begins another commit, and dies."""
        self._close()
        words = [str(self._path), self._part.shard, self._part.part]
        done = subprocess.run([sys.executable, "-c", CRASH, *words], check=False)
        assert done.returncode == 9, "the process that should crash did something else"


def ask(bench: Bench) -> Result:
    counts = QUICK_COMMITS if bench.quick else COMMITS
    long = [RefsOf(make_long(bench, count), count, bench) for count in counts]
    figures = log_figures(bench.scratch / f"log-{counts[-1]}", counts[-1])
    by_count = _measure(bench, f"By commits in the log, {PARTS} parts each", "commits", long)
    models = [make_state(name) for name in (QUICK_MODELS if bench.quick else MODELS)]
    large = [RefsOf(make_large(bench, state), state.bytes / 1e6, bench) for state in models]
    by_size = _measure(bench, "By size of the state, two commits", "MB of state", large)
    result = Result(tables=[by_count, by_size], figures=figures)
    for row in by_count.rows:
        if row.x == counts[-1] and row.name in CLAIMS:
            text = f"{row.name}, {counts[-1]:,} commits in the log"
            result.claims.append(
                Claim(text=text, value=1000 * row.seconds, unit="ms", at_most=CLAIMS[row.name],
                      noisy=row.noisy)
            )  # fmt: skip
    if not callable(getattr(Store, "branch", None)):
        result.notes.append("this version of the store makes no branches")
    return result


def _measure(bench: Bench, title: str, axis: str, stores: list[RefsOf]) -> Table:
    table = bench.measure(title, [variant for store in stores for variant in store.variants()])
    table.axis = axis
    for store in stores:
        store.close()
    return table


def make_long(bench: Bench, commits: int) -> Path:
    """A store of that many commits of tiny parts."""
    path = bench.scratch / f"log-{commits}"
    bench.say(f"a store of {commits} commits")
    with Store.open(path, "a", fs=Unsynced()) as store:
        for step in range(1, commits + 1):
            with store.begin(step) as transaction:
                for index in range(PARTS // 2):
                    for part in ("params", "optim"):
                        tensors = {"w": np.full(8, step, np.float32)}
                        transaction.stage(f"block_{index:03d}", part, tensors)
                transaction.commit(metadata={"train_loss": 9.0 / step, "lr": 1e-3})
    return path


def make_large(bench: Bench, state: ModelState) -> Path:
    """A store of two commits, the second of which keeps every object but one."""
    path = bench.scratch / f"state-{state.bytes}"
    with open_store(path, "a", bench.settings) as store:
        with store.begin(1) as transaction:
            for (shard, part), tensors in state.parts.items():
                transaction.stage(shard, part, tensors)
            transaction.commit()
        state.change()
        (shard, part), tensors = next(iter(state.parts.items()))
        with store.begin(2) as transaction:
            transaction.stage(shard, part, tensors)
            transaction.keep_rest()
            transaction.commit()
    return path


def log_figures(path: Path, commits: int) -> list[Figure]:
    segments = [file for file in (path / "wal").iterdir() if file.is_file()]
    slots = [file for file in (path / "objects").iterdir() if file.is_file()]
    sets = Figure(name="sets of objects on disk", value=len(slots) / PARTS, unit="x")
    size = sum(file.stat().st_size for file in segments) / commits
    note = f"{commits:,} commits, {len(segments)} segments, zeros ahead included"
    log = Figure(name=f"log, a commit of {PARTS} objects", value=size, unit="B", note=note)
    return [sets, log]


QUESTION = Question(
    title="Snapshot, rewind, branch, opening, recovery",
    about="""Each is a change or an opening of a whole store, durable on return. The log is in the
    page cache. Recovery is the opening for writing after a process committed, began another commit
    and died. The long logs are made with syncs left out, the measured calls are not.""",
    ask=ask,
)
