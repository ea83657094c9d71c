"""Runs lint, types and every suite of tests, one process each, and sums up.

Contract: standard library only; exit code 0 when all is well, 1 when a step failed, 2 on a wrong
argument. tools/test makes .venv ready and calls this with its Python. A suite is a folder of
tests/; how a test is marked, deselected or refused is in tests/conftest.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PYTEST_NO_TESTS = 5

# In the order in which they run: what fails fast comes first.
CHECKS: dict[str, list[list[str]]] = {
    "lint": [["ruff", "check", "."], ["ruff", "format", "--check", "."]],
    "types": [["mypy"]],
}
SUITES = ("repo", "unit", "format", "contract", "stateful", "cli", "trainer", "crash")


@dataclass(kw_only=True)
class Step:
    """What one check or suite came to."""

    name: str
    ok: bool
    seconds: float
    passed: int = 0
    failed: int = 0
    skips: dict[str, list[str]] = field(default_factory=dict)
    """Reason of a skip -> names of the tests."""
    note: str = ""


def _run(command: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode


def run_check(name: str) -> Step:
    started = time.monotonic()
    codes = [_run(command) for command in CHECKS[name]]
    return Step(name=name, ok=not any(codes), seconds=time.monotonic() - started)


def run_suite(name: str, *, long: bool, selection: Sequence[str]) -> Step:
    """`selection` is the caller's own words to pytest: with them a suite may run no test at all."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        xml = Path(scratch, "results.xml")
        command = ["pytest", f"tests/{name}", f"--junitxml={xml}", "-o", "junit_family=xunit1"]
        code = _run([*command, *(["--long"] if long else []), *selection])
        step = Step(name=name, ok=code == 0, seconds=time.monotonic() - started)
        if xml.exists():
            _read_results(xml, step)
    if code == PYTEST_NO_TESTS:
        step.note = "ran no test"
        step.ok = bool(selection)
    elif code and not step.failed:
        step.note = f"pytest stopped with exit code {code}"
    return step


def _read_results(xml: Path, step: Step) -> None:
    for case in ElementTree.parse(xml).iter("testcase"):
        test = f"{case.get('file', '')}::{case.get('name')}"
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            step.failed += 1
        elif skip is not None:
            step.skips.setdefault(skip.get("message") or "no reason given", []).append(test)
        else:
            step.passed += 1


def report(steps: Sequence[Step]) -> None:
    """Table of times, then what was skipped, then one closing line in the manner of pytest."""
    print("\n" + "-" * 72)
    for step in steps:
        state = "ok" if step.ok else "FAILED"
        counts = f"{step.passed} passed, {step.failed} failed" if step.name in SUITES else ""
        print(f"{step.name:<10}{state:<8}{step.seconds:8.1f} s   {counts} {step.note}".rstrip())
    for step in steps:
        for reason, tests in step.skips.items():
            print(f"skipped in {step.name}: {len(tests)} x {reason}")
            print("".join(f"    {test}\n" for test in tests), end="")
    passed = sum(step.passed for step in steps)
    failed = sum(max(step.failed, 0 if step.ok else 1) for step in steps)
    skipped = sum(len(tests) for step in steps for tests in step.skips.values())
    print(f"total: {passed} passed, {failed} failed, {skipped} skipped", flush=True)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/test",
        description="Lint, types and tests. Sets up .venv on the first call.",
        epilog="example: tools/test lint unit -- -k wal",
    )
    names = [*CHECKS, *SUITES]
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(names)}; all")
    parser.add_argument("--long", action="store_true", help="run the long profiles too")
    options, pytest_arguments = _split(argv)
    parsed = parser.parse_args(options)
    unknown = [step for step in parsed.steps if step not in names]
    if unknown:
        parser.error(f"no such step: {', '.join(unknown)}; expected some of {', '.join(names)}")
    parsed.pytest_arguments = pytest_arguments
    return parsed


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands after -- is handed to pytest."""
    words = list(argv)
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    steps = []
    for name in arguments.steps or [*CHECKS, *SUITES]:
        print(f"\n== {name}", flush=True)
        if name in CHECKS:
            steps.append(run_check(name))
        else:
            selection = arguments.pytest_arguments
            steps.append(run_suite(name, long=arguments.long, selection=selection))
    report(steps)
    return 0 if all(step.ok for step in steps) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
