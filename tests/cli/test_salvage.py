"""recover --salvage: what it prints, which code it ends with, and that it asks first."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardstore.fs.posix import PosixFileSystem
from shardstore.wal.reader import read_log
from tests.cli.support import files, make, run, run_json
from tests.cli.test_changing import slot_of
from tests.cli.test_reading import flip
from tests.format.independent_reader import IndependentReader


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


@pytest.mark.req("S12")
def test_a_sound_store_needs_none(store: Path) -> None:
    before = list(files(store / "objects"))
    assert "nothing to do" in run("recover", store, "--salvage").stdout
    assert run_json("recover", store, "--salvage", "--dry-run")["needed"] is False
    assert list(files(store / "objects")) == before


@pytest.mark.req("S12", "S13")
def test_a_damaged_head_is_told_then_mended(store: Path) -> None:
    broken = slot_of(store, "block_000", "optim")
    flip(broken, broken.stat().st_size - 1)
    run("fsck", store, "--deep", code=4)
    before = list(files(store))
    told = run("recover", store, "--salvage", "--dry-run", code=1).stdout
    assert list(files(store)) == before and "nothing was changed" in told
    assert "step 5 (seq 8) is damaged" in told and "the head goes to step 4" in told
    assert "shard 'block_000' part 'optim'" in told
    run("recover", store, "--salvage", code=16)  # nobody is here to be asked
    value = run_json("recover", store, "--salvage", "--yes", code=1)
    assert value["corrected"] and value["head"]["step"] == 4 and value["snapshots"] == ["early"]
    assert not value["unproven"] and value["quarantine"]
    (aside,) = (store / "quarantine").iterdir()
    assert {path.name for path in aside.iterdir()} >= {"REASON", broken.name}
    assert "set files aside" in run("fsck", store, "--deep").stdout
    assert "nothing to do" in run("recover", store, "--salvage").stdout
    assert "opened (salvage)" in run("log", store, "--all").stdout
    run("status", store)
    independent = IndependentReader(store)
    assert (independent.commit() or {})["step"] == 4 and independent.check_history() > 2


@pytest.mark.req("S12")
def test_without_a_log_the_result_is_called_unproven(store: Path) -> None:
    for path in (store / "wal").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    run("info", store, code=4)
    said = run("recover", store, "--salvage", "--yes", code=1).stdout
    assert "UNPROVEN" in said and "the head goes to step 5" in said and said.endswith("salvaged\n")
    run("fsck", store, "--deep")
    run("rewind", store, "early", "--yes")


@pytest.mark.req("S12")
def test_nothing_whole_is_damage(store: Path) -> None:
    for path in (store / "objects").iterdir():
        flip(path, path.stat().st_size - 1)
    before = list(files(store / "objects"))
    assert "no whole step is left" in run("recover", store, "--salvage", "--yes", code=4).stderr
    assert list(files(store / "objects")) == before


@pytest.mark.req("S12", "S22")
def test_a_log_that_lost_its_end_is_accepted_knowingly(store: Path) -> None:
    """The catalog's mark knows of records that are gone; the salvage says which."""
    segment = read_log(PosixFileSystem(), str(store)).segment
    newest = max((store / "wal").iterdir())
    newest.write_bytes(newest.read_bytes()[: segment.records[-2].frame.offset])
    run("ls", store, code=4)
    told = run("recover", store, "--salvage", "--yes", code=1).stdout
    assert "the log has lost its end" in told
    run("fsck", store, "--deep")
    run("ls", store)


@pytest.mark.req("S12")
def test_power_cuts_are_no_matter_of_salvage(store: Path) -> None:
    run("recover", store, "--salvage", "--assume-power-cut", code=16)
