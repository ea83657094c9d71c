"""Tests of the repository as a part of the laboratory, or of a batch: pytest in a process.

Contract: it is ended in order when the time is over, so that the tests unmount what they mounted;
that is no finding, a failed test is.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_END_SECONDS = 20.0
_SAID = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What a run of tests came to."""

    passed: int
    line: str
    """In words."""
    wrong: list[str]


def run_suite(words: list[str], directory: Path, seconds: float | None = None) -> Suite:
    """`words` are pytest's; `directory` is where the tests may write, and is made."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={directory}",
         *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    is_whole, said = True, ""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        is_whole, said = False, _end(process)
    finally:
        if process.poll() is None:
            _end(process)
    last = (said.strip().splitlines() or ["nothing was said"])[-1].strip("= ")
    found = re.search(r"(\d+) passed", last)
    passed = int(found[1]) if found else 0
    failed = re.search(r"\d+ (failed|error)", last) or (is_whole and process.returncode)
    return Suite(
        passed=passed,
        line=last if is_whole else f"{passed} tests passed, then the time was over",
        wrong=[said[-_SAID:]] if failed else [],
    )


def _end(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=_END_SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]
