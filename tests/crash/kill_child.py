"""The real `trainer train` as a child process that stops before each event until it is answered.

Contract: `next` gives the events one by one, `answer` lets the child go on, `kill` ends it with
SIGKILL and gives what it still had written. Leaving the context kills and reaps the process and
closes every descriptor, whatever happened. Nothing waits for time to pass: each wait is for the
child's next line, with a limit that only a hung child reaches.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
HUNG_SECONDS = 300.0
SEQ_LEN = 16
VALIDATE_EVERY = 3
SAVE_EVERY = 2
_MODEL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_layers": 6,
    "num_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}

PHASE_OF = {
    "replay": "opening",
    "segment": "opening",
    "load": "load",
    "compute": "compute",
    "stage": "stage",
    "sync_objects": "sync",
    "append": "append",
    "sync": "sync",
    "slot_freed": "slot freed",
}
PHASES = tuple(dict.fromkeys(PHASE_OF.values()))
BETWEEN = "between"
"""Any other event: a commit was acknowledged, a snapshot begins."""
PUBLISHING = ("sync_objects", "append", "sync", "slot_freed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the trace."""

    name: str
    fields: dict[str, Any]
    of_snapshot: bool
    """Whether a snapshot's record is being published, and not a commit's."""

    @property
    def phase(self) -> str:
        return PHASE_OF.get(self.name, BETWEEN)

    @property
    def in_commit(self) -> bool:
        return self.name in PUBLISHING and not self.of_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What every child of one harness trains on."""

    model: Path
    train: Path
    held_out: Path

    @classmethod
    def write(cls, directory: Path) -> Self:
        """A tiny model of nine shards and a few rows of random tokens."""
        inputs = cls(
            model=directory / "model.json", train=directory / "train", held_out=directory / "val"
        )
        inputs.model.write_text(json.dumps(_MODEL))
        draw = np.random.default_rng(20)
        for path, rows in ((inputs.train, 40), (inputs.held_out, 4)):
            path.mkdir()
            tokens = draw.integers(3, _MODEL["vocab_size"], (rows, SEQ_LEN + 1))
            np.save(path / "rows.npy", tokens.astype("<i4"))
        return inputs

    def command(self, run: Path, max_steps: int) -> list[str]:
        """The command line, without the descriptors of the trace."""
        options = {
            "--run-dir": run,
            "--config": self.model,
            "--data-dir": self.train,
            "--val-data-dir": self.held_out,
            "--validate-every": VALIDATE_EVERY,
            "--save-every": SAVE_EVERY,
            "--seq-len": SEQ_LEN,
            "--micro-batch-size": 2,
            "--lr-schedule": "steps",
            "--warmup-steps": 3,
            "--max-steps": max_steps,
        }
        words = [str(word) for pair in options.items() for word in pair]
        return [sys.executable, "-m", "trainer", "train", *words]


@dataclass(slots=True)
class _Pipes:
    """Our ends of the two pipes, and the child's until it has them."""

    events: int
    child_events: int
    child_answers: int
    answers: int
    open: set[int] = field(default_factory=set)

    @classmethod
    def make(cls) -> Self:
        pipes = cls(*os.pipe(), *os.pipe())
        pipes.open = {pipes.events, pipes.child_events, pipes.child_answers, pipes.answers}
        return pipes

    def close(self, *descriptors: int) -> None:
        for descriptor in descriptors or tuple(self.open):
            self.open.discard(descriptor)
            os.close(descriptor)


class TracedTrainer:
    """One child. Use it in a `with` block; one thread."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self._output = output
        self._pipes = _Pipes.make()
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._snapshot = False
        own = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, own)),
        }
        theirs = (self._pipes.child_events, self._pipes.child_answers)
        trace = ["--trace-fd", str(theirs[0]), "--trace-answer-fd", str(theirs[1])]
        try:
            with output.open("ab") as file:
                self._process = subprocess.Popen(
                    [*command, *trace],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=environment,
                    pass_fds=theirs,
                )
            self._pipes.close(*theirs)
        except BaseException:
            self._pipes.close()
            raise

    def next(self) -> Event | None:
        """The next event, which the child has not begun; None when it has ended."""
        while not self._lines:
            if not self._wait_for_line(HUNG_SECONDS):
                raise AssertionError(f"no event in {HUNG_SECONDS:.0f} s: {self.said()}")
            if not self._read():
                return None
        return self._event(self._lines.popleft())

    def answer(self) -> None:
        """Let the child do what it has announced."""
        # A child that has just died is found by the next line, which does not come.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipes.answers, b".")

    def race(self, seconds: float) -> None:
        """Answer, and return at the child's next line or after so long: anywhere within."""
        self.answer()
        self._wait_for_line(seconds)

    def kill(self) -> list[Event]:
        """SIGKILL; the events that had not been read yet."""
        self._process.kill()
        self._process.wait()
        while self._read():
            pass
        events = [self._event(line) for line in self._lines]
        self._lines.clear()
        return events

    def wait(self) -> int:
        """The exit code of a child that ends by itself."""
        return self._process.wait(HUNG_SECONDS)

    def said(self) -> str:
        """The end of what the children of this run wrote on their terminal."""
        return self._output.read_text(errors="replace")[-3000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._process.kill()
            self._process.wait()
        finally:
            self._pipes.close()

    def _wait_for_line(self, seconds: float) -> bool:
        return bool(self._lines or select.select([self._pipes.events], [], [], seconds)[0])

    def _read(self) -> bool:
        """Take what the pipe holds; False at its end."""
        found = os.read(self._pipes.events, 65536)
        *lines, self._rest = (self._rest + found).split(b"\n")
        self._lines.extend(lines)
        assert found or not self._rest, f"half a line in the trace: {self._rest!r}"
        return bool(found)

    def _event(self, line: bytes) -> Event:
        fields = json.loads(line)
        name = fields.pop("event")
        self._snapshot = name == "snapshot" or (self._snapshot and name in PUBLISHING)
        return Event(name=name, fields=fields, of_snapshot=self._snapshot)
