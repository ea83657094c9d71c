"""Creating and opening a store: what a crash left is finished or undone here.

Opening for writing follows rules 1, 2, 4, 12 and 14 of docs/design.md: choose the state as a pure
function of the disk and the boot id, make it durable, make a new segment, and only then touch
anything else. Until the new segment is visible a failed opening leaves the store as it was found.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shardstore.catalog import Mark, check_not_ahead, find_mark
from shardstore.commit_protocol import cut_zeros_quietly
from shardstore.context import Settings
from shardstore.errors import StoreExistsError
from shardstore.format.names import (
    CATALOG_DIRECTORY,
    LOCK_FILE,
    OBJECTS_DIRECTORY,
    PINS_FILE,
    RAW,
    SEGMENT_TEMPORARY,
    STORE_FILE,
    WAL_DIRECTORY,
    packed_index,
    segment_index,
    slot_file,
    slot_of,
)
from shardstore.fs.calls import close_quietly, sync_file
from shardstore.fs.protocol import FileSystem
from shardstore.pins import make_pins
from shardstore.quarantine import finish_pending, pending
from shardstore.session import Session
from shardstore.slots import SlotTable
from shardstore.store_file import read_store_file, store_text
from shardstore.upkeep import Upkeep
from shardstore.wal.follower import LogFollower
from shardstore.wal.reader import LogView, durable_state, read_log
from shardstore.wal.state import State
from shardstore.wal.writer import make_segment, predecessor_of

STORE_TEMPORARY = "STORE.tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an opening for writing would do; the same for a dry run and the real thing."""

    head_step: int | None
    head_seq: int | None
    records: int
    """Records of the newest segment that are kept."""
    torn: bool
    """An interrupted append is cut off."""
    abandoned: list[int]
    """Sequence numbers of records that a power cut left unproven."""
    unproven: int
    """Records that are copied because their sync is not proven."""
    copied: bool
    power_cut: bool
    unused_slots: int
    """Files of objects that nothing needs; they are written again."""
    aside: list[str]
    """Files that a salvage which was cut off has still to put into quarantine."""

    @property
    def clean(self) -> bool:
        return not (self.needed or self.unproven)

    @property
    def needed(self) -> bool:
        """Whether a crash left something to correct. Records whose sync is not proven alone are
        not that: every orderly end leaves the last one so, and the next opening sees to it."""
        return self.torn or bool(self.abandoned) or self.copied or bool(self.aside)

    def lines(self) -> list[str]:
        """The plan in words."""
        head = "no commit yet" if self.head_seq is None else f"step {self.head_step}"
        lines = [f"the state is {head} (seq {self.head_seq}), from {self.records} records"]
        if self.torn:
            lines.append("an interrupted append at the end of the log is cut off")
        if self.abandoned:
            lines.append(f"records {self.abandoned} are not proven durable and are given up")
        if self.unproven == 1:
            lines.append("the newest record is carried over into the next segment, as always")
        elif self.unproven:
            lines.append(f"the newest {self.unproven} records are carried over, as always")
        if self.copied:
            lines.append("this directory is a copy of another store; it gets an instance id")
        if self.aside:
            listed = ", ".join(self.aside)
            lines.append(f"a salvage was cut off: into quarantine go still {listed}")
        if self.unused_slots:
            lines.append(f"{self.unused_slots} object files that nothing needs will be reused")
        return lines


def create(fs: FileSystem, root: str, settings: Settings) -> None:
    """Create an empty store under its lock (rule 12). Finishes a creation that a crash cut off."""
    names = _names(fs, root)
    if STORE_FILE in names:
        raise StoreExistsError(f"{root} is a store already; open it instead")
    check_creatable(fs, root)
    _trace(settings, "create")
    uuid = fs.random_bytes(16).hex()
    make_pins(fs, root)
    empty_directories(fs, root, names)
    write_synced(fs, f"{root}/{STORE_TEMPORARY}", store_text(uuid))
    instance = fs.random_bytes(16).hex()
    opening = {
        **identity(fs, f"{root}/{STORE_TEMPORARY}", epoch=1, instance=instance),
        "reason": "create",
        "abandoned": None,
        "state": State().to_json(),
    }
    make_segment(fs, root, uuid=uuid, predecessor=None, opening=opening, prewrite=0).close()
    name_store(fs, root)


def unmake(fs: FileSystem, root: str) -> None:
    """Take a store away that got no commit, under its lock, down to what a creation that was cut
    off leaves. STORE goes first: from then on it is no store."""
    _, view = _read(fs, root, read_store_file(fs, root))
    if view.state.commits or view.state.needed():
        return
    fs.rename(f"{root}/{STORE_FILE}", f"{root}/{STORE_TEMPORARY}")
    fs.sync_directory(root)
    names = _names(fs, root)
    empty_directories(fs, root, names)
    if CATALOG_DIRECTORY in names:
        for name in fs.list_directory(f"{root}/{CATALOG_DIRECTORY}"):
            fs.unlink(f"{root}/{CATALOG_DIRECTORY}/{name}")
    for name in (STORE_TEMPORARY, PINS_FILE):
        fs.unlink(f"{root}/{name}")


def empty_directories(fs: FileSystem, root: str, names: Collection[str]) -> None:
    """Log and objects without what a try left that was cut off; made where `names` lacks them."""
    for directory in (WAL_DIRECTORY, OBJECTS_DIRECTORY):
        if directory not in names:
            fs.make_directory(f"{root}/{directory}")
        for name in fs.list_directory(f"{root}/{directory}"):
            fs.unlink(f"{root}/{directory}/{name}")


def name_store(fs: FileSystem, root: str) -> None:
    """STORE comes last (rule 12): everything else is durable before the rename, and then that."""
    fs.sync_directory(f"{root}/{OBJECTS_DIRECTORY}")
    fs.sync_directory(root)
    fs.rename(f"{root}/{STORE_TEMPORARY}", f"{root}/{STORE_FILE}")
    fs.sync_directory(root)
    sync_parent(fs, root)


def plan(fs: FileSystem, root: str, *, assume_power_cut: bool = False) -> tuple[Plan, LogView]:
    """What opening for writing would do. Reads only."""
    uuid = read_store_file(fs, root)
    _, view = _read(fs, root, uuid, assume_power_cut=assume_power_cut)
    return _plan(fs, root, view, power_cut=assume_power_cut), view


def _read(
    fs: FileSystem, root: str, uuid: str, *, assume_power_cut: bool = False
) -> tuple[Mark | None, LogView]:
    """What every opening begins with: the newest mark, and the log, which reaches as far."""
    mark, _ = find_mark(fs, root, uuid)
    view = read_log(fs, root, uuid=uuid, assume_power_cut=assume_power_cut)
    check_not_ahead(root, mark, view)
    return mark, view


def _plan(fs: FileSystem, root: str, view: LogView, *, power_cut: bool) -> Plan:
    head, needed = view.state.head, view.state.needed()
    files, aside = slot_files(fs, root), pending(fs, root, view.segment)
    return Plan(
        head_step=head.step if head else None,
        head_seq=head.seq if head else None,
        records=len(view.records),
        torn=view.segment.torn,
        abandoned=[record.seq for record in view.abandoned],
        unproven=sum(record.seq > view.segment.log_synced for record in view.records),
        copied=view.copied,
        power_cut=not view.same_boot or power_cut,
        unused_slots=sum(
            slot not in needed and not set(paths) <= set(aside) for slot, paths in files.items()
        ),
        aside=aside,
    )


def open_for_write(
    fs: FileSystem, root: str, settings: Settings, *, assume_power_cut: bool = False
) -> tuple[Session, Plan]:
    """Recover and open; the caller holds the lock."""
    uuid = read_store_file(fs, root)
    _trace(settings, "replay")
    mark, view = _read(fs, root, uuid, assume_power_cut=assume_power_cut)
    found = _plan(fs, root, view, power_cut=assume_power_cut)
    finish_pending(fs, root, view.segment)
    make_pins(fs, root)
    _make_durable(fs, root, view)
    opening = _opening(fs, root, view)
    _trace(settings, "segment")
    writer = make_segment(
        fs,
        root,
        uuid=uuid,
        predecessor=predecessor_of(view),
        opening=opening,
        prewrite=settings.prewrite_bytes,
    )
    session = Session(fs, root, uuid=uuid, state=view.state, settings=settings, opening=opening)
    try:
        slots = SlotTable(fs, root, view.state.needed(), session.pins)
    except OSError:
        close_quietly(writer)
        session.close()
        raise
    slots.unlink_odd()
    upkeep = Upkeep(fs, root, uuid, mark)
    session.start_writing(writer, slots, upkeep)
    segment = view.segment
    cut_zeros_quietly(fs, root, segment.index, None if segment.torn else segment.end)
    upkeep.note(*writer.proven)
    return session, found


def open_for_read(fs: FileSystem, root: str, settings: Settings) -> Session:
    """Replay in memory; changes no byte."""
    uuid = read_store_file(fs, root)
    _trace(settings, "replay")
    _, view = _read(fs, root, uuid)
    return reading_session(fs, root, uuid, view, settings)


def reading_session(
    fs: FileSystem, root: str, uuid: str, view: LogView, settings: Settings
) -> Session:
    """A session that reads, from a log that was just read."""
    session = Session(
        fs, root, uuid=uuid, state=view.state, settings=settings, opening=view.opening
    )
    session.read_durable = lambda: durable_state(read_log(fs, root, uuid=uuid), root)
    session.refresh = LogFollower(fs, root, uuid, view).state
    return session


def slot_files(fs: FileSystem, root: str) -> dict[int, list[str]]:
    """The files of each slot, whatever their storage format."""
    files: dict[int, list[str]] = {}
    for name in fs.list_directory(f"{root}/{OBJECTS_DIRECTORY}"):
        place = slot_of(name)
        if place is not None:
            files.setdefault(place[0], []).append(slot_file(*place))
    return files


def _make_durable(fs: FileSystem, root: str, view: LogView) -> None:
    """Rule 1: names, then bytes of what the chosen state needs beyond what is proven durable."""
    for directory in (OBJECTS_DIRECTORY, WAL_DIRECTORY):
        fs.sync_directory(f"{root}/{directory}")
    fs.sync_directory(root)
    sync_parent(fs, root)
    unproven = set() if view.last.body["durable"] and not view.copied else view.state.needed()
    files = slot_files(fs, root)
    for slot in sorted(unproven):
        # The state names slots only; a missing file is told under its usual name.
        for path in files.get(slot) or [slot_file(slot, RAW)]:
            sync_file(fs, f"{root}/{path}")
    if view.copied:
        for name in fs.list_directory(f"{root}/{WAL_DIRECTORY}"):
            if segment_index(name) is not None or packed_index(name) is not None:
                sync_file(fs, f"{root}/{WAL_DIRECTORY}/{name}")
        sync_file(fs, f"{root}/{STORE_FILE}")


def _opening(fs: FileSystem, root: str, view: LogView) -> dict[str, Any]:
    instance = fs.random_bytes(16).hex() if view.copied else view.opening["instance"]
    abandoned = None
    if view.abandoned or view.segment.torn:
        abandoned = {
            "segment": view.segment.index,
            "offset": view.last.frame.end,
            "seq": [record.seq for record in view.abandoned],
        }
    return {
        **identity(fs, f"{root}/{STORE_FILE}", epoch=view.last.seq + 1, instance=instance),
        "reason": "open",
        "abandoned": abandoned,
        "state": view.state.to_json(),
    }


def identity(fs: FileSystem, store: str, *, epoch: int, instance: str) -> Mapping[str, Any]:
    """What an opening record says of who opens, and which file STORE, at path `store`, is."""
    pid, host = fs.process()
    stat = fs.stat(store)
    return {
        "type": "open",
        "durable": True,
        "time": fs.now(),
        "epoch": epoch,
        "nonce": fs.random_bytes(8).hex(),
        "boot": fs.boot_id(),
        "instance": instance,
        "store_device": stat.device,
        "store_inode": stat.inode,
        "pid": pid,
        "host": host,
    }


def sync_parent(fs: FileSystem, root: str) -> None:
    """Make the store's own name durable. Whoever may not read the directory above did not create
    the store in it."""
    try:
        fs.sync_directory(posixpath.dirname(root) or ".")
    except PermissionError:
        return


def _names(fs: FileSystem, root: str) -> set[str]:
    try:
        return set(fs.list_directory(root))
    except NotADirectoryError:
        raise StoreExistsError(f"{root} is a file, not a directory") from None


def check_creatable(fs: FileSystem, root: str) -> None:
    """A directory that holds anything but a store or an unfinished creation is not touched."""
    names = _names(fs, root)
    if STORE_FILE in names:
        return
    directories = (WAL_DIRECTORY, OBJECTS_DIRECTORY, CATALOG_DIRECTORY)
    own = {LOCK_FILE, PINS_FILE, STORE_TEMPORARY, *directories}
    foreign = sorted(names - own)
    for directory in directories:
        if directory in names:
            content = fs.list_directory(f"{root}/{directory}")
            foreign += [
                f"{directory}/{name}"
                for name in content
                if directory != WAL_DIRECTORY
                or (name != SEGMENT_TEMPORARY and segment_index(name) != 0)
            ]
    if foreign:
        raise StoreExistsError(
            f"{root} is not a store and not empty (it holds {foreign[0]!r}); "
            "choose an empty or new directory"
        )


def write_synced(fs: FileSystem, path: str, content: bytes) -> None:
    """Write a small file and make its bytes durable."""
    file = fs.open(path, "replace")
    try:
        file.pwrite(0, content)
        file.datasync()
    finally:
        file.close()


def _trace(settings: Settings, event: str) -> None:
    if settings.trace is not None:
        settings.trace(event, {})
