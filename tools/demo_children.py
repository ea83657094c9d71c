"""The processes that the main job starts: run, watched, killed on purpose, and never left behind.

Contract: what is started is one of the project's own commands, out of the bin directory of the
running Python. Leaving the `with` block of `Children` ends and reaps every one that still runs,
by its process id. What a child says goes to a log file of its own; a child that fails unasked
raises `ChildFailed` with the end of that file.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

TORCH_THREADS = 2
# Equal sums need an equal number of threads. Waiting threads sleep: where others use the machine
# too, threads that spin while they wait make a step several times slower.
_THREADS = {
    "OMP_NUM_THREADS": str(TORCH_THREADS),
    "MKL_NUM_THREADS": str(TORCH_THREADS),
    "OMP_WAIT_POLICY": "PASSIVE",
}
_SHOWN_LINES = 15

OnStep = Callable[[int, float], None]
"""Told of each acknowledged step and its loss."""


class ChildFailed(Exception):
    """A command did not end as it had to. The message is meant for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillPoint:
    """The moment at which a training process is killed: right before an event of its trace."""

    step: int
    """The step that is being made."""
    event: str
    where: str
    """The moment in words."""
    fields: Mapping[str, Any]
    """What the event says of itself; an event without these is another one."""
    occurrence: int = 1


class Watch:
    """Follows a trace: which step is acknowledged, and whether the moment to kill has come."""

    def __init__(self, *, at_step: int, kill: KillPoint | None, on_step: OnStep) -> None:
        self.acknowledged = at_step
        self._kill, self._on_step = kill, on_step
        self._seen = 0

    def reached(self, event: Mapping[str, Any]) -> bool:
        """Whether the child, which announced this event and waits, is to be killed now."""
        if event["event"] == "acknowledged":
            self.acknowledged = int(event["step"])
            if self.acknowledged:  # the initial weights have no loss
                self._on_step(self.acknowledged, float(event["train_loss"]))
        kill = self._kill
        if kill is None or self.acknowledged != kill.step - 1 or event["event"] != kill.event:
            return False
        if any(event.get(name) != value for name, value in kill.fields.items()):
            return False
        self._seen += 1
        return self._seen == kill.occurrence


class Children:
    """Starts commands; one thread. Use it in a `with` block."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._bin = Path(sys.executable).parent
        self._live: list[subprocess.Popen[bytes]] = []
        self._count = 0

    def run(self, *command: str, ok: Sequence[int] = (0,), shown: bool = False) -> str:
        """Run to the end; its standard output. `shown`: its progress belongs on the terminal."""
        log = self._new_log(command)
        with log.open("wb") as errors:
            child = self._start(command, stdout=subprocess.PIPE, stderr=None if shown else errors)
            output, _ = child.communicate()
        self._live.remove(child)
        text = output.decode("utf-8", "replace")
        with log.open("ab") as file:
            file.write(output)
        if child.returncode not in ok:
            raise self._failure(command, child.returncode, log)
        return text

    def train(
        self, *command: str, at_step: int, on_step: OnStep, kill: KillPoint | None = None
    ) -> int:
        """Train to the end or to the kill; the last step whose commit the process reported.

        The process waits after each line of its trace until it is answered; the one that is to
        be killed gets no answer, and so is killed exactly there.
        """
        log = self._new_log(command)
        watch = Watch(at_step=at_step, kill=kill, on_step=on_step)
        with contextlib.ExitStack() as stack:
            (events, child_events), (child_answers, answers) = os.pipe(), os.pipe()
            reader = stack.enter_context(open(events, "rb"))
            writer = stack.enter_context(open(answers, "wb", buffering=0))
            theirs = (child_events, child_answers)
            trace = ("--trace-fd", str(child_events), "--trace-answer-fd", str(child_answers))
            try:
                output = stack.enter_context(log.open("wb"))
                child = self._start(
                    (*command, *trace), stdout=output, stderr=output, pass_fds=theirs
                )
            finally:
                for descriptor in theirs:
                    os.close(descriptor)
            killed = self._follow(child, watch, reader, writer)
        self._live.remove(child)
        if killed != (kill is not None) or child.returncode != (-signal.SIGKILL if kill else 0):
            raise self._failure(command, child.returncode, log)
        return watch.acknowledged

    def close(self) -> None:
        """End what still runs."""
        while self._live:
            child = self._live.pop()
            child.kill()
            child.wait()

    def _follow(
        self, child: subprocess.Popen[bytes], watch: Watch, events: IO[bytes], answers: IO[bytes]
    ) -> bool:
        killed = False
        for line in events:
            if watch.reached(json.loads(line)):
                child.kill()
                killed = True
                break
            # A child that has just died is found by the line that does not come.
            with contextlib.suppress(BrokenPipeError):
                answers.write(b".")
        child.wait()
        return killed

    def _start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        program = self._bin / command[0]
        if not program.exists():
            raise ChildFailed(
                f"{program} does not exist: run tools/demo, which installs it, or install the "
                "project with the extra 'train' into this Python"
            )
        child = subprocess.Popen(
            [str(program), *command[1:]],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_THREADS},
            **options,
        )
        self._live.append(child)
        return child

    def _new_log(self, command: Sequence[str]) -> Path:
        self._count += 1
        return self._logs / f"{self._count:02d}-{command[0]}-{command[1]}.log"

    def _failure(self, command: Sequence[str], code: int, log: Path) -> ChildFailed:
        said = log.read_text("utf-8", "replace").splitlines()[-_SHOWN_LINES:]
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        lines = [f"'{' '.join(command)}' ended with {end}; the end of {log}:"]
        return ChildFailed("\n".join([*lines, *(f"    {line}" for line in said)]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
