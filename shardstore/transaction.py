"""A transaction: begin, stage / keep / remove, commit or abort.

Invariants: what a transaction wrote is in no manifest until `publish` returned; leaving without
commit aborts and gives its slots back; silence about an expected part is refused. One thread at a
time may use a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from shardstore.buffers import Buffer
from shardstore.codecs import raw
from shardstore.commit_protocol import Entry, Make
from shardstore.errors import (
    IncompleteCommitError,
    InvalidNameError,
    PartNotFoundError,
    ShardStoreError,
    TransactionError,
)
from shardstore.format.digests import ZERO_DIGEST, expect_digest
from shardstore.format.layout import ObjectHeader, ObjectLabel, TensorSpec, plan_layout
from shardstore.format.manifest import Part, manifest_digest, write_id
from shardstore.format.names import check_data_name
from shardstore.loaded import Checkout, LoadedObject
from shardstore.metadata import check_metadata, encode_blobs
from shardstore.parent import Parent, reference_of
from shardstore.retention import unkept
from shardstore.session import Session
from shardstore.staged import StagedObject
from shardstore.staging import Label
from shardstore.ticket import Ticket
from shardstore.views import Commit, commit_view
from shardstore.wal.state import changed_parts


class Transaction:
    """One change of the current branch. Made by `Store.begin`; use it in a `with` block."""

    def __init__(
        self,
        session: Session,
        step: int,
        expect: Iterable[Part] | None,
        track: Callable[[Buffer, ObjectHeader], LoadedObject],
    ) -> None:
        self.step = step
        self._session = session
        self._track = track
        self._parent = Parent(session, step)
        self._expect = _expected(expect)
        self._open_set = self._expect is None
        if self._expect is None and self._parent.exists:
            self._expect = frozenset(self._parent.entries)
        self._expect_digest = ZERO_DIGEST if self._expect is None else expect_digest(self._expect)
        self._staged: dict[Part, StagedObject] = {}
        self._kept: set[Part] = set()
        self._removed: set[Part] = set()
        self._checkouts: dict[int, Checkout] = {}
        self._id = write_id(*session.next_write_id())
        self.finished = False

    @property
    def written_bytes(self) -> int:
        """Bytes of the objects staged so far that are written; those whose content is the parent's
        are not. Waits until their digests are known."""
        self._session.context.check_process()
        for staged in self._staged.values():
            staged.known()
        return sum(staged.written_bytes for staged in self._staged.values())

    @property
    def unchanged(self) -> frozenset[Part]:
        """Parts that were staged with the bytes that the parent has: nothing is written for them.
        Waits until their digests are known."""
        self._session.context.check_process()
        for staged in self._staged.values():
            staged.known()
        return frozenset(part for part, staged in self._staged.items() if staged.reused)

    # ------------------------------------------------------------------ saying what changes

    def stage(
        self, shard: str, part: str, tensors: Mapping[str, Any] | Checkout, *, donate: bool = False
    ) -> None:
        """Stage new tensors for a part; the last staging of a part wins.

        `tensors` maps names to torch tensors or numpy arrays of any layout, which are copied
        before this returns; or it is what `checkout` gave, with donate=True, which goes out as it
        stands and is dead afterwards. Raises InvalidTensorError or InvalidNameError before
        anything is written, StorageError where the disk refuses.
        """
        key = self._check_part(shard, part)
        if isinstance(tensors, Checkout):
            if not donate:
                raise TransactionError(
                    f"a checked-out object of {shard!r}/{part!r} is staged with donate=True; "
                    "pass its tensors to stage a copy"
                )
            self._stage_donated(key, tensors)
            return
        if donate:
            raise TransactionError(
                f"only what checkout() returned can be donated, found {type(tensors).__name__} "
                f"for {shard!r}/{part!r}"
            )
        specs = raw.specs_of(tensors, shard=shard, part=part)
        layout = plan_layout(specs, shard, part)
        buffer = self._session.cache.acquire(layout.total_bytes)
        staged = self._session.staging.copy(
            key, layout, tensors, buffer, self._label_of(key), self._parent.twin(key)
        )
        self._take(key, staged)

    def checkout(self, shard: str, part: str) -> Checkout:
        """An exclusive, writable copy of what the part holds now (staged, else the parent's).

        The buffer belongs to the caller until it is staged with donate=True or closed.
        """
        return self._lend(*self._read(self._check_part(shard, part), for_change=True))

    def blank(self, shard: str, part: str, specs: Sequence[TensorSpec]) -> Checkout:
        """A writable object whose tensors hold anything until the caller has filled them; whatever
        the part holds now. It is staged like what `checkout` gives."""
        header = raw.blank_header(specs, *self._check_part(shard, part))
        buffer = self._session.cache.acquire(header.layout.total_bytes)
        raw.zero_pads(buffer.view, header.layout)
        return self._lend(buffer, header)

    def load(self, shard: str, part: str) -> LoadedObject:
        """The part as this transaction sees it: staged, else the parent's. Read-only."""
        key = self._check_part(shard, part)
        return self._track(*self._read(key))

    def keep(self, shard: str, part: str) -> None:
        """The part stays as the parent has it."""
        key = self._check_part(shard, part)
        if key not in self._parent.entries:
            raise PartNotFoundError(
                f"cannot keep shard {shard!r} part {part!r}: the parent commit does not have it"
            )
        self._forget(key)
        self._kept.add(key)

    def keep_rest(self) -> None:
        """Every part of the parent that was neither staged nor removed stays as it is."""
        self._check_active()
        for key in self._parent.entries:
            if key not in self._staged and key not in self._removed:
                self._kept.add(key)

    def remove(self, shard: str, part: str) -> None:
        """The part is not in the new commit."""
        key = self._check_part(shard, part)
        if key not in self._parent.entries and key not in self._staged:
            raise PartNotFoundError(
                f"cannot remove shard {shard!r} part {part!r}: it is neither staged nor in the "
                "parent commit"
            )
        self._forget(key)
        self._removed.add(key)

    # ------------------------------------------------------------------ ending

    def commit(
        self,
        metadata: Mapping[str, Any] | None = None,
        blobs: Mapping[str, bytes] | None = None,
    ) -> Commit:
        """Make the change durable, all of it, and return the commit.

        `metadata` is a dict of JSON (at most a megabyte), `blobs` are bytes (a megabyte in all).
        Raises IncompleteCommitError (the transaction stays open), StorageError (aborted, head
        unchanged) or PoisonedError (the next opening decides).
        """
        session = self._session
        with session.lock:
            make, _ = self._finish(metadata, blobs)
            pipeline = session.pipeline
            try:
                change = pipeline.publish(
                    make, list(self._staged.values()),
                    durable=pipeline.durability_of_next_commit(),
                )  # fmt: skip
            except ShardStoreError:
                self.abort()
                raise
            self._end()
            assert change.commit is not None
            return commit_view(change.commit, session.durable_seq)

    def commit_async(
        self,
        metadata: Mapping[str, Any] | None = None,
        blobs: Mapping[str, bytes] | None = None,
    ) -> Ticket:
        """Begin to commit and return at once; the next transaction may begin.

        Commits are made in their order. Reads of this process see what is in flight; a failure is
        raised by the ticket, and by the next call that changes the store where nobody asked it.
        Where `Settings.commits_in_flight` commits are unfinished, the oldest is waited for.
        """
        session = self._session
        with session.lock:
            make, entries = self._finish(metadata, blobs)
            pipeline = session.pipeline
            change = pipeline.publish_async(
                make, list(self._staged.values()),
                durable=pipeline.durability_of_next_commit(), entries=entries, step=self.step,
            )  # fmt: skip
            self._end()
            return Ticket(session, pipeline, change)

    def abort(self) -> None:
        """Give up: the head stays, the slots go back. Does nothing once finished."""
        if self.finished:
            return
        self._session.trace("abort", step=self.step)
        with self._session.lock:
            self._session.abandon(list(self._staged.values()))
        self._end()

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    # ------------------------------------------------------------------ insides

    def _finish(
        self, metadata: Mapping[str, Any] | None, blobs: Mapping[str, bytes] | None
    ) -> tuple[Make, Mapping[Part, Entry]]:
        """Check what is left to check; what makes the record once everything is known, and what the
        commit will hold."""
        self._check_active()
        checked_metadata = check_metadata({} if metadata is None else metadata)
        checked_blobs = encode_blobs({} if blobs is None else blobs)
        self._check_complete()
        entries: dict[Part, Entry] = {key: self._parent.entries[key] for key in self._kept}
        entries |= self._staged
        return lambda seq: self._record(seq, entries, checked_metadata, checked_blobs), entries

    def _record(
        self, seq: int, entries: Mapping[Part, Entry], metadata: Any, blobs: Mapping[str, str]
    ) -> dict[str, Any]:
        self._parent.check(self.step)
        state = self._session.pipeline.protocol.prepared
        parent = state.head
        manifest = {key: reference_of(entry) for key, entry in entries.items()}
        put, remove = changed_parts(parent.manifest if parent else {}, manifest)
        record: dict[str, Any] = {
            "type": "commit",
            "seq": seq,
            "time": self._session.fs.now(),
            "branch": state.current,
            "step": self.step,
            "line": state.line,
            "parent": parent.seq if parent else None,
            "parent_chain": parent.chain if parent else ZERO_DIGEST,
            "txn": self._id,
            "expect": expect_digest(manifest),
            "put": [[*key, manifest[key].to_json()] for key in put],
            "remove": [list(key) for key in remove],
            "manifest_digest": manifest_digest(manifest),
            "metadata": metadata,
            "blobs": blobs,
        }
        return {**record, "unkeep": unkept(state, record)}

    def _lend(self, buffer: Buffer, header: ObjectHeader) -> Checkout:
        def give_back(closed: LoadedObject) -> None:
            self._checkouts.pop(id(closed), None)
            buffer.release()

        checkout = Checkout(buffer, header, give_back)
        self._checkouts[id(checkout)] = checkout
        return checkout

    def _stage_donated(self, key: Part, checkout: Checkout) -> None:
        if (checkout.shard, checkout.part) != key:
            raise TransactionError(
                f"what was checked out of {checkout.shard!r}/{checkout.part!r} cannot be donated "
                f"to {key[0]!r}/{key[1]!r}; stage its tensors as a copy"
            )
        layout = checkout.header.layout
        given = checkout.take()
        self._checkouts.pop(id(checkout), None)
        # A lease of its own: memory of which the caller still has views serves no reader.
        pool = self._session.pool
        buffer = pool.share(given)
        given.release()
        staged = self._session.staging.donate(
            key,
            layout,
            buffer,
            self._label_of(key),
            self._parent.twin(key),
            keep=not pool.is_shared(buffer),
        )
        self._take(key, staged)

    def _take(self, key: Part, staged: StagedObject) -> None:
        previous = self._staged.get(key)
        self._staged[key] = staged
        self._kept.discard(key)
        self._removed.discard(key)
        if previous is not None:
            self._session.abandon([previous])

    def _label_of(self, key: Part) -> Label:
        session, step, txn, expect = self._session, self.step, self._id, self._expect_digest

        def label(write: tuple[int, int]) -> ObjectLabel:
            # Asked for in the order of commits: those before this one are prepared by now.
            parent = session.pipeline.protocol.prepared.head
            return ObjectLabel(
                store=session.uuid,
                shard=key[0],
                part=key[1],
                step=step,
                txn=txn,
                write=write_id(*write),
                expect=expect,
                parent=parent.chain if parent else ZERO_DIGEST,
            )

        return label

    def _read(self, key: Part, *, for_change: bool = False) -> tuple[Buffer, ObjectHeader]:
        entry: Entry | None = self._staged.get(key)
        if entry is None and key not in self._removed:
            entry = self._parent.entries.get(key)
        if entry is None:
            raise PartNotFoundError(
                f"shard {key[0]!r} part {key[1]!r} is neither staged nor in the parent commit"
            )
        return self._parent.read(key, entry, for_change=for_change)

    def _check_active(self) -> None:
        if self.finished:
            raise TransactionError(f"the transaction of step {self.step} is finished")
        self._session.check_writable()
        self._parent.check(self.step)

    def _check_part(self, shard: str, part: str) -> Part:
        self._check_active()
        key = (check_data_name("shard", shard), check_data_name("part", part))
        known = self._open_set or key in (self._expect or ()) or key in self._parent.entries
        if not known:
            raise PartNotFoundError(
                f"shard {shard!r} part {part!r} is not expected by this transaction"
            )
        return key

    def _check_complete(self) -> None:
        said = {*self._staged, *self._kept, *self._removed}
        expected = (self._expect or frozenset()) | frozenset(self._parent.entries)
        missing = tuple(sorted(expected - said))
        if missing:
            listed = ", ".join(f"{shard}/{part}" for shard, part in missing[:20])
            more = f" and {len(missing) - 20} more" if len(missing) > 20 else ""
            raise IncompleteCommitError(
                f"commit of step {self.step} is missing {len(missing)} expected parts: "
                f"{listed}{more}; stage, keep or remove each (keep_rest() keeps what is left)",
                missing,
            )

    def _forget(self, key: Part) -> None:
        """What was said of the part before no longer counts."""
        self._kept.discard(key)
        self._removed.discard(key)
        previous = self._staged.pop(key, None)
        if previous is not None:
            self._session.abandon([previous])

    def _end(self) -> None:
        self.finished = True
        for checkout in list(self._checkouts.values()):
            checkout.close()


def _expected(expect: Iterable[Part] | None) -> frozenset[Part] | None:
    if expect is None:
        return None
    parts: set[Part] = set()
    for pair in expect:
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise InvalidNameError(f"expect holds {pair!r}, expected (shard, part) pairs")
        parts.add((check_data_name("shard", pair[0]), check_data_name("part", pair[1])))
    return frozenset(parts)
