"""The parent of a transaction: the head or the newest commit in flight, and reading its objects."""

from __future__ import annotations

from collections.abc import Mapping

from shardstore.buffers import Buffer
from shardstore.commit_protocol import Entry
from shardstore.errors import TransactionError
from shardstore.format.layout import ObjectHeader
from shardstore.format.manifest import ObjectRef, Part
from shardstore.session import Session, Source, Steady
from shardstore.staged import StagedObject, Twin


class Parent:
    """See the module's docstring. Made when a transaction begins."""

    def __init__(self, session: Session, step: int) -> None:
        self._session = session
        self._change = session.pipeline.newest()
        self.entries: Mapping[Part, Entry] = {}
        self.exists = True
        """False on a branch without a commit."""
        self._source: Source = Steady(step)
        if self._change is not None:
            self.entries = self._change.entries
        elif (head := session.state.head) is not None:
            self.entries, self._source = head.manifest, head
        else:
            self.exists = False

    def check(self, step: int) -> None:
        """Raises TransactionError where the commit that was in flight failed."""
        if self._change is not None and self._change.error is not None:
            raise TransactionError(
                f"the transaction of step {step} builds on a commit that failed "
                f"({self._change.error}); abort it and begin again"
            )

    def twin(self, part: Part) -> Twin | None:
        """The parent's object of a part, which a new one may turn out to equal."""
        entry = self.entries.get(part)
        if entry is None:
            return None
        session, source = self._session, self._source

        def header() -> ObjectHeader:
            if isinstance(entry, StagedObject) and entry.header is not None:
                return entry.header  # its file may not be written yet
            return session.read_header(part, reference_of(entry), source)

        return Twin(reference=lambda: reference_of(entry), header=header)

    def read(self, part: Part, entry: Entry, *, for_change: bool) -> tuple[Buffer, ObjectHeader]:
        """An object that the parent has or the transaction staged; the buffer is the caller's."""
        session, reference = self._session, reference_of(entry)
        if isinstance(entry, StagedObject):
            shared = session.staging.share(entry)
            if shared is not None:
                return (session.copy_of(shared[0]), shared[1]) if for_change else shared
        read = session.read_for_change if for_change else session.read_object
        return read(part, reference, self._source)


def reference_of(entry: Entry) -> ObjectRef:
    """The object's reference; of one in flight once its digests are known."""
    return entry.known() if isinstance(entry, StagedObject) else entry
