"""Snapshot, rewind, branch, opening, recovery: against the log's length and the model's size."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare.ours import open_store
from benchmarks.frame.environment import ROOT
from benchmarks.frame.question import Bench, Question
from benchmarks.frame.result import Claim, Figure, Result, Table
from benchmarks.frame.rounds import Variant
from benchmarks.frame.state import make_state
from benchmarks.unsynced import Unsynced
from shardstore import Ref, Store, Transaction
from trainer.presets import PRESETS

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
MAKER = "import sys; from benchmarks import refs; refs.{}(sys.argv[1], sys.argv[2])"
CRASHED = 9
UNTOUCHED = ("STORE", "objects")
"""What an opening leaves alone. STORE's inode tells a store from its copy, so it has to stay."""


class RefsOf:
    """One store, and the changes that are measured on it; each is taken back outside the timing.

    Openings begin from what the process left that made the store and died in its next commit: its
    last segment is as long as one gets. An opening for writing begins another, so that has to be
    taken back too.
    """

    def __init__(self, path: Path, x: float, bench: Bench) -> None:
        self._path = path
        self._x = x
        self._bench = bench
        self._number = 0
        self._store: Store | None = None
        self._image = path.parent / f"{path.name}.image"
        for name in self._changing():
            _copy(path / name, self._image / name)

    def variants(self) -> list[Variant]:
        make = partial(Variant, x=self._x)
        found = [
            make(name="snapshot", act=self._snapshot, before=self._open, after=self._delete),
            make(name="rewind", act=self._rewind, before=self._open, after=self._unrewind),
            make(name="open to read", act=partial(self._opened, "r"), before=self._restore),
            make(name="open to write", act=partial(self._opened, "r+"), before=self._closed),
            make(
                name="recover after a crash",
                act=partial(self._opened, "r+"),
                before=self._restore,
            ),
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

    def _changing(self) -> list[str]:
        return [entry.name for entry in self._path.iterdir() if entry.name not in UNTOUCHED]

    def _restore(self) -> None:
        """As the crash left it."""
        self._close()
        for name in self._changing():
            _remove(self._path / name)
        for entry in self._image.iterdir():
            _copy(entry, self._path / entry.name)

    def _closed(self) -> None:
        """As a writer leaves it that opened it and closed it again."""
        self._close()
        self._opened("r+")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def ask(bench: Bench) -> Result:
    counts = QUICK_COMMITS if bench.quick else COMMITS
    long = [
        RefsOf(crashed(bench, "make_long", _long(bench, count), str(count)), count, bench)
        for count in counts
    ]
    figures = [object_sets(_long(bench, counts[-1]))]
    by_count = _measure(bench, f"By commits in the log, {PARTS} parts each", "commits", long)
    large = [
        RefsOf(
            crashed(bench, "make_large", bench.scratch / name, name),
            round(12 * PRESETS[name].model.parameter_count() / 1e6),
            bench,
        )
        for name in (QUICK_MODELS if bench.quick else MODELS)
    ]
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


def _long(bench: Bench, commits: int) -> Path:
    return bench.scratch / f"log-{commits}"


def _measure(bench: Bench, title: str, axis: str, stores: list[RefsOf]) -> Table:
    table = bench.measure(title, [variant for store in stores for variant in store.variants()])
    table.axis = axis
    for store in stores:
        store.close()
    return table


def crashed(bench: Bench, maker: str, path: Path, what: str) -> Path:
    """A store that a process made, which then died in the middle of a commit."""
    bench.say(f"{path.name}: a store is made")
    words = [sys.executable, "-c", MAKER.format(maker), str(path), what]
    done = subprocess.run(words, cwd=ROOT, check=False)
    if done.returncode != CRASHED:
        raise RuntimeError(f"{maker} ended with {done.returncode}, expected {CRASHED}")
    return path


def make_long(path: str, commits: str) -> None:
    """That many commits of tiny parts, then the crash."""
    store = Store.open(path, "a", fs=Unsynced())
    for step in range(1, int(commits) + 1):
        commit_small(store, step)
    _stage_small(store, int(commits) + 1)
    os._exit(CRASHED)


def commit_small(store: Store, step: int) -> None:
    """Tiny parts: what is measured is the log."""
    _stage_small(store, step).commit(metadata={"train_loss": 9.0 / step, "lr": 1e-3})


def _stage_small(store: Store, step: int) -> Transaction:
    transaction = store.begin(step)
    for index in range(PARTS // 2):
        for part in ("params", "optim"):
            tensors = {"w": np.full(8, step, np.float32)}
            transaction.stage(f"block_{index:03d}", part, tensors)
    return transaction


def make_large(path: str, model: str) -> None:
    """Two commits of a model's state, the second of which keeps all but one part, and the crash."""
    state = make_state(model)
    store = Store.open(path, "a")
    with store.begin(1) as transaction:
        for (shard, part), tensors in state.parts.items():
            transaction.stage(shard, part, tensors)
        transaction.commit()
    state.change()
    (shard, part), tensors = next(iter(state.parts.items()))
    for step in (2, 3):
        transaction = store.begin(step)
        transaction.stage(shard, part, tensors)
        if step == 2:
            transaction.keep_rest()
            transaction.commit()
    os._exit(CRASHED)


def object_sets(path: Path) -> Figure:
    slots = [file for file in (path / "objects").iterdir() if file.is_file()]
    return Figure(name="sets of objects on disk", value=len(slots) / PARTS, unit="x")


QUESTION = Question(
    title="Snapshot, rewind, branch, opening, recovery",
    about="""Each is a change or an opening of a whole store, durable on return. The log is in the
    page cache. Opening to read and recovery start from what a process left that died in the middle
    of its next commit, its last segment as long as its commits make it; opening to write follows a
    clean close. The long logs are made with syncs left out, the measured calls are not.""",
    ask=ask,
)
