"""Moving the head: rewind and undo. Nothing is copied, and nothing that was left is lost at once.

Callers hold the session's lock and have made sure that no transaction is open.
"""

from __future__ import annotations

from typing import Any

from shardstore.errors import UsageError
from shardstore.format.manifest import CommitInfo, UndoEntry
from shardstore.ref_records import check_free, new_line, publish
from shardstore.refs import Target
from shardstore.retention import forgotten
from shardstore.session import Session
from shardstore.snapshot import standing_commit


def rewind(session: Session, target: Target) -> CommitInfo:
    """Move the current branch's head to a kept commit; what it left can be undone."""
    commit, state = standing_commit(session, target), session.state
    session.trace("rewind", seq=commit.seq)
    publish(
        session,
        {
            "type": "rewind",
            "branch": state.current,
            "commit": commit.to_json(),
            "forget": forgotten(state),
            "unkeep": [],
            "new_line": new_line(commit),
        },
    )
    return commit


def undo(session: Session) -> UndoEntry:
    """Revert the newest rewind, switch or deletion that is not undone yet; returns its entry."""
    state = session.state
    open_entries = [entry for entry in state.undo if not entry.done]
    if not open_entries:
        raise UsageError(
            "nothing to undo: no rewind, switch or deletion among the last three is left to revert"
        )
    entry = open_entries[-1]
    record: dict[str, Any] = {"type": "undo", "entry": entry.seq, "unkeep": [], "new_line": None}
    if entry.op == "delete":
        check_free(session, entry.name)
    if entry.op != "switch" and entry.commit is not None:
        record["new_line"] = new_line(state.commits[entry.commit])
    session.trace("undo", entry=entry.seq)
    publish(session, record)
    return entry
