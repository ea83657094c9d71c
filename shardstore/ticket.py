"""What an asynchronous commit leaves in the caller's hands."""

from __future__ import annotations

from shardstore.commit_protocol import Change
from shardstore.pipeline import Pipeline
from shardstore.session import Session
from shardstore.views import Commit, commit_view


class Ticket:
    """An asynchronous commit. Any thread may ask."""

    def __init__(self, session: Session, pipeline: Pipeline, change: Change) -> None:
        self._session = session
        self._pipeline = pipeline
        self._change = change

    @property
    def step(self) -> int:
        return self._change.step

    def done(self) -> bool:
        """Whether the commit is over, well or not."""
        self._session.context.check_process()
        return self._change.is_over.is_set()

    def result(self) -> Commit:
        """Wait for the commit: it is in the log then, and durable unless durability is deferred.

        Raises what kept it from being made; the head is then what it was, and commits that were
        begun after this one fail with it.
        """
        self._session.context.check_process()
        self._pipeline.wait(self._change)
        if self._change.error is not None:
            self._pipeline.told(self._change.error)
            raise self._change.error
        assert self._change.commit is not None
        return commit_view(self._change.commit, self._session.durable_seq)
