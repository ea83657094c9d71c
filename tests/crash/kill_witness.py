"""What must hold of a run after a kill, before anything else touches it.

The witness collects what was known before the kill: commits and snapshots that the child
acknowledged, and those that a reader saw after an earlier kill. `check` opens the run for reading
and compares it with that, and every state that can still be named with the uninterrupted run's at
the same step, bit for bit. `Reference` is the uninterrupted run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardstore import Commit, Ref, Store
from shardstore.fs.posix import PosixFileSystem
from shardstore.fsck import fsck
from shardstore.history import read_history
from tests.crash.kill_child import SAVE_EVERY, Event, Inputs, TracedTrainer
from trainer.state import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One state of a run. Equal facts: the same run, bit for bit."""

    state_digest: str
    trainer_digest: str
    metadata: Mapping[str, Any]
    """Trainer state, losses, gradient norm, model; all but the clock."""

    @classmethod
    def of(cls, store: Store, commit: Commit) -> Facts:
        digests = Run(store).digests(str(Ref.seq(commit.seq)))
        return cls(
            state_digest=digests["state_digest"],
            trainer_digest=digests["trainer_digest"],
            metadata=_timeless(commit.metadata),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The run that was never stopped: its state after each step, and its snapshots."""

    steps: tuple[Facts, ...]
    snapshots: Mapping[str, int]

    @classmethod
    def train(cls, directory: Path, inputs: Inputs, max_steps: int) -> Reference:
        """Train it, and read each step's state while the child waits after its commit."""
        run, output = directory / "reference", directory / "reference.log"
        facts: list[Facts] = []
        with TracedTrainer(inputs.command(run, max_steps), output) as child:
            while (event := child.next()) is not None:
                if event.name == "acknowledged":
                    with Store.open(run) as store:
                        head = store.commit_of()
                        assert head.step == len(facts), f"{event} came at step {head.step}"
                        facts.append(Facts.of(store, head))
                child.answer()
            assert child.wait() == 0, child.said()
        with Store.open(run) as store:
            snapshots = {snapshot.name: snapshot.step for snapshot in store.snapshots}
        assert len(facts) == max_steps + 1
        assert sorted(snapshots.values()) == list(range(SAVE_EVERY, max_steps + 1, SAVE_EVERY))
        shutil.rmtree(run)
        return cls(steps=tuple(facts), snapshots=snapshots)


@dataclass(slots=True)
class Witness:
    """What is known of one run, which goes on over many kills."""

    run: Path
    reference: Reference
    commits: dict[int, int] = field(default_factory=dict)
    """step -> seq, of each commit that was acknowledged, or that a reader saw"""
    seen: int | None = None
    """The newest step that was acknowledged, or that a reader saw; None before the first."""
    snapshots: set[str] = field(default_factory=set)
    logged: int = 0
    """The newest step whose line of the step log was written."""
    pending: str | None = None
    """A snapshot that has begun and is not acknowledged."""
    last: Event | None = None

    def note(self, event: Event) -> None:
        """An event that the child announced: what came before it has been done."""
        self._line_written()
        self.last = event
        if event.name == "acknowledged":
            step = int(event.fields["step"])
            after = 0 if self.seen is None else self.seen + 1
            assert step == after, f"step {step} follows step {self.seen}"
            metrics = self.reference.steps[step].metadata["metrics"]
            assert event.fields.get("train_loss") == metrics.get("train_loss"), f"loss of {step}"
            self.commits[step] = int(event.fields["seq"])
            self.seen = step
        elif event.name == "snapshot":
            self.pending = str(event.fields["name"])
        elif not event.of_snapshot:
            self._snapshot_returned()
        if event.name == "load" and self.seen is None:
            self.seen = 0  # it was killed before it could say that the initial weights are there

    def ended(self) -> None:
        """The child ended by itself, with exit code 0."""
        assert self.seen == len(self.reference.steps) - 1, f"ended at step {self.seen}"
        self._line_written()
        self._snapshot_returned()

    def check(self, *, done: bool) -> str:
        """Check the run after a kill (`done`: of its last announced event); "same" or "+1"."""
        report = fsck(PosixFileSystem(), str(self.run), deep=True)
        assert report.clean, [finding.line() for finding in report.findings]
        with Store.open(self.run) as store:
            found = None if store.head is None else store.head.step
            legal = self._legal_heads(done)
            assert found in legal, f"head at step {found}, legal are {legal}"
            self._check_history(found)
            self._check_states(store)
            self._check_snapshots(store, done)
        self._check_step_log()
        moved, self.seen, self.pending, self.last = found != self.seen, found, None, None
        return "+1" if moved else "same"

    def _line_written(self) -> None:
        if self.last is not None and self.last.name == "acknowledged":
            self.logged = int(self.last.fields["step"])

    def _snapshot_returned(self) -> None:
        if self.pending is not None:
            self.snapshots.add(self.pending)
            self.pending = None

    def _legal_heads(self, done: bool) -> list[int | None]:
        """A record is there once its append is over: only the process died, not the machine."""
        after = 0 if self.seen is None else self.seen + 1
        if self.last is None or not self.last.in_commit or self.last.name == "sync_objects":
            return [self.seen]
        if self.last.name == "append":
            return [self.seen, after] if done else [self.seen]
        return [after]

    def _check_history(self, head: int | None) -> None:
        history = list(read_history(PosixFileSystem(), str(self.run), oldest_first=True))
        steps = [entry.step for entry in history]
        assert steps == list(range(0 if head is None else head + 1)), f"history of steps {steps}"
        for entry, expected in zip(history, self.reference.steps, strict=False):
            assert entry.effective, f"step {entry.step} is {entry.status}"
            metadata, other = _timeless(entry.body["metadata"]), expected.metadata
            assert metadata.keys() == other.keys()
            wrong = {
                key: (metadata[key], other[key]) for key in other if metadata[key] != other[key]
            }
            assert not wrong, f"step {entry.step}, found and expected: {wrong}"
        seqs = {entry.step: entry.seq for entry in history}
        lost = {step: seq for step, seq in self.commits.items() if seqs.get(step) != seq}
        assert not lost, f"acknowledged commits {lost} (step: seq) are not in the history {seqs}"
        self.commits = {entry.step: entry.seq for entry in history if entry.step is not None}

    def _check_states(self, store: Store) -> None:
        """Every state that can be named is whole and the uninterrupted run's at that step."""
        named = [store.commit_of(snapshot.name) for snapshot in store.snapshots]
        for commit in (*store.kept, *named):
            expected = self.reference.steps[commit.step]
            assert Facts.of(store, commit) == expected, f"the state of step {commit.step} differs"
        if store.head is not None:
            for shard, part in sorted(store.head.parts):
                store.load(shard, part).close()  # reads and verifies

    def _check_snapshots(self, store: Store, done: bool) -> None:
        found = {snapshot.name for snapshot in store.snapshots}
        required, allowed = set(self.snapshots), set(self.snapshots)
        if self.pending is not None and self.last is not None and self.last.of_snapshot:
            if self.last.name in ("sync", "slot_freed"):
                required.add(self.pending)
            if self.last.name in ("sync", "slot_freed") or (self.last.name == "append" and done):
                allowed.add(self.pending)
        assert required <= found <= allowed, f"snapshots {found}: {required} to {allowed} are legal"
        self.snapshots = found

    def _check_step_log(self) -> None:
        """Whole lines, no step twice, the losses of the uninterrupted run."""
        path = self.run / "train.jsonl"
        text = path.read_text() if path.exists() else ""
        lines = [json.loads(line) for line in text.split("\n")[:-1]]
        steps = [line["step"] for line in lines]
        assert steps == sorted(set(steps)), f"the step log has steps {steps}"
        for line in lines:
            metrics = self.reference.steps[line["step"]].metadata["metrics"]
            assert line["train_loss"] == metrics["train_loss"], f"step log at step {line['step']}"
        assert not self.logged or self.logged in steps, f"no line of step {self.logged} in {steps}"

    def check_end(self) -> None:
        """The finished run is the uninterrupted one."""
        self.check(done=False)
        with Store.open(self.run) as store:
            assert store.head is not None
            assert Facts.of(store, store.head) == self.reference.steps[-1]
            snapshots = {snapshot.name: snapshot.step for snapshot in store.snapshots}
        assert snapshots == self.reference.snapshots, f"snapshots {snapshots}"


def _timeless(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key != "clock"}
