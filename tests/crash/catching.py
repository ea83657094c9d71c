"""A pytest plugin: runs the catcher of every check with the check left out, and reports.

Each run is a process of its own, forked from the one that collected: what a broken check lets
through may kill it, which counts as noticed. A catcher that fails by itself catches nothing.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.crash.checks import CHECKS
from tests.crash.left_out import left_out

HANGS_SECONDS = 60
"""A run that takes this long hangs, and that is a failure too."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--checks-report", type=Path)


def _fails(item: pytest.Item, around: AbstractContextManager[None]) -> bool:
    child = os.fork()
    if child == 0:
        failed = True
        try:
            signal.alarm(HANGS_SECONDS)
            with around:
                failed = any(r.failed for r in runtestprotocol(item, log=False, nextitem=None))
        finally:
            os._exit(int(failed))
    return os.waitpid(child, 0)[1] != 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    items = {item.nodeid: item for item in session.items}
    sound = {nodeid: not _fails(item, nullcontext()) for nodeid, item in items.items()}
    found = {
        check.name: sound.get(check.catcher, False)
        and _fails(items[check.catcher], left_out(check.site))
        for check in CHECKS
    }
    session.config.getoption("--checks-report").write_text(json.dumps(found))
    return True
