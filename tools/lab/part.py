"""What a part of the crash laboratory is given, and what it gives back.

Contract: a part works below `Lab.directory` only, looks at `over` between two trials, and tells how
far it is. What it finds wrong is told in the outcome and not raised; an exception is a finding too.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Place, time and seed of one part."""

    directory: Path
    """Empty, on the disk under test."""
    seed: int
    long: bool = False
    """The long profile: a number of trials and not a time."""
    seconds: float = math.inf
    began: float = field(default_factory=time.monotonic)
    output: IO[str] = field(default_factory=lambda: sys.stdout)
    kept: Path | None = None
    """Of a long part: a directory that a stopped call leaves to the next one; see `batches`."""
    commit: str = ""
    """Of the repository: results of another are not added to these."""
    before: int = 0
    """Trials that count in what is told, and were not this batch's."""
    goal: int = 0
    """Of all batches; 0 leaves it to whoever tells."""

    @property
    def until(self) -> float:
        return self.began + self.seconds

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until

    def tell(self, done: int, goal: int = 0) -> None:
        """Progress, for whoever reads this process's output; `goal` where a number is the end."""
        told = {"done": self.before + done, "goal": self.goal or goal}
        print(json.dumps(told), file=self.output, flush=True)

    def say(self, text: str) -> None:
        """A line for the part's log."""
        print(text, file=sys.stderr, flush=True)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a part came to."""

    tried: int = 0
    unit: str = ""
    """What is counted: "crash states", "power cuts"."""
    wrong: list[str] = field(default_factory=list)
    detail: list[str] = field(default_factory=list)
    """Lines for the page."""
    cannot: str = ""
    """Why the part, or some of it, could not be run here."""
    seconds_before: float = 0.0
    """Of the batches that an earlier call did."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One way to break a store."""

    name: str
    what: str
    """In one sentence."""
    weight: int
    """Its share of the time."""
    module: str
    """Has `run(lab) -> Outcome` and, where the machine may forbid it, `why_not() -> str`."""
    touches_disk: bool = True
    """Whether the disk under test matters to it."""


PARTS = (
    Part(
        name="damage",
        what="bytes flipped, files cut, lost, swapped and outdated: nothing wrong may be read.",
        weight=3,
        module="tools.lab.damage",
    ),
    Part(
        name="fullness",
        what="a full disk, an I/O error at each operation, no inodes, file-size limits, read-only.",
        weight=3,
        module="tools.lab.fullness",
    ),
    Part(
        name="calls",
        what="a real process killed, failed and cut short at its system calls (strace).",
        weight=6,
        module="tools.lab.calls",
    ),
    Part(
        name="cuts",
        what="power cuts on a real ext4 in a file: mounted again and recovered in another boot.",
        weight=4,
        module="tools.lab.cuts",
    ),
    Part(
        name="kills",
        what="a real training run ended with SIGKILL again and again; it must end bit for bit the "
        "same.",
        weight=5,
        module="tools.lab.kills",
    ),
    Part(
        name="explorer",
        what="every crash state of a simulated disk, two and three crashes deep.",
        weight=6,
        module="tools.lab.explorer",
        touches_disk=False,
    ),
    Part(
        name="machine",
        what="any order of calls, crashes and openings against a plain model.",
        weight=3,
        module="tools.lab.machine",
        touches_disk=False,
    ),
)
BY_NAME = {part.name: part for part in PARTS}


def guarded(outcome: Outcome, what: str, trial: Callable[..., Any], *arguments: Any) -> None:
    """One trial; what it raises is a finding. More than ten say nothing new."""
    try:
        trial(*arguments)
    except Exception as error:
        if len(outcome.wrong) < 10:
            outcome.wrong.append(f"{what}: {type(error).__name__}: {error}")
        print(f"{what}: {error!r}", file=sys.stderr)
    outcome.tried += 1
