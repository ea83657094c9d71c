"""The methods of a store that name, move and keep commits; `Store` inherits them.

Each runs alone and is durable when it returns; an open transaction stands in its way. What they do
stands in `snapshot`, `branches`, `moves` and `collecting`; `store` has the rest of the face.
"""

from __future__ import annotations

from shardstore import archive, branches, collecting, moves, refs, snapshot
from shardstore.format.policy import Retention
from shardstore.progress import Advance
from shardstore.ref_records import publish
from shardstore.refs import Ref
from shardstore.session import Session
from shardstore.views import (
    Branch,
    Commit,
    Snapshot,
    UndoableChange,
    branch_views,
    commit_view,
    snapshot_view,
    undoable_view,
)


class RefMethods:
    """See the module's docstring."""

    _session: Session

    def _begin_ref(self, what: str) -> None:
        """Refuses where nothing may be written or a transaction is open."""
        raise NotImplementedError

    @property
    def current_branch(self) -> str:
        """The branch that commits go to."""
        return self._session.state.current

    @property
    def branches(self) -> list[Branch]:
        """Branches in name order."""
        return branch_views(self._session.state)

    @property
    def retention(self) -> Retention:
        """Which commits stay kept without a name."""
        return self._session.state.retention

    # ------------------------------------------------------------------ names and moves

    def snapshot(self, name: str | None = None, at: Ref | str = Ref.head) -> Snapshot:
        """Name a commit and keep it for ever, at no cost in data; durable when this returns.

        Without a name it is called step_00000012 after its step. NameTakenError where it exists.
        """
        with self._session.lock:
            self._begin_ref("snapshot")
            target = refs.resolve(self._session.state, at)
            return snapshot_view(snapshot.snapshot(self._session, name, target))

    def branch(self, name: str, at: Ref | str = Ref.head) -> Branch:
        """Make a branch that begins at a commit, at no cost in data; `switch` goes there."""
        with self._session.lock:
            self._begin_ref("branch")
            branches.branch(self._session, name, refs.resolve(self._session.state, at))
            return next(made for made in self.branches if made.name == name)

    def switch(self, name: str) -> Branch:
        """Make another branch the current one: its head is the head now. `undo` switches back."""
        with self._session.lock:
            self._begin_ref("switch")
            branches.switch(self._session, name)
            return next(reached for reached in self.branches if reached.current)

    def delete(self, name: str) -> None:
        """Delete a snapshot or a branch, not the current one.

        `undo` brings it back while it is among the last three rewinds, switches and deletions.
        """
        with self._session.lock:
            self._begin_ref("delete")
            kind = branches if name in self._session.state.branches else snapshot
            kind.delete(self._session, name)

    def rewind(self, ref: Ref | str) -> Commit:
        """Move the head back (or sideways) to a kept commit; nothing is copied, history stays."""
        with self._session.lock:
            self._begin_ref("rewind")
            target = refs.resolve(self._session.state, ref)
            return commit_view(moves.rewind(self._session, target), self._session.durable_seq)

    @property
    def undoable(self) -> list[UndoableChange]:
        """What `undo` would revert, call by call."""
        state = self._session.state
        return [undoable_view(entry, state) for entry in reversed(state.undo) if not entry.done]

    def undo(self) -> UndoableChange:
        """Revert the newest rewind, switch or deletion not yet undone (of the last three)."""
        with self._session.lock:
            self._begin_ref("undo")
            before = self._session.state
            return undoable_view(moves.undo(self._session), before)

    # ------------------------------------------------------------------ space

    def archive(
        self,
        name: str,
        *,
        against: str | None = None,
        alone: bool = False,
        level: int = archive.LEVEL,
        advance: Advance = lambda count: None,
    ) -> archive.Archived:
        """Pack a snapshot's objects: it takes less room, is read more slowly, and stays the same.

        Each is packed by itself or, where that pays, as the difference to the same part of the
        snapshot `against`, which is then needed too; by default the nearest archived snapshot is
        tried, with `alone` none. Memory is that of two objects and what they pack to. `advance` is
        called with bytes that are done. Durable when this returns; an error leaves all as it was.
        """
        with self._session.lock:
            self._begin_ref("archive")
            return archive.archive(
                self._session, name, against=against, alone=alone, level=level, advance=advance
            )

    def set_retention(self, retention: Retention) -> None:
        """Say which commits stay kept without a name; it stands in the log, for every opening.

        Nothing goes at once: the next commit, or `gc`, un-keeps by the new rule.
        """
        with self._session.lock:
            self._begin_ref("change the retention")
            if retention != self.retention:
                publish(self._session, {"type": "retention", "retention": retention.to_json()})

    def gc(self, *, everything: bool = False, dry_run: bool = False) -> collecting.Collected:
        """Give disk space back: un-keep what the retention does not ask for, unlink spare files.

        Room for one more commit of all parts stays, unless `everything` is asked for: a commit into
        files that exist is faster and cannot find the disk full. `dry_run` only tells.
        """
        with self._session.lock:
            if dry_run:
                self._session.check_open()
                return collecting.preview(self._session, everything=everything)
            self._begin_ref("collect")
            return collecting.collect(self._session, everything=everything)
