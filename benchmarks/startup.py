"""How long a command takes as a whole process, beside a bare interpreter in the same run.

    python -m benchmarks.startup [--commits 1000] [--parts 2] [--runs 15]

Makes a store of that many commits, then runs `shardstore info`, `shardstore log -n 20`, the import
of the package, and `python -c pass` in turn, and prints medians in milliseconds. Expected of
`info` on 1,000 commits: under 150 ms on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from shardstore import Store

COMMAND = "from shardstore.cli.main import main; main()"


def make_store(path: Path, commits: int, parts: int) -> None:
    """Small tensors: what is measured is the log."""
    with Store.open(path, "a") as store:
        for step in range(1, commits + 1):
            with store.begin(step) as txn:
                for index in range(parts // 2):
                    for part in ("params", "optim"):
                        txn.stage(f"block_{index:03d}", part, {"w": np.full(8, step, np.float32)})
                txn.commit(metadata={"train_loss": 9.0 / step, "lr": 1e-3})


def measure(calls: dict[str, list[str]], runs: int) -> dict[str, float]:
    """Median milliseconds of each call, interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with tempfile.TemporaryDirectory() as cache:
        # Byte code is cached, as in every installation; the first round only fills the cache.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for round_number in range(runs + 1):
            for name, words in calls.items():
                command = [sys.executable, *words]
                began = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
                if round_number:
                    seconds[name].append(time.perf_counter() - began)
    return {name: 1000 * statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "run"
        make_store(store, options.commits, options.parts)
        calls = {
            "python -c pass": ["-c", "pass"],
            "import shardstore.store": ["-c", "import shardstore.store"],
            "shardstore --help": ["-c", COMMAND, "--help"],
            "shardstore info": ["-c", COMMAND, "info", str(store), "--json"],
            "shardstore log -n 20": ["-c", COMMAND, "log", str(store), "-n", "20"],
        }
        for name, milliseconds in measure(calls, options.runs).items():
            print(f"{name:<26}{milliseconds:8.1f} ms")


if __name__ == "__main__":
    main()
