"""How long a command takes as a whole process, beside a bare interpreter in the same rounds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.frame.question import Bench, Question
from benchmarks.frame.result import Claim, Result
from benchmarks.frame.rounds import Variant
from shardstore import Store

COMMAND = "from shardstore.cli.main import main; main()"
COMMITS = 1000
QUICK_COMMITS = 20
BARE = "python -c pass"


def make_store(path: Path, commits: int) -> None:
    """Small tensors: what is measured is the log."""
    with Store.open(path, "a") as store:
        for step in range(1, commits + 1):
            with store.begin(step) as txn:
                for part in ("params", "optim"):
                    txn.stage("block_000", part, {"w": np.full(8, step, np.float32)})
                txn.commit(metadata={"train_loss": 9.0 / step, "lr": 1e-3})


def ask(bench: Bench) -> Result:
    store = bench.scratch / "run"
    make_store(store, QUICK_COMMITS if bench.quick else COMMITS)
    calls = {
        "shardstore --help": ["--help"],
        "shardstore info": ["info", str(store), "--json"],
        "shardstore log -n 20": ["log", str(store), "-n", "20"],
    }
    table = bench.measure("Whole processes", command_variants(calls, bench.scratch))
    info = table.row("shardstore info")
    claim = Claim(
        text=f"`shardstore info` on {COMMITS:,} commits, whole process",
        value=1000 * info.seconds,
        unit="ms",
        at_most=150,
        noisy=info.noisy,
    )
    return Result(tables=[table], claims=[claim])


def command_variants(calls: Mapping[str, list[str]], scratch: Path) -> list[Variant]:
    """Calls of `shardstore` as whole processes, beside a bare interpreter and a bare import."""
    # Byte code is cached, as in every installation; the round that is thrown away fills the cache.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(scratch / "byte-code")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = {BARE: ["-c", "pass"], "import shardstore.store": ["-c", "import shardstore.store"]}
    words |= {name: ["-c", COMMAND, *arguments] for name, arguments in calls.items()}
    return [
        Variant(name=name, kind="reference" if name == BARE else "ours",
                act=partial(_call, [sys.executable, *command], environment))
        for name, command in words.items()
    ]  # fmt: skip


def _call(command: list[str], environment: dict[str, str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


QUESTION = Question(
    title="Commands as whole processes",
    about=f"""A store of {COMMITS:,} commits of two small parts, its log in the page cache. From the
    start of the interpreter to its end.""",
    ask=ask,
)
