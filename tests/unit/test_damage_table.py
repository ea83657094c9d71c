"""Every kind of damage against fsck, load and salvage; docs/damage.md is what comes of it.

Whatever the damage: no load gives wrong bytes (`damaged_world` fails then), what a load refuses
fsck names, with the file, the place in it, the object, its step and the snapshots that need it; and
a salvage leaves a store that is whole and has lost no file. The long profile takes every place.
"""

from __future__ import annotations

import pytest

from shardstore.errors import CorruptionError
from shardstore.format.names import SNAPSHOT_SHARD
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fsck.wanted import wanted_objects
from shardstore.wal.reader import read_log
from tests.support.damaged_world import ROOT, Said, built
from tests.support.damages import DOCUMENT, KINDS, outcomes, render, said

NAMES = [f"{kind.what}: {kind.how}" for kind in KINDS]
HARMLESS = {"object that nothing needs", "LOCK, PINS", "files of no store"}
OLDER = {"missing", "an older copy of it"}
"""What is left is whole and older, and the files that newer steps wrote again are found instead."""
WHOLE = {"missing", "an older content of the file", "zeroed", "another object in its place"}


def judge(at: int, one: Said, path: str) -> None:
    kind = KINDS[at]
    if kind.what in HARMLESS:
        assert one.words == ("nothing", "right", "nothing to do")
        return
    refused = one.load.startswith(("refused", "opening refused"))
    if refused:
        assert one.fsck in ("damage", "no store") and one.salvage != "nothing to do"
    if one.fsck != "damage" and not refused:
        assert one.load == "right" or "whole" in one.load
    files = {finding.file for finding in one.findings}
    is_older = kind.what == "newest segment" and kind.how in OLDER
    if one.findings and not is_older:  # a missing compressed one is told under its usual name
        assert any(file.startswith(path.removesuffix(".zst")) for file in files), (path, files)
    if isinstance(one.error, CorruptionError) and "another store" not in kind.how:
        assert one.error.file in files | {path}, one.error
    for finding in one.findings:
        assert finding.offset is not None or "missing" in finding.what or kind.how in WHOLE
    if path.startswith(f"{ROOT}/objects/"):
        judge_object(one, path)


def judge_object(one: Said, path: str) -> None:
    """fsck tells whom the damaged object is for."""
    wanted = {
        f"{ROOT}/{w.reference.file}": w
        for w in wanted_objects(built().fs, ROOT, read_log(built().fs, ROOT).state).objects
    }[path]
    assert one.findings
    for finding in (f for f in one.findings if f.file == path):
        assert (finding.shard, finding.part) == wanted.part
        assert (finding.step, finding.snapshots) == (wanted.step, wanted.snapshots)
    assert one.decision is not None
    left = {info.name for info in one.decision.state.snapshots.values()}
    # The log has the step of `kept`, on which a branch stands, and not that of `packed`.
    renewed = {"kept"} if wanted.part == (SNAPSHOT_SHARD, "kept") else set()
    spoilt = set(wanted.snapshots) - renewed
    assert left == {"kept", "packed"} - spoilt, "other snapshots stay usable"
    rows = {f"{ROOT}/{row.file}" for row in one.decision.aside}
    assert path in rows or finding_is_missing(one)


def finding_is_missing(one: Said) -> bool:
    return any("missing" in finding.what for finding in one.findings)


@pytest.mark.req("S11", "S12", "S13")
@pytest.mark.parametrize("at", range(len(KINDS)), ids=NAMES)
def test_damage_is_named_refused_and_salvaged(at: int) -> None:
    assert said(at)
    for one, path, _ in said(at):
        judge(at, one, path)


@pytest.mark.long
@pytest.mark.req("S11", "S12", "S13")
@pytest.mark.parametrize("at", range(len(KINDS)), ids=NAMES)
def test_damage_in_every_place(at: int) -> None:
    for one, path, _ in outcomes(KINDS[at], long=True):
        judge(at, one, path)


@pytest.mark.req("S12")
def test_the_document_is_current() -> None:
    assert DOCUMENT.read_text() == render(), "python -m tests.support.damages"


@pytest.mark.req("S11")
def test_the_healthy_store_has_one_of_everything() -> None:
    """Else the table would be about less than it says."""
    fs: MemoryFileSystem = built().clone()
    view = read_log(fs, ROOT)
    wanted = wanted_objects(fs, ROOT, view.state).objects
    formats = {w.reference.format for w in wanted}
    assert formats == {"raw", "safetensors", "pt", "archive"}
    assert sum(w.part[0] == SNAPSHOT_SHARD for w in wanted) == 2
    assert any(name.endswith(".zst") for name in fs.list_directory(f"{ROOT}/wal"))
    assert {c.step for c in view.state.commits.values()} >= {6, 11, 12}
    assert view.segment.records[-1].body["type"] == "commit"
