"""What a long history costs: opening, `log`, recovery, and bytes a commit, at 10,000 commits.

    python -m benchmarks.history [--commits 10000] [--parts 32] [--runs 9] [--keep DIR] [--json F]

Makes a store of that many commits of tiny parts (with the disk's syncs left out, since only the
log's content matters here; an existing --keep directory is used as it is) and prints medians.
Expected of 10,000 commits of 32 parts, the cache warm, on a quiet machine: an opening under 30 ms,
`shardstore log -n 20` under 200 ms as a whole process, an opening after a crash under 500 ms,
8 KiB of log a commit and 1.5 KiB once sealed and compressed, and a writer that grows by less than
1 KiB a commit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.unsynced import Unsynced
from shardstore import Store
from shardstore.wal.writer import COMMITS_PER_SEGMENT

COMMAND = "from shardstore.cli.main import main; main()"
GROWTH_COMMITS = 2500
"""Longer than two segments, so that what a segment holds in memory is not taken for growth."""


def commit(store: Store, step: int, parts: int) -> None:
    """Small tensors: what is measured is the log."""
    with store.begin(step) as txn:
        for index in range(parts // 2):
            for part in ("params", "optim"):
                txn.stage(f"block_{index:03d}", part, {"w": np.full(8, step, np.float32)})
        txn.commit(metadata={"train_loss": 9.0 / step, "lr": 1e-3})


def make_store(path: Path, commits: int, parts: int) -> dict[str, float]:
    """Returns what the writer's memory did."""
    process = psutil.Process()
    with Store.open(path, "a", fs=Unsynced()) as store:
        marks: dict[int, int] = {}
        for step in range(1, commits + 1):
            commit(store, step, parts)
            if step in (GROWTH_COMMITS, commits):
                marks[step] = process.memory_info().rss
    if len(marks) < 2:
        return {}
    grown = (marks[commits] - marks[GROWTH_COMMITS]) / (commits - GROWTH_COMMITS)
    return {"writer's memory growth, bytes a commit": grown}


def timed(runs: int, act: Callable[[], None]) -> float:
    """Median milliseconds, the first call left out."""
    act()
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds)


def whole_process(words: list[str]) -> Callable[[], None]:
    """A call of the command, its byte code cached as in every installation."""
    cache = tempfile.gettempdir() + f"/pycache-{os.getpid()}"
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def call() -> None:
        command = [sys.executable, "-c", COMMAND, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)

    return call


def fill(store: Path, parts: int, *, torn: bool) -> None:
    """Commit until the newest segment is as long as one gets; with `torn` the last append is cut
    off in its middle, as a kill leaves it."""
    with Store.open(store, "r+") as opened:
        head = opened.head
        assert head is not None
        for step in range(head.step + 1, head.step + COMMITS_PER_SEGMENT):
            commit(opened, step, parts)
    if torn:
        newest = max((store / "wal").glob("*.wal"))
        end = len(newest.read_bytes().rstrip(b"\0"))
        with newest.open("r+b") as file:
            file.truncate(end - 2048)
            file.truncate(end + (1 << 20))
        shutil.rmtree(store / "catalog")  # as if it had been killed before the next mark


def full_segments(store: Path, parts: int, runs: int) -> dict[str, float]:
    """Openings at their dearest: the newest segment is full. Median milliseconds."""
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        for torn, name in ((False, "open for writing"), (True, "open after a crash")):
            fill(store, parts, torn=torn)
            reading = timed(3, lambda: Store.open(store).close())
            found.setdefault("open for reading, newest segment full", []).append(reading)
            began = time.perf_counter()
            opened = Store.open(store, "r+")
            passed = 1000 * (time.perf_counter() - began)
            opened.close()
            found.setdefault(f"{name}, newest segment full", []).append(passed)
    return {name: statistics.median(values) for name, values in found.items()}


def log_bytes(store: Path, commits: int) -> dict[str, float]:
    """Bytes of the log a commit, apart for open, sealed and compressed segments."""
    sizes: dict[str, list[int]] = {"wal": [], "zst": []}
    for path in (store / "wal").iterdir():
        if path.suffix in (".wal", ".zst"):
            sizes[path.suffix[1:]].append(path.stat().st_size)
    return {
        "log in all, bytes a commit": (sum(sizes["wal"]) + sum(sizes["zst"])) / commits,
        "segments": len(sizes["wal"]) + len(sizes["zst"]),
        "compressed segments": len(sizes["zst"]),
        "largest compressed segment, bytes": max(sizes["zst"], default=0),
    }


def measure(store: Path, commits: int, parts: int, runs: int, scratch: Path) -> dict[str, float]:
    """All figures, in milliseconds where nothing else is said."""
    figures = {
        "python -c pass": timed(
            runs, lambda: (subprocess.run([sys.executable, "-c", "pass"], check=True), None)[1]
        ),
        "open for reading, newest segment short": timed(runs, lambda: Store.open(store).close()),
        "open and close for writing": timed(runs, lambda: Store.open(store, "r+").close()),
        "shardstore log -n 20": timed(runs, whole_process(["log", str(store), "-n", "20"])),
        "shardstore log --json": timed(3, whole_process(["log", str(store), "--json"])),
        "shardstore log --step": timed(runs, whole_process(["log", str(store), "--step", "77"])),
        "shardstore info": timed(runs, whole_process(["info", str(store), "--json"])),
    }
    figures |= log_bytes(store, commits)
    shutil.copytree(store, scratch)
    return figures | full_segments(scratch, parts, max(1, runs // 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--parts", type=int, default=32)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--keep", type=Path, help="Where the store is made, or lies already.")
    parser.add_argument("--json", type=Path, dest="output", help="Write the figures there.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        store = options.keep or Path(scratch) / "run"
        figures: dict[str, Any] = {}
        if not (store / "STORE").exists():
            figures |= make_store(store, options.commits, options.parts)
        figures |= measure(
            store, options.commits, options.parts, options.runs, Path(scratch) / "full"
        )
    for name, value in figures.items():
        print(f"{name:<44}{value:12.1f}")
    if options.output:
        options.output.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
