"""Initialising a run holds one shard at a time: peak memory is bounded by the largest shard.

Method: `trainer init` as a process of its own; the system says what it took at most.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.presets import PRESETS

BASE_BYTES = 300 * 2**20
LARGEST_SHARDS = 2.5


@pytest.mark.req("T4")
@pytest.mark.parametrize("preset", ["v2.8", pytest.param("v2.1", marks=pytest.mark.long)])
def test_peak_memory_is_bounded_by_the_largest_shard(preset: str, tmp_path: Path) -> None:
    model = PRESETS[preset].model
    largest = 4 * model.vocab_size * model.hidden_size
    command = [sys.executable, "-m", "trainer", "init", "--run-dir", str(tmp_path / "run")]
    child = subprocess.Popen([*command, "--preset", preset], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    peak = usage.ru_maxrss * 1024
    assert peak <= BASE_BYTES + LARGEST_SHARDS * largest, f"{peak:,} bytes"
    assert peak > largest, "a peak below one shard was not measured"
