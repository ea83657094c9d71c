"""One object as `.pt`, as safetensors and raw: save, cold load, warm load, memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.compare.one_object import Way, make_object, ways
from benchmarks.frame.disk import drop_cache, files_below, fresh_directory
from benchmarks.frame.environment import ROOT
from benchmarks.frame.physical import Physical
from benchmarks.frame.question import Bench, Question
from benchmarks.frame.result import Figure, Result
from benchmarks.frame.rounds import Variant
from benchmarks.frame.samples import Kind
from benchmarks.frame.state import Tensors, touch

PRIME_SAVES = 4
PAGE_BYTES = 4096


def ask(bench: Bench) -> Result:
    tensors = make_object(bench.model)
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    size = f"{nbytes / 1e6:.1f} MB"
    physical = Physical(
        bench.scratch / "probe", [nbytes // PAGE_BYTES * PAGE_BYTES], quick=bench.quick
    )
    cold, warm = _make(bench, "cold"), _make(bench, "warm")
    for _, way in (*cold.values(), *warm.values()):
        for _ in range(PRIME_SAVES):
            touch(list(tensors.values()))
            way.save(tensors)
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    tables = [
        bench.measure(
            f"Durable save of {size}",
            [physical.write_probe(), physical.memcpy(), *_saves(warm, tensors, nbytes)],
        ),
        bench.measure(
            f"Cold load of {size}",
            [physical.read_probe(), physical.memcpy(), *_loads(cold, into, nbytes, cold=True)],
        ),
        bench.measure(
            f"Load of {size} read before",
            [physical.memcpy(), *_loads(warm, into, nbytes, cold=False)],
        ),
    ]
    figures = [
        Figure(name=f"memory beyond the tensors, {action}, {name}",
               value=_memory(bench, name, action), unit="B",
               note="in a process of its own, first call, mapped files included")
        for action in ("save", "load")
        for name in ways()
    ]  # fmt: skip
    for _, way in (*cold.values(), *warm.values()):
        way.close()
    return Result(tables=tables, figures=figures)


def _make(bench: Bench, kind: str) -> dict[str, tuple[Path, Way]]:
    found = {}
    for name, make in ways().items():
        directory = bench.scratch / kind / name.replace(" ", "-").replace(",", "").lstrip(".")
        fresh_directory(directory)
        found[name] = (directory, make(directory))
    return found


def _kind(name: str) -> Kind:
    return "ours" if name.startswith("store") else "peer"


def _saves(made: dict[str, tuple[Path, Way]], tensors: Tensors, nbytes: int) -> list[Variant]:
    change = partial(touch, list(tensors.values()))
    return [
        Variant(name=name, kind=_kind(name), note=way.note, bytes=nbytes,
                act=partial(way.save, tensors), before=change)
        for name, (_, way) in made.items()
    ]  # fmt: skip


def _loads(
    made: dict[str, tuple[Path, Way]], into: Tensors, nbytes: int, *, cold: bool
) -> list[Variant]:
    def before(directory: Path, way: Way) -> Callable[[], None]:
        def prepare() -> None:
            way.load(into)  # buffers are there, and with them the caches that may hold it
            if cold:
                way.forget()
                drop_cache(files_below(directory))

        return prepare

    return [
        Variant(name=name, kind=_kind(name), note=way.note, bytes=nbytes,
                act=partial(way.load, into), before=before(directory, way),
                cold_bytes=nbytes if cold else 0)
        for name, (directory, way) in made.items()
    ]  # fmt: skip


def _memory(bench: Bench, name: str, action: str) -> float:
    directory = bench.scratch / "memory"
    fresh_directory(directory)
    output = ""
    for act in ("save", action):
        words = ["-m", "benchmarks.compare.one_object", name, bench.model, str(directory), act]
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, check=True, capture_output=True, text=True
        )
        output = done.stdout
    return float(output)


QUESTION = Question(
    title="Formats: one object",
    about="""The optimizer state of one block. Saves are durable on return and change every tensor.
    Cold loads took their bytes from the disk; the others find what the page cache or the store's
    own cache kept.""",
    ask=ask,
    needs_model=True,
)
