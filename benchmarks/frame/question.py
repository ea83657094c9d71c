"""Questions: found in the package, run with the same options, their answers written down.

A module `benchmarks/NAME.py` with `QUESTION = Question(...)` is the question NAME. Its `ask` gets a
`Bench` and returns a `Result`; everything else (scratch directory, JSON, picture) is done here.
"""

from __future__ import annotations

import importlib
import pkgutil
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import benchmarks
from benchmarks.frame import environment
from benchmarks.frame.guard import guarded
from benchmarks.frame.result import Result, Table, write
from benchmarks.frame.rounds import Variant, interleave

QUICK_REPEATS = 2


@dataclass(slots=True, kw_only=True)
class Bench:
    """The options of a run, and what a question needs to measure."""

    scratch: Path
    model: str = "v2.9"
    repeats: int = 7
    quick: bool = False
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """For the store under test, beyond its defaults."""
    say: Callable[[str], None] = lambda line: None

    def measure(self, title: str, variants: Sequence[Variant]) -> Table:
        """One table, every variant in every round."""
        self.say(f"{title}: {len(variants)} variants, {self.repeats} repeats")
        rows = interleave(variants, repeats=self.repeats, seed=self.seed, say=self.say)
        return Table(title=title, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked, and who answers."""

    title: str
    about: str
    """How it is measured: stands above the tables of the page."""
    ask: Callable[[Bench], Result]
    needs_model: bool = False
    """Whether the answer depends on --model, and so stands in a file of its own for each."""


def questions() -> dict[str, Question]:
    """Every question of the package, by name."""
    found = {}
    for info in pkgutil.iter_modules(benchmarks.__path__):
        if info.ispkg or info.name == "__main__":
            continue
        module = importlib.import_module(f"benchmarks.{info.name}")
        question = getattr(module, "QUESTION", None)
        if question is not None:
            found[info.name] = question
    return found


def answer(name: str, question: Question, bench: Bench, results: Path) -> Path:
    """Run one question; returns the JSON file. The scratch directory is empty before and after."""
    shutil.rmtree(bench.scratch, ignore_errors=True)
    bench.scratch.mkdir(parents=True)
    around = environment.describe(bench.scratch)
    began = time.perf_counter()
    try:
        with guarded() as foreign:
            result = question.ask(bench)
    finally:
        shutil.rmtree(bench.scratch, ignore_errors=True)
    stem = f"{name}-{bench.model}" if question.needs_model else name
    path = results / f"{stem}.json"
    content = {
        "question": name,
        "title": question.title,
        "about": " ".join(question.about.split()),
        "model": bench.model if question.needs_model else None,
        "quick": bench.quick,
        "repeats": bench.repeats,
        "seed": bench.seed,
        "settings": dict(bench.settings),
        "seconds": round(time.perf_counter() - began, 1),
        "foreign_share": round(foreign.seconds / foreign.wall_s, 4),
        "environment": around,
        **result.to_json(),
    }
    write(path, content)
    return path
