"""What a step cost and what it found: timing buckets that add up, and a step log in strict JSONL.

Invariants: leaf buckets never overlap and `other` is what they leave of the step, so that the
leaves add up to `step_seconds`; spans (`forward_trace`, `backward_update`) lie over the leaves
and are not part of the sum. A line of the log is written by one system call, is JSON without
NaN or Infinity, and a half line that a crash left is removed before the next one. `loop`
decides which fields a line has.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

LEAVES = (
    "data_load",
    "param_load",
    "module_build",
    "h2d",
    "forward_kernel",
    "backward_kernel",
    "activation_cpu_copy",
    "gradient_cpu_copy",
    "optimizer_load",
    "optimizer_math",
    "param_save_stage",
    "optimizer_save_stage",
    "commit",
)
SPANS = ("forward_trace", "backward_update")


class Timings:
    """Seconds of one step by bucket. Not thread-safe: one step, one thread.

    `sync` is called at both ends of every bucket, for devices that compute while the host goes on;
    without it a bucket holds the host's time only.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sync: Callable[[], None] | None = None,
    ) -> None:
        self._clock = clock
        self._sync = sync
        self._open_leaf: str | None = None
        self.restart()

    def restart(self) -> None:
        """Begin a step: all buckets at zero, the clock running."""
        assert self._open_leaf is None, f"timing bucket {self._open_leaf} is still open"
        self._seconds = dict.fromkeys((*LEAVES, *SPANS), 0.0)
        self._began = self._clock()

    @contextlib.contextmanager
    def leaf(self, name: str) -> Iterator[None]:
        """Time one bucket of `LEAVES`; no other may be open."""
        assert name in LEAVES, f"no timing bucket {name!r}"
        assert self._open_leaf is None, f"timing bucket {name} inside {self._open_leaf}"
        self._open_leaf = name
        try:
            with self._timed(name):
                yield
        finally:
            self._open_leaf = None

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time a stretch that contains leaves."""
        assert name in SPANS, f"no timing span {name!r}"
        with self._timed(name):
            yield

    def report(self) -> dict[str, float]:
        """The step so far as `<bucket>_seconds`, with `step_seconds` and `other_seconds`."""
        step = self._clock() - self._began
        other = step - sum(self._seconds[name] for name in LEAVES)
        seconds = {"step": step, **self._seconds, "other": other}
        return {f"{name}_seconds": value for name, value in seconds.items()}

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        if self._sync:
            self._sync()
        began = self._clock()
        try:
            yield
        finally:
            if self._sync:
                self._sync()
            self._seconds[name] += self._clock() - began


class StepLog:
    """An append-only JSONL file. NaN and infinities become null, and `nonfinite` says which."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_half_line(path)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, record: Mapping[str, Any]) -> None:
        line = to_strict_json(record).encode() + b"\n"
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"step log: wrote {written} of {len(line)} bytes, is the disk full?")

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def to_strict_json(record: Mapping[str, Any]) -> str:
    """One line of JSON that every parser reads."""
    lost: dict[str, str] = {}
    clean = {key: _finite(value, key, lost) for key, value in record.items()}
    if lost:
        clean["nonfinite"] = lost
    return json.dumps(clean, allow_nan=False, ensure_ascii=False)


def _finite(value: Any, path: str, lost: dict[str, str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        lost[path] = repr(value)
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item, f"{path}.{key}", lost) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, f"{path}.{index}", lost) for index, item in enumerate(value)]
    return value


def _cut_half_line(path: Path) -> None:
    try:
        with path.open("r+b") as file:
            end = file.seek(0, os.SEEK_END)
            keep = end
            while keep:
                start = max(0, keep - 4096)
                file.seek(start)
                newline = file.read(keep - start).rfind(b"\n")
                if newline >= 0:
                    keep = start + newline + 1
                    break
                keep = start
            if keep != end:
                file.truncate(keep)
    except FileNotFoundError:
        return
