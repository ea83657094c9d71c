"""Changes of the log, one after the other: at once, or in flight on the workers' threads.

Synchronous changes are prepared and completed on the caller's thread; asynchronous ones on the
workers', several in flight, each prepared on the state that the one before will leave
(`commit_protocol` has the order of what they do). When a change in flight fails, every later one
fails with it, the state returns to what stands in the log, and the next call raises; those before
it go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from shardstore.commit_protocol import Change, CommitProtocol, Entry, Make
from shardstore.context import Context
from shardstore.errors import TransactionError
from shardstore.format.manifest import ObjectRef, Part
from shardstore.staged import StagedObject
from shardstore.staging import Staging


class Pipeline:
    """See the module's docstring. One caller's thread at a time begins changes (`Context.calls`);
    any thread may ask, wait, and be told of a failure."""

    def __init__(self, context: Context, staging: Staging, protocol: CommitProtocol) -> None:
        self.protocol = protocol
        self._context = context
        self._staging = staging
        self._changes: deque[Change] = deque()
        """Changes in flight, oldest first; some may have landed. Guarded by the context's mutex."""
        self._own: Change | None = None
        """The change that a caller's thread makes now: other threads may see its state already."""
        self._number = 0
        self._failure: Exception | None = None
        self._failed_at = 0
        """The number of the change that failed: those after it fail with it."""
        self._failure_told = False
        self._unsynced = 0
        """Commits begun since the last durable change."""

    def publish(self, make: Make, objects: list[StagedObject], *, durable: bool = True) -> Change:
        """Make one change; it is in the log, and durable if asked for, when this returns.

        Raises StorageError where nothing happened and the caller has to abandon `objects`;
        PoisonedError where only the next opening can tell.
        """
        self.drain()
        self._context.check_sound()
        change = Change(make=make, objects=objects, durable=durable)
        try:
            self._own = change
            self._prepare(change)
            self.protocol.complete(change)
        except BaseException:
            self.protocol.return_to_tail()
            raise
        finally:
            self._own = None
        self._unsynced = self.protocol.unsynced_commits
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
        while len(flying := self._flying()) >= self._context.settings.commits_in_flight:
            self.wait(flying[0])
        self._number += 1
        change = Change(
            make=make, objects=objects, durable=durable, entries=entries, step=step,
            number=self._number,
        )  # fmt: skip
        try:
            with self._context.mutex:
                self._changes.append(change)
            self._unsynced = 0 if durable else self._unsynced + 1
            self._context.workers.finish(self._prepare_in_flight, change)
        except BaseException:  # an interrupt: nobody knows whether the call will be made
            if any(change is flying for flying in self._changes):  # else it is not begun
                self._context.workers.finish(self._prepare_in_flight, change)
            raise
        return change

    def durability_of_next_commit(self) -> bool:
        """Whether the next commit is to be durable by itself."""
        settings = self._context.settings
        return settings.durability == "commit" or self._unsynced + 1 >= settings.sync_every

    def sync(self) -> None:
        """Make everything that was committed durable."""
        self.drain()
        if self.protocol.durable is not self.protocol.tail:
            time = self._context.fs.now()
            self.publish(lambda seq: {"type": "sync", "seq": seq, "time": time}, [])

    def finish(self) -> None:
        """Before the end: wait for what is in flight and make everything durable that is in the
        log. Raises the failure of a change that nobody was told of, after that all the same."""
        try:
            self.drain()
        except Exception:
            self._sync_if_sound()
            raise
        self._sync_if_sound()

    def _sync_if_sound(self) -> None:
        if not self._context.is_poisoned:
            self.sync()

    def drain(self) -> None:
        """Wait for the changes in flight; raises the failure of one that nobody was told of."""
        for change in self._flying():
            self.wait(change)
        self.surface()

    def surface(self) -> None:
        """Raise a failure in the background that nobody was told of, once."""
        if self._failure is None:
            return
        with self._context.calls:  # so that nothing is begun on the state that is given up
            for change in self._flying():
                self.wait(change)
            failure, self._failure = self._failure, None
            told, self._failure_told = self._failure_told, False
            self.protocol.return_to_tail()
            self._unsynced = self.protocol.unsynced_commits
        if failure is not None and not told:
            raise failure

    def told(self, error: Exception) -> None:
        """A caller received this error of a change in flight."""
        with self._context.mutex:
            if error is self._failure:
                self._failure_told = True

    def wait(self, change: Change) -> None:
        """Until the change is over, well or not."""
        self._context.workers.wait(change.is_over)

    def newest(self) -> Change | None:
        """The newest change in flight."""
        flying = self._flying()
        return flying[-1] if flying else None

    def settle(self) -> None:
        """Wait until every change in flight is prepared, so that `prepared` is the newest state."""
        for change in self._flying():
            self._context.workers.wait(change.is_prepared)
        self.surface()

    def find(self, reference: ObjectRef) -> StagedObject | None:
        """The object in flight that a reference names: its file may not be written yet."""
        own = self._own
        for change in [*self._flying(), *([] if own is None else [own])]:
            for staged in change.objects:
                if staged.reference == reference and not staged.reused:
                    return staged
        return None

    def objects(self) -> set[int]:
        """Identities of the objects of changes in flight."""
        return {id(staged) for change in self._flying() for staged in change.objects}

    # ------------------------------------------------------------------ in flight

    def _prepare_in_flight(self, change: Change) -> None:
        if change.is_begun:
            return
        try:
            change.is_begun = True
            self._check_before(change)
            self._prepare(change)
            change.is_prepared.set()
            self._context.workers.complete(self._complete_in_flight, change)
        except BaseException as error:
            self._fail(change, error)
            if not isinstance(error, Exception):
                raise

    def _complete_in_flight(self, change: Change) -> None:
        try:
            self._check_before(change)
            self.protocol.complete(change)
        except BaseException as error:
            self._fail(change, error)
            if not isinstance(error, Exception):
                raise
        else:
            change.is_over.set()

    def _check_before(self, change: Change) -> None:
        """Raises the failure of a change before this one."""
        with self._context.mutex:
            if self._failure is not None and self._failed_at < change.number:
                raise self._failure

    def _fail(self, change: Change, error: BaseException) -> None:
        if change.is_over.is_set():
            return
        if change.is_landed:  # the interrupt came after
            change.is_over.set()
            return
        told = not isinstance(error, Exception)  # an interrupt, in the caller's own thread
        failure = (
            error
            if isinstance(error, Exception)
            else TransactionError(f"the commit of step {change.step} was interrupted")
        )
        with self._context.mutex:
            if self._failure is None or change.number < self._failed_at:
                self._failure, self._failed_at = failure, change.number
                self._failure_told = told
        change.error = failure
        try:
            self._staging.abandon(change.objects)
        finally:
            change.is_prepared.set()
            change.is_over.set()

    def _flying(self) -> list[Change]:
        """The changes that are not over, oldest first."""
        if not self._changes:
            return []
        with self._context.mutex:
            while self._changes and self._changes[0].is_over.is_set():
                self._changes.popleft()
            return list(self._changes)

    def _prepare(self, change: Change) -> None:
        earlier = [other for other in self._flying() if 0 < other.number < change.number]
        if self.protocol.is_roll_due(len(earlier)):
            for other in earlier:
                self.wait(other)
            self._check_before(change)
            self.protocol.roll()
        self.protocol.prepare(change)
