"""Changes of the log, one after the other: at once, or in flight on the workers' threads.

Synchronous changes are prepared and completed on the caller's thread; asynchronous ones on the
workers', several in flight, each prepared on the state that the one before will leave
(`commit_protocol` has the order of what they do). When a change in flight fails, every later one
fails with it, the state returns to what stands in the log, and the next call raises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from shardstore.commit_protocol import Change, CommitProtocol, Entry, Make
from shardstore.context import Context
from shardstore.format.manifest import Part
from shardstore.staged import StagedObject
from shardstore.staging import Staging


class Pipeline:
    """See the module's docstring. One caller's thread at a time (`Context.calls`)."""

    def __init__(self, context: Context, staging: Staging, protocol: CommitProtocol) -> None:
        self.protocol = protocol
        self._context = context
        self._staging = staging
        self._flying: deque[Change] = deque()
        self._failure: Exception | None = None
        self._failure_told = False

    def publish(self, make: Make, objects: list[StagedObject], *, durable: bool = True) -> Change:
        """Make one change; it is in the log, and durable if asked for, when this returns.

        Raises StorageError where nothing happened and the caller has to abandon `objects`;
        PoisonedError where only the next opening can tell.
        """
        self.drain()
        change = Change(make=make, objects=objects, durable=durable)
        try:
            self._prepare(change)
            self.protocol.complete(change)
        except BaseException:
            self.protocol.return_to_tail()
            raise
        return change

    def publish_async(
        self,
        make: Make,
        objects: list[StagedObject],
        *,
        durable: bool,
        entries: Mapping[Part, Entry],
        step: int,
    ) -> Change:
        """Begin a commit; `objects` are the pipeline's, which abandons them if it fails."""
        while len(self._flying) >= self._context.settings.commits_in_flight:
            self._flying[0].is_over.wait()
            self._forget_landed()
        change = Change(make=make, objects=objects, durable=durable, entries=entries, step=step)
        self._flying.append(change)
        self._context.workers.finish(self._prepare_in_flight, change)
        return change

    def durability_of_next_commit(self) -> bool:
        """Whether the next commit is to be durable by itself."""
        settings = self._context.settings
        if settings.durability == "commit":
            return True
        return self.protocol.unsynced_commits + 1 >= settings.sync_every

    def sync(self) -> None:
        """Make everything that was committed durable."""
        self.drain()
        if self.protocol.durable is not self.protocol.tail:
            time = self._context.fs.now()
            self.publish(lambda seq: {"type": "sync", "seq": seq, "time": time}, [])

    def drain(self) -> None:
        """Wait for the changes in flight; raises the failure of one that nobody was told of."""
        for change in list(self._flying):
            change.is_over.wait()
        self._forget_landed()
        self.surface()

    def surface(self) -> None:
        """Raise a failure in the background that nobody was told of, once."""
        if self._failure is None:
            return
        for change in list(self._flying):
            change.is_over.wait()
        self._forget_landed()
        failure, self._failure = self._failure, None
        told, self._failure_told = self._failure_told, False
        self.protocol.return_to_tail()
        if failure is not None and not told:
            raise failure

    def told(self, error: Exception) -> None:
        """A caller received this error of a change in flight."""
        if error is self._failure:
            self._failure_told = True

    def newest(self) -> Change | None:
        """The newest change in flight."""
        self._forget_landed()
        return self._flying[-1] if self._flying else None

    def settle(self) -> None:
        """Wait until every change in flight is prepared, so that `prepared` is the newest state."""
        for change in list(self._flying):
            change.is_prepared.wait()
        self.surface()

    # ------------------------------------------------------------------ in flight

    def _prepare_in_flight(self, change: Change) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            self._prepare(change)
        except Exception as error:
            self._fail(change, error)
        else:
            change.is_prepared.set()
            self._context.workers.complete(self._complete_in_flight, change)

    def _complete_in_flight(self, change: Change) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            self.protocol.complete(change)
        except Exception as error:
            self._fail(change, error)
        else:
            change.is_over.set()

    def _fail(self, change: Change, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        change.error = self._failure
        self._staging.abandon(change.objects)
        change.is_prepared.set()
        change.is_over.set()

    def _forget_landed(self) -> None:
        while self._flying and self._flying[0].is_over.is_set():
            self._flying.popleft()

    def _prepare(self, change: Change) -> None:
        flying = [other for other in self._flying if other.record is not None]
        commits = sum(not other.is_over.is_set() for other in flying)
        if self.protocol.is_roll_due(commits):
            for other in flying:
                other.is_over.wait()
            if self._failure is not None:
                raise self._failure
            self.protocol.roll()
        self.protocol.prepare(change)
