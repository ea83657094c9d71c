"""Which commits are kept: pure functions of the log's state; what they return stands in the record.

Kept without a name are the last commits of each branch, every M-th step and the best by a metric,
as the store's rule says (`format.policy`; by default the last two), and the heads that undo entries
hold, whatever it says. Steps are numbers, never text. Snapshots hold their slots by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardstore.format.manifest import CommitInfo
from shardstore.wal.state import State

UNDO_ENTRIES = 3


def unkept(state: State, record: Mapping[str, Any]) -> list[int]:
    """Commits that a record un-keeps: those that nothing holds in the state after it."""
    after = state.copy()
    after.apply({**record, "unkeep": []}, "")
    return no_longer_held(after)


def no_longer_held(state: State) -> list[int]:
    """Kept commits that the rule does not ask for; there are some after the rule has changed."""
    return sorted(state.commits.keys() - held(state))


def held(state: State) -> set[int]:
    """Commits that must stay kept.

    Every M-th step and the best are looked for on each branch by itself, so that no branch changes
    what another keeps, and on the lines that undo may bring back.
    """
    rule, undo = state.retention, {e.commit for e in state.undo if e.commit is not None}
    heads = {seq for seq, _ in state.branches.values() if seq is not None}
    found = heads | undo
    for seq in heads:
        found |= _last(state, seq, rule.last)
    if rule.every is not None or rule.best is not None:
        for seq in heads | undo:
            line = _ancestors(state, state.commits[seq])
            found |= _every(state, line) | _best(state, line)
    return found


def held_of(state: State, published: set[int]) -> set[int]:
    """As `held`, for a durable tier: the last N are those of each branch that were `published`,
    since the commits between two publications are not there."""
    rule = state.retention
    heads = {seq for seq, _ in state.branches.values() if seq is not None}
    found = heads | {e.commit for e in state.undo if e.commit is not None}
    for seq in list(found):
        line = _ancestors(state, state.commits[seq])
        found |= _every(state, line) | _best(state, line)
    for head in heads:
        line = _ancestors(state, state.commits[head])
        found |= set([c.seq for c in line if c.seq in published or c.seq == head][-rule.last :])
    return found


def forgotten(state: State) -> list[int]:
    """Undo entries that end when one more is added."""
    return [entry.seq for entry in state.undo[: max(0, len(state.undo) + 1 - UNDO_ENTRIES)]]


def _last(state: State, head: int, count: int) -> set[int]:
    found: set[int] = set()
    at: int | None = head
    while at in state.commits and len(found) < count:
        found.add(at)
        at = state.commits[at].parent
    return found


def _ancestors(state: State, tip: CommitInfo) -> list[CommitInfo]:
    """The tip and the kept commits that it descends from, oldest first."""
    return [
        commit
        for seq, commit in sorted(state.commits.items())
        if seq <= tip.seq and state.on_line(tip.line, commit.line, seq)
    ]


def _every(state: State, line: list[CommitInfo]) -> set[int]:
    """Of several commits of one step the newest is the one that counts."""
    every = state.retention.every
    if every is None:
        return set()
    return set({c.step: c.seq for c in line if c.step % every == 0}.values())


def _best(state: State, line: list[CommitInfo]) -> set[int]:
    best = state.retention.best
    if best is None:
        return set()
    ranked = [(rank, c.seq) for c in line if (rank := best.rank(c.metadata)) is not None]
    return {seq for _, seq in sorted(ranked)[: best.count]}
