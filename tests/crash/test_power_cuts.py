"""Power cuts on a real ext4: what was acknowledged is there after the next boot, and no mixture.

Method: `power_cuts`. That the harness can fail is shown by a writer that says too much.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from shardstore import Store
from shardstore.errors import ShardStoreError
from tests.crash.power_cuts import History, cut_often
from tests.crash.real_mounts import ImageDisk
from tests.crash.real_store import SETTINGS, OtherBoot, Seen, Wrong, commit, judge
from tests.support.permitted import mount_refusal

CI_CUTS = 6
LONG_CUTS = 200
pytestmark = [pytest.mark.permission("ext4"), pytest.mark.req("S3", "S15")]


@pytest.fixture(autouse=True)
def _mounts() -> None:
    if reason := mount_refusal("ext4"):
        pytest.skip(reason)


def _cut(directory: Path, cuts: int, capsys: pytest.CaptureFixture[str]) -> None:
    result = cut_often(directory, cuts=cuts)
    with capsys.disabled():
        print(f"\n{result.line()} in {result.seconds:.0f} s")
    assert not result.wrong, result.wrong
    assert result.cuts >= cuts


@pytest.mark.timeout(600)
def test_a_store_outlives_power_cuts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _cut(tmp_path, CI_CUTS, capsys)


@pytest.mark.long
def test_a_store_outlives_200_power_cuts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _cut(tmp_path, LONG_CUTS, capsys)


def test_what_was_never_synced_is_lost_with_the_disk_and_would_be_missed(tmp_path: Path) -> None:
    """Deferred commits are in the page cache and the log: a cut takes them, and the judge sees it
    when they had been called acknowledged."""
    deferred = replace(SETTINGS, durability="deferred", sync_every=1000)
    with ImageDisk(tmp_path) as disk:
        root = disk.point / "run"
        with Store.open(root, "a", fs=OtherBoot("one"), settings=SETTINGS) as store:
            commit(store, 1)
        store = Store.open(root, "r+", fs=OtherBoot("one"), settings=deferred)
        commit(store, 2)
        disk.stop()
        with suppress(ShardStoreError):  # its files have to be closed before it is mounted again
            store.close()
        disk.unmount()
        disk.mount()
        with pytest.raises(Wrong, match="found step 1"):
            judge(str(root), [Seen(2)], 3, OtherBoot("two"))
        assert judge(str(root), [Seen(1), Seen(2)], 3, OtherBoot("two")) == Seen(3)


def test_legal_states_follow_what_the_writer_said() -> None:
    history = History([Seen(1)])
    history.follow(["ready", "began commit 2", "done", "began commit 3", "began snapshot s3"])
    assert history.allowed(history.acknowledged) == [
        Seen(2), Seen(3), Seen(3, frozenset({"s3"}))
    ]  # fmt: skip
