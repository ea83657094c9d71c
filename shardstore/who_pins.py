"""What readers pin now, and what that keeps from being given back.

Contract: reads only and takes no lock, beside readers and writers. The kernel says which slots are
locked, not by whom (the locks belong to open files, not to processes), so a pin is told by what it
holds: commits, snapshots, and objects that nothing but the pin needs any more. The pins are asked
first and the log is read afterwards: what it does not need then, only a pin keeps.

Neighbours: `pins` is a session's side of the file; `status` shows this.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from shardstore.format.manifest import CommitInfo, ObjectRef
from shardstore.format.names import PINS_FILE
from shardstore.fs.calls import close_quietly, is_loss
from shardstore.fs.protocol import FileSystem
from shardstore.fsck.findings import Wanted
from shardstore.recovery import slot_files
from shardstore.wal.reader import LogView

Sizes = dict[int, int]
"""slot -> bytes of its file"""


@dataclass(slots=True, kw_only=True)
class PinnedCommit:
    """A kept commit all of whose objects are pinned."""

    step: int
    seq: int


@dataclass(slots=True, kw_only=True)
class Pinned:
    """What is pinned at this moment, by whatever number of readers."""

    slots: tuple[int, ...] = ()
    bytes: int = 0
    """Of their files."""
    commits: list[PinnedCommit] = field(default_factory=list)
    snapshots: tuple[str, ...] = ()
    """Those all of whose objects are pinned."""
    held_back: tuple[int, ...] = ()
    """Slots that nothing kept needs: without the pins, commits would write them and gc remove."""
    held_back_bytes: int = 0
    held_back_steps: tuple[int, ...] = ()
    """The steps that wrote these, as far as the newest segment of the log knows."""


def pinned_sizes(fs: FileSystem, root: str) -> Sizes | None:
    """The slots that somebody pins; None where the file of pins cannot be read."""
    files = slot_files(fs, root)
    try:
        slots = _locked(fs, f"{root}/{PINS_FILE}", files)
    except OSError:
        return None
    sizes: Sizes = {}
    for slot in slots:
        try:
            sizes[slot] = sum(fs.stat(f"{root}/{path}").size for path in files[slot])
        except OSError as error:  # let go and removed meanwhile, or nothing that has a size
            if not is_loss(error):
                raise
    return sizes


def _locked(fs: FileSystem, path: str, slots: Collection[int]) -> set[int]:
    try:
        file = fs.open_pins(path)
    except FileNotFoundError:  # then nobody can have pinned anything
        return set()
    try:
        return file.pinned(slots)
    finally:
        close_quietly(file)


def who_pins(sizes: Sizes, view: LogView, wanted: Collection[Wanted]) -> Pinned:
    """What these slots are for in a log that was read after they were asked about, with what its
    state needs."""
    state, slots = view.state, set(sizes)
    held_back = slots - state.needed()
    return Pinned(
        slots=tuple(sorted(slots)),
        bytes=sum(sizes.values()),
        commits=[
            PinnedCommit(step=commit.step, seq=commit.seq)
            for commit in state.commits.values()
            if _holds(slots, commit.slots())
        ],
        snapshots=tuple(
            name for name in sorted(state.snapshots) if _holds(slots, _objects(wanted, name))
        ),
        held_back=tuple(sorted(held_back)),
        held_back_bytes=sum(sizes[slot] for slot in held_back),
        held_back_steps=_steps(view, held_back),
    )


def _holds(pinned: set[int], slots: set[int]) -> bool:
    return bool(slots) and slots <= pinned


def _objects(wanted: Collection[Wanted], snapshot: str) -> set[int]:
    """Without its manifest, which a view of a commit that the log describes need not pin."""
    return {each.reference.slot for each in wanted if snapshot in each.snapshots and not each.whole}


def _steps(view: LogView, slots: set[int]) -> tuple[int, ...]:
    """Which steps wrote these slots last: what is pinned is not written again."""
    wrote: dict[int, int] = {}

    def note(references: list[ObjectRef], step: int) -> None:
        wrote.update((one.slot, step) for reference in references for one in reference.whole)

    if not slots:
        return ()
    for record in view.records:
        body = record.body
        if body["type"] == "open":
            kept = [CommitInfo.from_json(value) for value in body["state"]["commits"]]
            for commit in sorted(kept, key=lambda commit: -commit.seq):  # the first wrote it
                note(list(commit.manifest.values()), commit.step)
        elif body["type"] == "commit":
            note([ObjectRef.from_json(row) for _, _, row in body["put"]], body["step"])
    return tuple(sorted({wrote[slot] for slot in slots if slot in wrote}))
