"""Branches: lines of training that share what they have in common and diverge alone.

A branch is a head with a name; making one copies nothing, and commits go to the current one.
Callers hold the session's lock and have made sure that no transaction is open.
"""

from __future__ import annotations

from shardstore.errors import RefNotFoundError, UsageError
from shardstore.format.names import check_ref_name
from shardstore.ref_records import check_free, new_line, publish
from shardstore.refs import Target
from shardstore.retention import forgotten
from shardstore.session import Session
from shardstore.snapshot import standing_commit


def branch(session: Session, name: str, target: Target) -> None:
    """Make a branch whose head is the commit. The current branch stays the same."""
    checked = check_ref_name(name)
    check_free(session, checked)
    commit = standing_commit(session, target)
    session.trace("branch", name=checked)
    publish(
        session,
        {
            "type": "branch",
            "name": checked,
            "commit": commit.to_json(),
            "new_line": new_line(commit),
        },
    )


def switch(session: Session, name: str) -> None:
    """Make another branch the current one; `undo` switches back."""
    state = session.state
    check_branch(session, name)
    if name == state.current:
        raise UsageError(f"{name!r} is the current branch already")
    session.trace("switch", name=name)
    publish(session, {"type": "switch", "name": name, "forget": forgotten(state), "unkeep": []})


def delete(session: Session, name: str) -> None:
    """Delete a branch that is not the current one. Its head stays until three more undoable
    changes were made."""
    state = session.state
    if name == state.current:
        raise UsageError(
            f"{name!r} is the current branch and cannot be deleted; switch to another first"
        )
    session.trace("delete", name=name)
    publish(
        session,
        {"type": "delete", "name": name, "slots": [], "forget": forgotten(state), "unkeep": []},
    )


def check_branch(session: Session, name: str) -> None:
    """RefNotFoundError where no branch has the name."""
    branches = session.state.branches
    if name not in branches:
        kind = "a snapshot, not a branch" if name in session.state.snapshots else "no branch"
        raise RefNotFoundError(
            f"{name!r} is {kind}; the branches are {', '.join(sorted(branches))}"
        )
