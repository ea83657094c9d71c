"""Initialising a run holds one shard at a time: peak memory is bounded by the largest shard.

Method: `trainer init` as a process of its own; the system says what it took at most. A small
process starts it, since the peak that a process begins with is that of the one that started it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainer.presets import PRESETS

STARTER = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
BASE_BYTES = 300 * 2**20
LARGEST_SHARDS = 2.5


@pytest.mark.req("T4")
@pytest.mark.parametrize("preset", ["v2.8", pytest.param("v2.1", marks=pytest.mark.long)])
def test_peak_memory_is_bounded_by_the_largest_shard(preset: str, tmp_path: Path) -> None:
    model = PRESETS[preset].model
    largest = 4 * model.vocab_size * model.hidden_size
    command = [sys.executable, "-m", "trainer", "init", "--run-dir", str(tmp_path / "run")]
    starter = [sys.executable, "-S", "-c", STARTER, *command, "--preset", preset]
    found = subprocess.run(starter, stdout=subprocess.PIPE, text=True, check=True)
    peak = int(found.stdout) * 1024
    assert peak <= BASE_BYTES + LARGEST_SHARDS * largest, f"{peak:,} bytes"
    assert peak > largest, "a peak below one shard was not measured"
