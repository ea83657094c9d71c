"""A long part in batches: each is kept when it is done, so that a part that was stopped goes on.

Contract: a batch depends on its number and the seed alone, so batches that ran in several calls add
up to what one call would have found. What another commit, seed or plan left is not gone on with and
said to be thrown away. A batch with findings is the last one; without a directory to keep things in
everything is done in this call.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.support.whole_files import write_whole
from tools.lab.part import Lab, Outcome
from tools.work_directory import remove

_FILE = "batches.json"


@dataclass(slots=True, kw_only=True)
class Batch:
    """What one of them came to."""

    tried: int = 0
    wrong: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    """For whoever sums up; goes through JSON."""
    seconds: float = 0.0


def in_batches(
    lab: Lab, unit: str, goal: int, names: list[str], run: Callable[[int, Lab], Batch]
) -> tuple[Outcome, list[dict[str, Any]]]:
    """The outcome so far, without details, and the data of all batches. `goal` is what they are
    expected to try together, `names` what they are called."""
    outcome, done = Outcome(unit=unit), _done_before(lab, names)
    if done:
        outcome.detail.append(f"{len(done)} of {len(names)} batches are an earlier call's")
        outcome.seconds_before = sum(batch.seconds for batch in done)
    while len(done) < len(names) and not any(batch.wrong for batch in done):
        before = sum(batch.tried for batch in done)
        lab.tell(before, goal)
        began = time.monotonic()
        with _place(lab, len(done), before, goal) as place:
            batch = run(len(done), place)
        batch.seconds = time.monotonic() - began
        done.append(batch)
        _keep(lab, names, done)
        if not batch.wrong:
            remove(place.directory)
    outcome.tried = sum(batch.tried for batch in done)
    for name, batch in zip(names, done, strict=False):
        outcome.wrong += [f"{name}: {wrong}" for wrong in batch.wrong]
    return outcome, [batch.data for batch in done]


@contextmanager
def _place(lab: Lab, number: int, before: int, goal: int) -> Iterator[Lab]:
    """The batch's own directory; its progress counts on from the batches before."""
    directory = lab.directory / f"batch{number}"
    directory.mkdir()
    yield replace(lab, directory=directory, before=lab.before + before, goal=goal)


def _described(lab: Lab, names: list[str]) -> dict[str, Any]:
    return {"commit": lab.commit, "seed": lab.seed, "batches": names}


def _done_before(lab: Lab, names: list[str]) -> list[Batch]:
    if lab.kept is None or not (path := lab.kept / _FILE).exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["of"] != _described(lab, names):
        lab.say(f"{path} is of another commit, seed or plan: thrown away")
        return []
    return [Batch(**values) for values in found["done"]]


def _keep(lab: Lab, names: list[str], done: list[Batch]) -> None:
    if lab.kept is None:
        return
    lab.kept.mkdir(parents=True, exist_ok=True)
    content = {"of": _described(lab, names), "done": [asdict(batch) for batch in done]}
    write_whole(lab.kept / _FILE, json.dumps(content, indent=1).encode() + b"\n")
