"""Runs commands in this process and as processes; makes stores on disk for them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from shardstore import Store
from shardstore.cli.main import root
from shardstore.context import Settings

SETTINGS = Settings(prewrite_bytes=16384)
COMMAND = [sys.executable, "-c", "from shardstore.cli.main import main; main()"]


def run(*words: object, code: int = 0, stdin: str | None = None) -> Result:
    """A command in this process, which has to end with `code` and without a traceback."""
    result = CliRunner().invoke(root, [str(word) for word in words], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, f"{words}: {result.exit_code} {result.output}"
    if code not in (0, 1, 4):
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: ")
    return result


def run_json(*words: object, code: int = 0) -> Any:
    """What a command prints with --json; read strictly."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    return json.loads(run(*words, "--json", code=code).stdout, parse_constant=refuse)


def process(*words: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False, timeout=60, **options)


def tensors(step: int) -> dict[str, Any]:
    return {
        "w": np.arange(12, dtype=np.float32).reshape(3, 4) + step,
        "n": np.array(step, dtype=np.int64),
    }


def commit(store: Store, step: int, **metadata: Any) -> int:
    with store.begin(step) as txn:
        txn.stage("block_000", "params", tensors(step))
        txn.stage("block_000", "optim", tensors(100 + step))
        txn.stage("a/b", "params", tensors(200 + step))
        return txn.commit(metadata={"loss": 10.0 / step, **metadata}).seq


def make(path: Path, steps: range = range(1, 6)) -> Path:
    """A closed store; step 2 is the snapshot `early`."""
    with Store.open(path, "a", settings=SETTINGS) as store:
        for step in steps:
            commit(store, step)
            if step == 2:
                store.snapshot("early")
    return path


def files(path: Path) -> Iterator[tuple[str, bytes, int]]:
    """Every file below a directory: name, content, time of its last change."""
    for file in sorted(path.rglob("*")):
        if file.is_file():
            yield str(file), file.read_bytes(), file.stat().st_mtime_ns
