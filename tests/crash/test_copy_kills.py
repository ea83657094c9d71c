"""Processes that die by SIGKILL while they publish, clone, or start two tiers, on real files.

Method: each process is killed before one of its changing operations, the next process before the
next one, on the same stores, until one has none left. What must hold after each: the store that was
copied is whole, the copy is absent, or whole and of one step; nothing has to be cleaned up by hand.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardstore import Store, open_active
from shardstore.fs.posix import PosixFileSystem
from shardstore.fsck import fsck
from tests.crash.copy_child import SETTINGS
from tests.support.stores import commit, expected, values

pytestmark = [pytest.mark.req("S7", "S16"), pytest.mark.timeout(900)]
TOP = Path(__file__).resolve().parents[2]
STRIDE = 7
OPERATIONS_MAX = 500


def killed_at(action: str, active: Path, other: Path, stride: int) -> Iterator[int]:
    """The numbers of the operations before which a process died; ends with the one that did not."""
    for number in range(1, OPERATIONS_MAX, stride):
        words = ["tests.crash.copy_child", str(number), action, str(active), str(other)]
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=TOP, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return
        assert done.returncode == -signal.SIGKILL, done.stderr
        yield number
    pytest.fail(f"{action} has more than {OPERATIONS_MAX} operations")


def whole(path: Path) -> int | None:
    """The step of the store, all of it read; None where there is no store."""
    if not (path / "STORE").exists():
        return None
    damage = [f for f in fsck(PosixFileSystem(), str(path), deep=True).findings if f.is_damage]
    assert not damage, damage
    with Store.open(path, "r", settings=SETTINGS) as store:
        assert store.head is not None
        assert values(store) == expected(store.head.step)
        return store.head.step


@pytest.fixture
def stride(request: pytest.FixtureRequest) -> int:
    """Every operation with --long, every seventh otherwise."""
    return 1 if request.config.getoption("--long") else STRIDE


def test_a_publication_that_is_killed_leaves_the_step_before_or_its_own(
    tmp_path: Path, stride: int
) -> None:
    active, durable = tmp_path / "active", tmp_path / "durable"
    with Store.open(active, "a", settings=SETTINGS) as store:
        commit(store, 1)
        store.publish(durable)
        commit(store, 2)
    deaths, published = 0, 1
    for _ in killed_at("publish", active, durable, stride):
        deaths += 1
        step = whole(active)
        assert step is not None and whole(durable) in (published, step)
        with Store.open(active, "r+", settings=SETTINGS) as store:
            store.publish(durable)
            commit(store, step + 1)
        published = step
        assert whole(durable) == published
    assert deaths >= 30 // stride and whole(durable) == whole(active)


@pytest.mark.parametrize("action", ["publish", "clone"])
def test_a_first_copy_that_is_killed_is_made_again(
    action: str, tmp_path: Path, stride: int
) -> None:
    active, copy = tmp_path / "active", tmp_path / "copy"
    with Store.open(active, "a", settings=SETTINGS) as store:
        for step in (1, 2, 3):
            commit(store, step)
    deaths = 0
    for _ in killed_at(action, active, copy, stride):
        deaths += 1
        assert whole(copy) in (None, 3) and whole(active) == 3
        if whole(copy) and action == "clone":  # it was whole already when the process died
            copy.rename(tmp_path / f"copy-{deaths}")
    assert deaths >= 30 // stride and whole(copy) == 3


def test_a_start_that_is_killed_is_started_again(tmp_path: Path, stride: int) -> None:
    active, durable = tmp_path / "active", tmp_path / "durable"
    with Store.open(active, "a", settings=SETTINGS) as store:
        commit(store, 1)
        store.publish(durable)
    with Store.open(durable, "r+", settings=SETTINGS) as store:
        commit(store, 2)
    deaths = 0
    for _ in killed_at("start", active, durable, stride):
        deaths += 1
        assert whole(active) in (None, 1, 2) and whole(durable) == 2
    assert deaths >= 30 // stride and whole(active) == 2
    with open_active(active, durable, settings=SETTINGS) as store:
        commit(store, 3)
        store.publish(durable)
    assert whole(durable) == 3
