"""Looks for damage in a store and says all that it finds; changes no byte.

Quick: STORE, the log with every frame and what links the segments, the catalog, and of each needed
object file, size, header and labels. Deep: every byte of every needed object too. Unfinished work
that the next opening for writing sorts out is a note, not damage. A writer may be at work
meanwhile: what is checked is pinned, and objects that it had freed before that are left out.

Neighbours: `scan` reads a segment past its damage, `log_check` the log, `catalog_check` the
catalog, `object_check` the objects, `entries` the rest of the directory. `recovery` repairs;
nothing here does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from shardstore.catalog import find_mark
from shardstore.errors import CorruptionError, StorageError
from shardstore.format.names import (
    OBJECTS_DIRECTORY,
    STORE_FILE,
    WAL_DIRECTORY,
)
from shardstore.fs.calls import is_loss
from shardstore.fs.protocol import FileSystem
from shardstore.fsck.catalog_check import check_catalog
from shardstore.fsck.entries import check_entries, check_own_files
from shardstore.fsck.findings import Finding, Wanted, damage, from_error, note
from shardstore.fsck.log_check import LogCheck, check_log
from shardstore.fsck.object_base import Rules
from shardstore.fsck.object_check import check_objects
from shardstore.fsck.wanted import wanted_objects
from shardstore.pins import Pins
from shardstore.store_file import examine_store_file
from shardstore.wal.reader import read_log

__all__ = ["Finding", "Report", "fsck"]

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Label and bytes in all -> a context whose value is called with the bytes done."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What a check looked at and found."""

    path: str
    deep: bool
    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    records: int = 0
    objects: int = 0
    bytes_read: int = 0
    """Of objects, in a deep check."""

    @property
    def clean(self) -> bool:
        return not any(finding.is_damage for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        names = ("path", "deep", "clean", "segments", "records", "objects", "bytes_read")
        plain = {name: getattr(self, name) for name in names}
        return {**plain, "findings": [finding.to_json() for finding in self.findings]}


def fsck(
    fs: FileSystem, root: str, *, deep: bool = False, progress: Progress | None = None
) -> Report:
    """Check the store at `root`. Raises NotAStoreError, VersionError, or StorageError where
    the system refuses to look; all else is in the report."""
    report = Report(path=root, deep=deep)
    uuid: str | None = None
    try:
        uuid = examine_store_file(fs, root)
    except CorruptionError as error:
        report.findings.append(from_error(error, advice="restore STORE from a copy of the store"))
    pins = Pins(fs, root)
    try:
        marks = find_mark(fs, root, uuid) if uuid is not None else (None, [])  # before the log
        log = check_log(fs, root, uuid)
        if uuid is not None and len(log.uuids) == 1 and uuid not in log.uuids:
            (found,) = log.uuids
            report.findings.append(_anothers(f"{root}/{STORE_FILE}", found, uuid))
            uuid, log = found, check_log(fs, root, found)
        report.findings += log.findings
        report.segments, report.records = log.segments, log.records
        if log.view is not None:
            report.findings += check_catalog(fs, root, marks, log.view)
        if log.state is not None:
            _pin(pins, log.state.needed())
            _check_objects(fs, root, uuid, log, report, progress)
            report.findings += check_entries(fs, root, log.state.needed())
        report.findings += check_own_files(fs, root)
    except OSError as error:
        raise StorageError(
            f"checking store {root} failed on {error.filename or root}: {error.strerror}",
            errno=error.errno,
        ) from error
    finally:
        pins.close()
    return report


def _pin(pins: Pins, slots: set[int]) -> None:
    """Where PINS is no file that can be locked nothing is pinned, and `check_own_files` says so."""
    try:
        pins.hold(slots)
    except OSError as error:
        if not is_loss(error):
            raise


def _anothers(path: str, expected: str, found: str) -> Finding:
    what = "the uuid is another store's: all of the log has its own"
    advice = "restore STORE from a copy of the store"
    return damage(what, path, 0, expected=expected, found=found, advice=advice)


def _check_objects(
    fs: FileSystem,
    root: str,
    uuid: str | None,
    log: LogCheck,
    report: Report,
    progress: Progress | None,
) -> None:
    assert log.state is not None
    wants = wanted_objects(fs, root, log.state)
    found = list(wants.findings) if log.view is not None else []
    if log.view is None and wants.objects:
        report.findings.append(
            note("the log is damaged: objects are checked against themselves only, as far as the "
                 "records before the damage name them", f"{root}/{OBJECTS_DIRECTORY}")
        )  # fmt: skip
    checked = [wanted for wanted in wants.objects if report.deep or wanted.whole]
    total = sum(wanted.reference.size for wanted in checked)
    drawn = progress("objects", total) if progress and report.deep else nullcontext(_ignore)
    with drawn as advance:

        def count(done: int) -> None:
            report.bytes_read += done
            advance(done)

        rules = Rules(uuid=uuid, deep=report.deep, against_itself=log.view is None)
        found += check_objects(fs, root, wants.objects, rules, count)
    report.objects = len(wants.objects)
    report.findings += _that_still_count(fs, root, log, found)


def _that_still_count(
    fs: FileSystem, root: str, log: LogCheck, found: list[tuple[Wanted | None, Finding]]
) -> list[Finding]:
    """Without what a live writer has freed since: its files may be written again at any time."""
    findings = [finding for _, finding in found]
    if not findings or log.view is None:
        return findings
    view = read_log(fs, root)
    if (view.segment.index, view.segment.records[-1].seq) == log.position:
        return findings
    needed = wanted_objects(fs, root, view.state).keys()
    counting = [
        finding
        for wanted, finding in found
        if wanted is None or (wanted.part, wanted.reference) in needed
    ]
    left_out = len(findings) - len(counting)
    live = f"the store is live; {left_out} findings about objects freed meanwhile are left out"
    return [*counting, note(live, f"{root}/{WAL_DIRECTORY}")]


def _ignore(_count: int) -> None:
    """Nobody is watching."""
