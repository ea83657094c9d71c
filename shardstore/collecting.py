"""gc: gives disk space back. First the log says what is no longer kept, then files go.

Contract: only files of slots that rule 5 lets be written are unlinked, and that only after the
record that un-keeps is durable. What the next commit writes into stays, unless everything is asked
for. A crash in between leaves free files, which the next opening finds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from shardstore.format.names import OBJECTS_DIRECTORY
from shardstore.ref_records import publish
from shardstore.retention import no_longer_held
from shardstore.session import Session
from shardstore.slots import Kind, SlotTable
from shardstore.wal.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What gc did, or would do."""

    unkept: tuple[int, ...]
    """Sequence numbers of the commits that are no longer kept."""
    files: int
    """Object files unlinked."""
    bytes: int
    """What they took on disk."""


def preview(session: Session, *, everything: bool) -> Collected:
    """What `collect` would do. Reads only."""
    after, gone = _after(session.state)
    try:
        slots = SlotTable(session.fs, session.root, after.needed(), session.pins)
    except OSError as error:
        raise session.storage_error("listing the object files", error) from error
    return _report(slots, slots.excess(_spare(after, everything)), gone)


def collect(session: Session, *, everything: bool) -> Collected:
    """Un-keep what the rule of retention does not ask for, then unlink the files to spare.

    The caller holds the session's lock and has made sure that no transaction is open.
    """
    session.pipeline.sync()  # else slots that only the last durable commit needs would stay
    gone = no_longer_held(session.state)
    session.trace("collect", unkeep=gone)
    if gone:
        publish(session, {"type": "unkeep", "unkeep": []})
    slots = session.slots
    excess = slots.excess(_spare(session.state, everything))
    report = _report(slots, excess, gone)
    session.trace("unlink", slots=excess)
    try:
        slots.unlink(excess)
        if excess:
            session.fs.sync_directory(session.path(OBJECTS_DIRECTORY))
    except OSError as error:
        raise session.storage_error("unlinking object files", error) from error
    return report


def _after(state: State) -> tuple[State, list[int]]:
    gone = no_longer_held(state)
    after = state.copy()
    for seq in gone:
        del after.commits[seq]
    return after, gone


def _spare(state: State, everything: bool) -> Counter[Kind]:
    """Free slots by kind that a commit of all parts of a branch writes into: one set."""
    spare: Counter[Kind] = Counter()
    if not everything:
        for seq, _ in state.branches.values():
            if seq is not None:
                spare |= Counter(
                    (ref.format, ref.size) for ref in state.commits[seq].manifest.values()
                )
    return spare


def _report(slots: SlotTable, excess: list[int], gone: list[int]) -> Collected:
    size = sum(slots.size(slot) for slot in excess)
    return Collected(unkept=tuple(gone), files=len(excess), bytes=size)
