"""Which commits are kept: the last two, every snapshot, three undo refs (the default, and so far
the only policy). Pure functions of the state; what they return stands in the record.
"""

from __future__ import annotations

from shardstore.wal.state import State

UNDO_ENTRIES = 3


def unkept_after_commit(state: State) -> list[int]:
    """Commits that the next commit on the current branch un-keeps: all but its parent, other
    heads and what undo may return to."""
    return sorted(set(state.commits) - _held(state))


def unkept_after_move(
    state: State, target: int, *, forget: list[int], keep: tuple[int, ...] = ()
) -> list[int]:
    """Commits that moving the current branch's head to `target` un-keeps."""
    branches = {name: seq for name, (seq, _) in state.branches.items()}
    branches[state.current] = target
    held = {seq for seq in branches.values() if seq is not None} | set(keep)
    held |= {e.commit for e in state.undo if e.commit is not None and e.seq not in forget}
    parent = state.commits[target].parent if target in state.commits else None
    if parent is not None:
        held.add(parent)
    return sorted({*state.commits, target} - held)


def forgotten(state: State) -> list[int]:
    """Undo entries that end when one more is added."""
    return [entry.seq for entry in state.undo[: max(0, len(state.undo) + 1 - UNDO_ENTRIES)]]


def unkept_by_forgetting(state: State, forget: list[int]) -> list[int]:
    """Commits that only forgotten undo entries held."""
    gone = {e.commit for e in state.undo if e.seq in forget and e.commit is not None}
    still = {e.commit for e in state.undo if e.seq not in forget}
    heads = {seq for seq, _ in state.branches.values()}
    parents = {state.head.parent} if state.head else set()
    return sorted(gone - still - heads - parents)


def _held(state: State) -> set[int]:
    held = {seq for seq, _ in state.branches.values() if seq is not None}
    return held | {entry.commit for entry in state.undo if entry.commit is not None}
