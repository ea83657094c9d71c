"""Publishing ref records: everything that moves, makes or ends a name is one durable record.

Shared by `snapshot`, `branches`, `moves` and `collecting`. Callers hold the session's lock and have
made sure that no transaction is open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardstore.errors import NameTakenError
from shardstore.format.manifest import CommitInfo
from shardstore.retention import unkept
from shardstore.session import Session
from shardstore.staged import StagedObject


def publish(
    session: Session, record: Mapping[str, Any], objects: Sequence[StagedObject] = ()
) -> None:
    """Append the record and make it durable; its `unkeep`, where it has one, is filled in here."""

    def make(seq: int) -> dict[str, Any]:
        whole = {**record, "seq": seq, "time": session.fs.now()}
        if whole.get("new_line"):
            whole["new_line"] = [seq, *whole["new_line"][1:]]
        if "unkeep" in whole:
            whole["unkeep"] = unkept(session.state, whole)
        return whole

    try:
        session.pipeline.publish(make, list(objects))
    except BaseException:
        session.abandon(objects)
        raise


def new_line(commit: CommitInfo) -> list[int | None]:
    """A line of history that begins at the commit; its number is the record's, set by `publish`."""
    return [None, commit.line, commit.seq]


def check_free(session: Session, name: str) -> None:
    """Snapshots and branches share their names."""
    if name in session.state.snapshots or name in session.state.branches:
        raise NameTakenError(f"the name {name!r} is taken; delete it first or choose another")
