"""A disk without room and a disk with errors, at each operation; and the places of test_places.

On the disk under test the file system's seam refuses the operations in turn; real small file
systems, limits and read-only mounts are those of tests/crash/test_places, as far as permitted.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from shardstore import Store
from shardstore.errors import PoisonedError, ShardStoreError, StorageError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory_image import Operation
from shardstore.fs.posix import PosixFileSystem
from tests.crash.real_store import SETTINGS, Seen, Wrong, commit, judge, look
from tests.support.permitted import mount_refusal
from tools.lab.part import Lab, Outcome, guarded

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS_MAX = 500
NO_RETRY = ("release", "lock")
CODES = (errno.ENOSPC, errno.EIO)
ACTIONS: dict[str, Callable[[Store, int], object]] = {
    "commit": commit,
    "commit that grows the log": lambda store, step: commit(store, step, text="x" * 60_000),
    "snapshot": lambda store, step: store.snapshot(f"s{step}"),
    "publish": lambda store, step: store.publish(f"{store.path}.durable"),
}


class Refusing(FaultyFileSystem):
    """The real file system, which refuses one operation."""

    def __init__(self) -> None:
        super().__init__(PosixFileSystem(), before=self._count)
        self.left, self.code = 0, 0
        self.hit = ""

    def _count(self, operation: Operation) -> None:
        if operation.op in NO_RETRY:
            return
        self.left -= 1
        if self.left == 0:
            self.hit = f"{operation.op} {operation.path}"
            raise OSError(self.code, os.strerror(self.code), operation.path)


def run(lab: Lab) -> Outcome:
    outcome = Outcome(unit="refusals")
    for number, (name, code, nth) in enumerate(_trials(lab)):
        root = lab.directory / f"run{number // 40}"
        place = f"{name}, {errno.errorcode[code]} at operation {nth}"
        guarded(outcome, place, _refuse, root, name, code, nth, number)
        lab.tell(outcome.tried)
    outcome.detail.append("I/O error and full disk at the operations of " + ", ".join(ACTIONS))
    if not lab.over:
        _places(lab, outcome)
    outcome.cannot = mount_refusal() or mount_refusal("ext4")
    return outcome


def _trials(lab: Lab) -> Iterator[tuple[str, int, int]]:
    """Operation by operation of all actions in turn, so that the time leaves nobody out."""
    for nth in range(1, OPERATIONS_MAX):
        for name in ACTIONS:
            for code in CODES:
                if lab.over:
                    return
                yield name, code, nth
        if nth == 40:
            return


def _refuse(root: Path, name: str, code: int, nth: int, number: int) -> None:
    """One refusal; Wrong where the store is not what it was, or does not go on."""
    step, fs = 10 * number + 2, Refusing()
    if not root.exists():
        with Store.open(root, "a", settings=SETTINGS) as store:
            commit(store, 1)
            store.publish(f"{root}.durable")
    with Store.open(root, "r", settings=SETTINGS) as store:
        before = look(store)
    after = {"snapshot": before.named(f"s{step}"), "publish": before}
    attempted = after.get(name, before.committed(step))
    allowed: list[Seen] = [before, attempted]
    try:
        with Store.open(root, "r+", fs=fs, settings=SETTINGS) as store:
            fs.left, fs.code = nth, code
            allowed = _act_again(store, name, step, before, attempted)
            fs.left = 0
    except (StorageError, PoisonedError) as error:
        if str(root) not in str(error):
            raise Wrong(f"which store? {error}") from error
    judge(str(root), allowed, step + 1)


def _act_again(store: Store, name: str, step: int, before: Seen, attempted: Seen) -> list[Seen]:
    try:
        ACTIONS[name](store, step)
    except PoisonedError:
        raise
    except ShardStoreError:
        if store._session.context.is_poisoned:
            raise
        if look(store) != before:
            raise Wrong(f"{look(store)} after a refusal, expected {before}") from None
        ACTIONS[name](store, step)
    return [attempted]


def _places(lab: Lab, outcome: Outcome) -> None:
    """The small file systems, as a run of their tests."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/crash/test_places.py"]
    done = subprocess.run(
        [sys.executable, *words, f"--basetemp={lab.directory / 'places'}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    passed = re.search(r"(\d+) passed", done.stdout)
    outcome.tried += int(passed[1]) if passed else 0
    outcome.detail.append(f"small, limited and read-only places: {done.stdout.splitlines()[-1]}")
    if done.returncode:
        outcome.wrong.append(done.stdout[-3000:])
