"""The store: open it, begin transactions, load objects, name and move commits.

A `Store` owns the writer's lock and its session. Methods may be called from any thread; those that
change the store run one at a time. Loaded objects own their buffers until they are closed. In a
forked child every call raises ClosedError, but for `close`, which does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal
from weakref import WeakValueDictionary

from shardstore import opening, recovery, refs, snapshot
from shardstore.buffers import Buffer
from shardstore.context import Settings, Trace
from shardstore.errors import (
    PartNotFoundError,
    TransactionError,
    UsageError,
)
from shardstore.format.layout import ObjectHeader
from shardstore.format.manifest import CommitInfo, Part
from shardstore.fs.protocol import FileSystem, Lock
from shardstore.loaded import LoadedObject
from shardstore.pinned_view import PinnedView, digest_of, pin, tensor_rows
from shardstore.refs import Ref
from shardstore.session import Session
from shardstore.store_refs import RefMethods
from shardstore.store_tiers import CopyMethods
from shardstore.transaction import Transaction
from shardstore.views import (
    Commit,
    ObjectInfo,
    Snapshot,
    TensorInfo,
    commit_view,
    snapshot_view,
)

Mode = Literal["r", "r+", "a"]


class Store(RefMethods, CopyMethods):
    """A transactional store of tensor shards. Use `Store.open` or `Store.create`."""

    def __init__(self, session: Session, lock: Lock | None, plan: recovery.Plan | None) -> None:
        self._session = session
        self._lock = lock
        self._transaction: Transaction | None = None
        self._live: WeakValueDictionary[int, LoadedObject] = WeakValueDictionary()
        self.recovered = plan
        """What opening for writing found and did; None when open for reading."""

    # ------------------------------------------------------------------ opening and closing

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        fs: FileSystem | None = None,
        settings: Settings | None = None,
        trace: Trace | None = None,
        format: str | None = None,
    ) -> Store:
        """Create an empty store and open it for writing; StoreExistsError where one is."""
        chosen = opening.chosen_settings(settings, trace, format)
        return cls(*opening.open_writing(path, fs, chosen, may_create=True, must_create=True))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: Mode = "r",
        *,
        fs: FileSystem | None = None,
        settings: Settings | None = None,
        trace: Trace | None = None,
        format: str | None = None,
        assume_power_cut: bool = False,
    ) -> Store:
        """Open a store: "r" reads (and changes no byte), "r+" reads and writes, "a" creates too.

        Opening for writing takes the lock (LockedError names its holder) and recovers what a crash
        left. `assume_power_cut` gives up what is not proven durable, for a file system that was
        lost and mounted again without a reboot. `trace` is called before each step of the protocol.
        `format` is what new objects are written as: "raw" (the default, and the fast one),
        "safetensors" or "pt"; whatever a store holds can be read.
        """
        if mode not in ("r", "r+", "a"):
            raise UsageError(f"mode {mode!r} is not known; expected 'r', 'r+' or 'a'")
        chosen = opening.chosen_settings(settings, trace, format)
        if mode != "r":
            return cls(
                *opening.open_writing(
                    path,
                    fs,
                    chosen,
                    may_create=mode == "a",
                    power_cut=assume_power_cut,
                )
            )
        if format is not None:
            raise UsageError("format says what new objects are written as; mode 'r' writes none")
        return cls(opening.open_reading(path, fs, chosen), None, None)

    def close(self) -> None:
        """Abort an open transaction, finish what is in flight, make everything durable, release the
        lock. Raises what failed in the background; names loaded objects that are still open.

        In a forked child, whose other calls raise ClosedError, it does nothing: the store is the
        parent's."""
        if self._session.context.is_forked:
            return
        if self._transaction is not None:
            self._transaction.abort()
        live = list(self._live.values())
        try:
            self._session.close()
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                self._release(lock)
        if live:
            names = ", ".join(f"{loaded.shard}/{loaded.part}" for loaded in live[:10])
            self._live.clear()
            raise UsageError(
                f"store {self.path} was closed while {len(live)} loaded objects were open: "
                f"{names}; close them first (their memory stays valid until then)"
            )

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except UsageError:
            if kind is None:
                raise

    # ------------------------------------------------------------------ where it stands

    @property
    def path(self) -> str:
        return self._session.root

    @property
    def uuid(self) -> str:
        """Names the lineage: copies share it."""
        return self._session.uuid

    @property
    def mode(self) -> Mode:
        return "r+" if self._session.is_writer else "r"

    @property
    def head(self) -> Commit | None:
        """The current branch's newest commit, None on an empty store.

        A writer sees its own commits in flight (and waits until they are digested).
        """
        return self._view(self._session.state.head)

    @property
    def durable_head(self) -> Commit | None:
        """The current branch's newest commit that survives a power cut, None before the first."""
        return self._view(self._session.durable_state.head)

    @property
    def snapshots(self) -> list[Snapshot]:
        """Snapshots in name order."""
        infos = self._session.state.snapshots
        return [snapshot_view(infos[name]) for name in sorted(infos)]

    @property
    def kept(self) -> list[Commit]:
        """Commits that stand in the log itself and can be named by step or seq, oldest first."""
        commits = self._session.state.commits
        return [self._shown(commits[seq]) for seq in sorted(commits)]

    def commit_of(self, ref: Ref | str = Ref.head) -> Commit:
        """The commit that a ref stands for."""
        return self._shown(self._find(ref))

    def refresh(self) -> None:
        """Look at the log again; only for a store that is open for reading."""
        self._session.check_open()
        self._session.look_again()

    @property
    def storage_format(self) -> str:
        """What new objects are written as."""
        return self._session.settings.storage_format

    def objects(self, ref: Ref | str = Ref.head) -> list[ObjectInfo]:
        """The objects of a commit, sorted by name, with their storage formats and file sizes."""
        manifest = self._find(ref).manifest
        return [
            ObjectInfo(shard=part[0], part=part[1], format=found.format, bytes=found.size)
            for part, found in sorted(manifest.items())
        ]

    def tensors(self, ref: Ref | str = Ref.head) -> list[TensorInfo]:
        """Every tensor of a commit, from the verified objects, sorted by name."""
        commit = self._find(ref)
        return tensor_rows(self._session, commit, commit)

    def state_digest(self, ref: Ref | str = Ref.head) -> str:
        """Equal for two commits exactly when they hold the same tensors (FORMAT.md 5.5)."""
        return digest_of(self.tensors(ref))

    # ------------------------------------------------------------------ reading and writing

    def load(
        self, shard: str, part: str, at: Ref | str = Ref.head, *, into: Any = None
    ) -> LoadedObject:
        """Read and verify one part of a commit. Close the result, or use it in a `with` block.

        With `into` the bytes land in the caller's memory (bytearray, memoryview, array), which must
        be writable, contiguous, hold at least `size_of` bytes, and outlive the object. Raises
        PartNotFoundError, CorruptionError, StepMovedOnError (the commit is kept no longer).
        """
        commit = self._find(at)
        reference = commit.manifest.get((shard, part))
        if reference is None:
            raise PartNotFoundError(
                f"step {commit.step} has no shard {shard!r} part {part!r}; "
                "'shardstore ls' lists what it has"
            )
        caller = None
        if into is not None:
            size = self._session.size_in_memory((shard, part), reference, commit)
            caller = Buffer.wrap(into, size)
        return self._track(*self._session.read_object((shard, part), reference, commit, caller))

    def pin(self, ref: Ref | str = Ref.head) -> PinnedView:
        """Hold a commit for reading: every read of the view comes from it, whatever a writer, in
        this process or another, does meanwhile. The ref is looked up on the log as it is now."""
        return pin(self._session, ref, self._track)

    def pinned_slots(self) -> set[int]:
        """Slots that readers, here or elsewhere, pin now; the kernel does not say who they are."""
        self._session.check_open()
        return self._session.pins.all_pinned()

    def size_of(self, shard: str, part: str, at: Ref | str = Ref.head) -> int:
        """Bytes that a part takes in memory, what `load(into=...)` needs."""
        commit = self._find(at)
        if (shard, part) not in commit.manifest:
            raise PartNotFoundError(f"step {commit.step} has no shard {shard!r} part {part!r}")
        return self._session.size_in_memory((shard, part), commit.manifest[shard, part], commit)

    def begin(self, step: int, expect: Iterable[Part] | None = None) -> Transaction:
        """Begin the one transaction that may be open. See `Transaction`.

        `expect` are the (shard, part) pairs that the new commit must say something about; by
        default those of the parent, on an empty store whatever is staged.
        """
        with self._session.lock:
            self._session.check_writable()
            self._check_no_transaction("begin")
            if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**63:
                raise UsageError(f"step is {step!r}, expected an integer from 0 to 2**63 - 1")
            newest = self._session.pipeline.newest() or self._session.state.head
            if newest is not None and step < newest.step:
                raise TransactionError(
                    f"step {step} is below the head's step {newest.step}; steps never decrease "
                    "along a line, rewind first"
                )
            self._transaction = Transaction(self._session, step, expect, self._track)
            return self._transaction

    def prefetch(self, parts: Iterable[Part], at: Ref | str = Ref.head) -> int:
        """Begin to load parts into the host's cache, in that order, and return at once.

        Stops where `Settings.host_budget_bytes` has no room; returns how many parts are there or
        on their way. A later load or checkout waits for the one it asks for.
        """
        commit = self._find(at)
        wanted = []
        for part in parts:
            if part not in commit.manifest:
                raise PartNotFoundError(
                    f"step {commit.step} has no shard {part[0]!r} part {part[1]!r}"
                )
            wanted.append((part, commit.manifest[part], commit))
        return self._session.prefetch(wanted)

    @property
    def host_bytes(self) -> int:
        """Memory that the store's buffers have: lent, cached and waiting to be used again."""
        self._session.context.check_process()
        return self._session.pool.allocated_bytes

    def clear_cache(self) -> None:
        """Forget cached objects; their memory stays for the next ones."""
        self._session.context.check_process()
        self._session.cache.clear()

    def sync(self) -> None:
        """Wait for commits in flight and make everything durable; raises what failed."""
        with self._session.lock:
            self._session.pipeline.sync()

    # ------------------------------------------------------------------ insides

    def _shown(self, commit: CommitInfo) -> Commit:
        return commit_view(commit, self._session.durable_seq)

    def _view(self, commit: CommitInfo | None) -> Commit | None:
        return None if commit is None else self._shown(commit)

    def _track(self, buffer: Buffer, header: ObjectHeader) -> LoadedObject:
        """A loaded object that `close` names while it is open."""

        def give_back(closed: LoadedObject) -> None:
            self._live.pop(id(closed), None)
            buffer.release()

        loaded = LoadedObject(buffer, header, give_back)
        self._live[id(loaded)] = loaded
        return loaded

    def _release(self, lock: Lock) -> None:
        try:
            lock.release()
        except OSError as error:
            raise self._session.storage_error("releasing the lock", error) from error

    def _begin_ref(self, what: str) -> None:
        self._session.check_writable()
        self._check_no_transaction(what)
        self._session.pipeline.drain()  # what is named or moved has to be in the log

    def _check_no_transaction(self, what: str) -> None:
        if self._transaction is not None and not self._transaction.finished:
            raise TransactionError(
                f"cannot {what} while the transaction of step {self._transaction.step} is open; "
                "commit or abort it first"
            )
        self._session.reclaim()

    def _find(self, ref: Ref | str) -> CommitInfo:
        self._session.check_open()
        return snapshot.open_commit(self._session, refs.resolve(self._session.state, ref))
