"""What holds for every suite: long profiles, GPU tests, skips, determinism.

Contract: tests marked `long` are deselected unless --long is given (one left out is no
skip); tests marked `gpu` are skipped without a CUDA device, with a reason that starts "no GPU";
with REQUIRE_ALL=1 any other skip is a failure. Tests marked `permission` are left out like a long
profile, and said so with the reason, where the system forbids what they need: no package would
change that. Fixtures live beside the suites that use them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports torch or transformers: equal sums need an equal number of threads, and
# nothing outside the machine is ever asked for.
os.environ.setdefault("OMP_NUM_THREADS", "2")
# Threads that wait by spinning starve each other on a loaded machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

LONG_TIMEOUT_SECONDS = 3600
NO_GPU = "no GPU"
_LEFT_OUT = pytest.StashKey[int]()
_FORBIDDEN = pytest.StashKey[dict[str, int]]()

# Time is never asserted, and a run can be repeated: the long profile looks for new examples.
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "short", deadline=None, derandomize=True, database=None, suppress_health_check=_QUIET
)
settings.register_profile(
    "long", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=_QUIET
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long profiles too")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "short")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_out_forbidden(config, items)
    long_items = [item for item in items if item.get_closest_marker("long")]
    if config.getoption("--long"):
        for item in long_items:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_SECONDS))
    elif long_items:
        items[:] = [item for item in items if item.get_closest_marker("long") is None]
        config.hook.pytest_deselected(items=long_items)
        config.stash[_LEFT_OUT] = len(long_items)


def _leave_out_forbidden(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A mark names what is needed; `tests.support.permitted` finds out whether it is to be had."""
    reasons: dict[str, int] = {}
    left_out = []
    for item in items:
        mark = item.get_closest_marker("permission")
        if mark is None:
            continue
        from tests.support.permitted import refusal

        if reason := refusal(*mark.args):
            reasons[reason] = reasons.get(reason, 0) + 1
            left_out.append(item)
    config.stash[_FORBIDDEN] = reasons
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    left_out = config.stash.get(_LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(f"{left_out} long profiles left out; run them with --long")
    for reason, count in config.stash.get(_FORBIDDEN, {}).items():
        terminalreporter.write_line(f"{count} tests left out: {reason}")


@functools.cache
def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not _has_gpu():
        pytest.skip(NO_GPU)


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turns a skip into a failure where every test has to run."""
    if os.environ.get("REQUIRE_ALL") != "1" or not report.skipped or hasattr(report, "wasxfail"):
        return
    entry = report.longrepr
    reason = str(entry[2] if isinstance(entry, tuple) else entry).removeprefix("Skipped: ")
    if not reason.startswith(NO_GPU):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: skipped, but REQUIRE_ALL=1: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    report = yield
    _refuse_skip(report)
    return report
