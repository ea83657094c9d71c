"""The methods of a store that copy it: `clone` and `publish`; `Store` inherits them.

Both hold a state and copy it while commits go on; `cloning` and `publishing`, which most processes
never need and so are imported late, have what they do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardstore.opening import place
from shardstore.progress import Progress, silent
from shardstore.ref_records import publish as publish_record
from shardstore.refs import Ref
from shardstore.session import Session

if TYPE_CHECKING:
    from shardstore.cloning import Cloned
    from shardstore.held import HeldState
    from shardstore.publishing import Published


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
        from shardstore import cloning

        self._settle()
        _, target = place(dest, self._session.fs)
        with self._told("cloning"), self._hold() as held:
            state = cloning.cloned_state(held, ref)
            fields = cloning.CLONE if ref is None else cloning.PART
            return cloning.clone(held, target, state, fields=fields, progress=progress)

    def publish(self, dest: str | os.PathLike[str], *, progress: Progress = silent) -> Published:
        """Copy what changed since the last time to the durable store at DEST, made where it is
        missing, as one transaction there: names, retained commits and history come along.

        TierConflictError where DEST went on by itself. A store that is open for reading publishes
        too, but cannot note it.
        """
        from shardstore import publishing

        self._settle()
        session = self._session
        _, target = place(dest, session.fs)
        with self._told("publishing"), self._hold(durable=True) as held:
            done = publishing.publish(held, target, progress)
        if session.is_writer and session.state.base != done.position:
            with session.lock:  # moves no head: an open transaction is not in its way
                session.check_writable()
                publish_record(session, {"type": "base", "base": done.position.to_json()})
        return done

    def _hold(self, *, durable: bool = False) -> HeldState:
        from shardstore.held import hold

        session = self._session
        cache = session.cache
        return hold(session.fs, session.root, session.settings, durable=durable, cache=cache)

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """The system's refusals of either store's files in the store's words."""
        try:
            yield
        except OSError as error:
            raise self._session.storage_error(doing, error) from error

    def _settle(self) -> None:
        """A writer's own commits are in its log, and durable."""
        self._session.check_open()
        if self._session.is_writer:
            with self._session.lock:
                self._session.pipeline.sync()
