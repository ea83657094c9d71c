"""The methods of a store that copy it: `clone` and `publish`; `Store` inherits them.

Both hold a state and copy it while commits go on; `cloning` and `publishing` have what they do.
"""

from __future__ import annotations

import os

from shardstore import cloning, publishing
from shardstore.cloning import Cloned, Progress, silent
from shardstore.held import HeldState, hold
from shardstore.opening import place
from shardstore.publishing import Published
from shardstore.ref_records import publish as publish_record
from shardstore.refs import Ref
from shardstore.session import Session


class CopyMethods:
    """See the module's docstring."""

    _session: Session

    def clone(
        self,
        dest: str | os.PathLike[str],
        *,
        ref: Ref | str | None = None,
        progress: Progress = silent,
    ) -> Cloned:
        """Copy the store into a new or empty directory, for a run beside this one.

        With `ref` only that commit comes along, on a line of its own; the history always does. The
        copy is of one moment, a writer may go on meanwhile. `progress` is given the bytes of all.
        StoreExistsError where DEST holds anything; a failure leaves no store there.
        """
        self._settle()
        session = self._session
        _, target = place(dest, session.fs)
        with self._hold() as held:
            return cloning.clone(held, target, cloning.cloned_state(held, ref), progress=progress)

    def publish(self, dest: str | os.PathLike[str], *, progress: Progress = silent) -> Published:
        """Copy what changed since the last time to the durable store at DEST, made where it is
        missing, as one transaction there: names, retained commits and history come along.

        TierConflictError where DEST went on by itself. A store that is open for reading publishes
        too, but cannot note it.
        """
        self._settle()
        session = self._session
        _, target = place(dest, session.fs)
        with self._hold(durable=True) as held:
            done = publishing.publish(held, target, progress)
        if session.is_writer and session.state.base != done.position:
            with session.lock:  # moves no head: an open transaction is not in its way
                session.check_writable()
                publish_record(session, {"type": "base", "base": done.position.to_json()})
        return done

    def _hold(self, *, durable: bool = False) -> HeldState:
        session = self._session
        cache = session.cache
        return hold(session.fs, session.root, session.settings, durable=durable, cache=cache)

    def _settle(self) -> None:
        """A writer's own commits are in its log, and durable."""
        self._session.check_open()
        if self._session.is_writer:
            with self._session.lock:
                self._session.pipeline.sync()
