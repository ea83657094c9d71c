"""How a store is: the facts that somebody needs who was woken up, and the next command to type.

Contract: reads only, and takes no lock. A quick look: the newest segment of the log, and of every
object that the state needs file, size and header; older segments and the bytes of objects are
`fsck --deep`'s. What is damaged is listed and the rest is still told: only a path that is no store,
a newer format, or a system that refuses raises.

Neighbours: `recovery.plan` says what an opening would do, `fsck` looks for damage, `wear` reckons,
`who_pins` asks what readers hold.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from shardstore.errors import CorruptionError, StorageError
from shardstore.format.manifest import CommitInfo, ObjectRef, Publication
from shardstore.format.names import OBJECTS_DIRECTORY, slot_file, slot_of
from shardstore.fs.calls import is_loss
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import Finding, fsck
from shardstore.fsck.entries import check_entries, check_own_files
from shardstore.fsck.findings import LOG_ADVICE, from_error
from shardstore.fsck.object_base import Rules
from shardstore.fsck.object_check import check_objects
from shardstore.fsck.wanted import Wants, wanted_objects
from shardstore.locking import holder_of
from shardstore.recovery import Plan, plan
from shardstore.store_file import examine_store_file
from shardstore.wal.reader import LogView, fold, read_log
from shardstore.wal.state import State
from shardstore.wear import Wear, commits_per_day
from shardstore.who_pins import Pinned, pinned_sizes, who_pins

_FEW_COMMITS = 10


@dataclass(slots=True, kw_only=True)
class Place:
    """A commit as a position."""

    step: int
    seq: int
    age_seconds: float


@dataclass(slots=True, kw_only=True)
class LastPublication:
    """What both tiers hold as far as this one knows."""

    tier: Literal["active", "durable"]
    """Which one the store is."""
    step: int | None
    """None where it was published without a commit."""
    age_seconds: float
    """Of an active store: since the durable one took it; of a durable one: of the last record that
    it was given."""


@dataclass(slots=True, kw_only=True)
class Space:
    """Whether the next commits fit."""

    free_bytes: int
    needed_bytes: int
    """Of object files."""
    reusable_bytes: int
    """Of object files that nothing needs and that commits write again."""
    commit_bytes: int
    """Objects of a commit that replaces every part of the head."""
    growth_bytes: int
    """What of these finds no file to be written over; 0 in the steady state."""
    log_bytes: int
    """What a commit adds to the log."""

    @property
    def commits_left(self) -> int | None:
        """Commits that fit if each were the next; None before the first."""
        growth = self.growth_bytes + self.log_bytes
        return self.free_bytes // growth if growth else None


@dataclass(slots=True, kw_only=True)
class Status:
    """What was found. Fields are None where damage hides them."""

    path: str
    now: float
    uuid: str | None = None
    findings: list[Finding] = field(default_factory=list)
    """Damage."""
    branch: str | None = None
    acknowledged: Place | None = None
    """The newest commit whose record is whole: the head as processes that live see it."""
    durable: Place | None = None
    """The newest commit that a power cut leaves."""
    writer: dict[str, Any] | None = None
    """pid, host and since of the process that has the store open for writing, as far as it said."""
    published: LastPublication | None = None
    """None outside of two tiers too."""
    pinned: Pinned | None = None
    """None also where the file of pins cannot be read."""
    plan: Plan | None = None
    snapshots: tuple[str, ...] = ()
    kept_commits: int = 0
    space: Space | None = None
    wear: Wear | None = None
    in_memory: bool = False
    """The store lies where syncs prove nothing."""

    @property
    def healthy(self) -> bool:
        return not self.findings

    @property
    def unfinished(self) -> bool:
        """A crash left something that the next opening for writing sorts out."""
        return self.writer is None and self.plan is not None and self.plan.needed

    def next_command(self) -> tuple[str, str]:
        """What to type now, and why."""
        path = shlex.quote(self.path)
        if not self.healthy:
            return f"shardstore fsck {path} --deep", "lists all damage and what to do about each"
        left = self.space.commits_left if self.space else None
        if left is not None and left < _FEW_COMMITS:
            return (
                f"shardstore snapshots {path}",
                f"space for {left} commits: delete a snapshot, or make room on the disk",
            )
        if self.unfinished:
            why = "shows what a crash left; opening for writing does it by itself"
            return f"shardstore recover {path} --dry-run", why
        if self.acknowledged is None:
            return f"shardstore info {path}", "the store is empty: nothing was committed yet"
        if self.writer is not None:
            return f"shardstore log {path} -n 5", "a writer is at work; these are its last steps"
        why = "nothing is wrong: start the writer again, it goes on from there"
        return f"shardstore log {path} -n 5", why


def read_status(fs: FileSystem, root: str) -> Status:
    """Look at the store at `root`. Raises NotAStoreError, VersionError or StorageError."""
    status = Status(path=root, now=fs.now())
    try:
        status.uuid = _uuid(fs, root, status)
        _look(fs, root, status)
    except (CorruptionError, OSError) as error:
        _list_damage(fs, root, status, error)
    return status


def _uuid(fs: FileSystem, root: str, status: Status) -> str:
    """What STORE says; what does not depend on it is told first."""
    try:
        status.in_memory = fs.in_memory(root)
        status.writer = _holder(fs, root)
    except (FileNotFoundError, NotADirectoryError):
        pass  # no store, which reading STORE puts into words
    return examine_store_file(fs, root)


def _holder(fs: FileSystem, root: str) -> dict[str, Any] | None:
    """None too where LOCK is no file that can be held; `check_own_files` says so."""
    try:
        return holder_of(fs, root)
    except OSError as error:
        if not is_loss(error) or isinstance(error, NotADirectoryError):
            raise
        return None


def _look(fs: FileSystem, root: str, status: Status) -> None:
    """Everything that a sound log tells."""
    pins = pinned_sizes(fs, root)
    status.plan, view = plan(fs, root)
    status.space = _space(fs, root, view)
    wants = wanted_objects(fs, root, view.state)
    status.pinned = None if pins is None else who_pins(pins, view, wants.objects)
    status.findings = _damaged_objects(fs, root, status.uuid, view, wants)
    entries = check_entries(fs, root, view.state.needed())
    entries += check_own_files(fs, root, pins=False)
    status.findings += [finding for finding in entries if finding.is_damage]
    _tell(root, status, view)


def _damaged_objects(
    fs: FileSystem, root: str, uuid: str | None, view: LogView, wants: Wants
) -> list[Finding]:
    """Of what the state needs, and still needs afterwards: a writer may have gone on and written
    over the rest."""
    rules = Rules(uuid=uuid, deep=False)
    found = [*wants.findings, *check_objects(fs, root, wants.objects, rules, _ignore)]
    if not found:
        return []
    now = read_log(fs, root)
    if _position(now) == _position(view):
        return [finding for _, finding in found]
    needed = wanted_objects(fs, root, now.state).keys()
    return [
        finding
        for wanted, finding in found
        if wanted is not None and (wanted.part, wanted.reference) in needed
    ]


def _position(view: LogView) -> tuple[int, int]:
    return view.segment.index, view.segment.records[-1].seq


def _tell(root: str, status: Status, view: LogView) -> None:
    state, records = view.state, view.segment.records
    copies = int(view.segment.header["copies"])
    status.branch = state.current
    proven = 1 + max(at for at, record in enumerate(records) if record.body["durable"])

    def head_after(count: int) -> Place | None:
        known = state if count == len(view.records) else fold(records[:count], copies, root)
        return _place(known.head, status.now)

    status.acknowledged, status.durable = head_after(len(records)), head_after(proven)
    status.snapshots = tuple(sorted(state.snapshots))
    status.kept_commits = len({*state.commits, *(s.seq for s in state.snapshots.values())})
    status.published = _published(state, status.now)
    status.wear = _wear(view)


def _place(commit: CommitInfo | None, now: float) -> Place | None:
    if commit is None:
        return None
    return Place(step=commit.step, seq=commit.seq, age_seconds=max(0.0, now - commit.time))


def _published(state: State, now: float) -> LastPublication | None:
    if state.base is not None:
        return _publication("active", state.base, now)
    return None if state.origin is None else _publication("durable", state.origin, now)


def _publication(
    tier: Literal["active", "durable"], noted: Publication, now: float
) -> LastPublication:
    return LastPublication(tier=tier, step=noted.step, age_seconds=max(0.0, now - noted.time))


def _space(fs: FileSystem, root: str, view: LogView) -> Space:
    state, head = view.state, view.state.head
    needed = state.needed()
    needed_bytes = 0
    free: Counter[int] = Counter()
    for name in fs.list_directory(f"{root}/{OBJECTS_DIRECTORY}"):
        place = slot_of(name)
        if place is None:
            continue
        slot = place[0]
        try:
            size = fs.stat(f"{root}/{slot_file(*place)}").size
        except OSError as error:
            if not is_loss(error):
                raise
            continue  # removed meanwhile by a writer that opens the store, or no file at all
        if slot in needed:
            needed_bytes += size
        else:
            free[size] += 1
    sizes = Counter(reference.size for reference in head.manifest.values()) if head else Counter()
    frames = [r.frame.end - r.frame.offset for r in view.records if r.body["type"] == "commit"]
    return Space(
        free_bytes=fs.free_bytes(root),
        needed_bytes=needed_bytes,
        reusable_bytes=sum(size * count for size, count in free.items()),
        commit_bytes=sum(size * count for size, count in sizes.items()),
        growth_bytes=sum(size * count for size, count in (sizes - free).items()),
        log_bytes=sum(frames) // len(frames) if frames else 0,
    )


def _wear(view: LogView) -> Wear | None:
    """From the commits that the newest segment holds; None where it holds none."""
    commits = [record for record in view.records if record.body["type"] == "commit"]
    if not commits:
        return None
    written = sum(
        record.frame.end - record.frame.offset
        + sum(ObjectRef.from_json(reference).size for _, _, reference in record.body["put"])
        for record in commits
    )  # fmt: skip
    times = [float(record.body["time"]) for record in commits]
    return Wear(bytes_per_commit=written // len(commits), commits_per_day=commits_per_day(times))


def _list_damage(
    fs: FileSystem, root: str, status: Status, error: CorruptionError | OSError
) -> None:
    """STORE, the log or a directory cannot be read: what a check of everything finds."""
    status.findings = [finding for finding in fsck(fs, root).findings if finding.is_damage]
    if status.findings:
        return
    if isinstance(error, OSError):
        raise StorageError(
            f"looking at store {root} failed on {error.filename or root}: {error.strerror}",
            errno=error.errno,
        ) from error
    status.findings = [from_error(error, advice=LOG_ADVICE)]  # never healthy if it was refused


def _ignore(_count: int) -> None:
    """Nobody is watching."""
