"""The store: open it, begin transactions, load objects, name and move commits.

A `Store` owns the writer's lock and its session. Methods may be called from any thread; those that
change the store run one at a time. Loaded objects own their buffers until they are closed.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

from shardstore import recovery, refs, snapshot
from shardstore.buffers import Buffer
from shardstore.errors import (
    CorruptionError,
    NotAStoreError,
    PartNotFoundError,
    StorageError,
    TransactionError,
    UsageError,
)
from shardstore.format.digests import StateRow, state_digest
from shardstore.format.layout import ObjectHeader
from shardstore.format.manifest import CommitInfo, Part
from shardstore.format.names import LOCK_FILE, STORE_FILE
from shardstore.fs.posix import PosixFileSystem
from shardstore.fs.protocol import FileSystem, Lock
from shardstore.loaded import LoadedObject
from shardstore.locking import take_lock
from shardstore.refs import Ref
from shardstore.session import Session, Settings, Trace
from shardstore.transaction import Transaction
from shardstore.views import (
    Commit,
    Snapshot,
    TensorInfo,
    UndoableChange,
    commit_view,
    snapshot_view,
    tensor_view,
    undoable_view,
)

Mode = Literal["r", "r+", "a"]


class Store:
    """A transactional store of tensor shards. Use `Store.open` or `Store.create`."""

    def __init__(self, session: Session, lock: Lock | None, plan: recovery.Plan | None) -> None:
        self._session = session
        self._lock = lock
        self._transaction: Transaction | None = None
        self._live: dict[int, LoadedObject] = {}
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
    ) -> Store:
        """Create an empty store and open it for writing; StoreExistsError where one is."""
        return cls._open_write(path, fs, settings, trace, may_create=True, must_create=True)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: Mode = "r",
        *,
        fs: FileSystem | None = None,
        settings: Settings | None = None,
        trace: Trace | None = None,
        assume_power_cut: bool = False,
    ) -> Store:
        """Open a store: "r" reads (and changes no byte), "r+" reads and writes, "a" creates too.

        Opening for writing takes the lock (LockedError names its holder) and recovers what a crash
        left. `assume_power_cut` gives up what is not proven durable, for a file system that was
        lost and mounted again without a reboot. `trace` is called before each step of the protocol.
        """
        if mode not in ("r", "r+", "a"):
            raise UsageError(f"mode {mode!r} is not known; expected 'r', 'r+' or 'a'")
        if mode != "r":
            return cls._open_write(
                path, fs, settings, trace, may_create=mode == "a", power_cut=assume_power_cut
            )
        system, root = _place(path, fs)
        try:
            session = recovery.open_for_read(system, root, _settings(settings, trace))
        except OSError as error:
            raise _opening_failed(root, error) from error
        return cls(session, None, None)

    @classmethod
    def _open_write(
        cls,
        path: str | os.PathLike[str],
        fs: FileSystem | None,
        settings: Settings | None,
        trace: Trace | None,
        *,
        may_create: bool,
        must_create: bool = False,
        power_cut: bool = False,
    ) -> Store:
        system, root = _place(path, fs)
        chosen = _settings(settings, trace)
        try:
            if may_create:
                _make_root(system, root)
                recovery.check_creatable(system, root)
            elif STORE_FILE not in system.list_directory(root):
                raise NotAStoreError(
                    f"{root} is not a store: it has no file {STORE_FILE}; create one with "
                    f"'shardstore init {root}'"
                )
            lock = take_lock(system, root)
        except OSError as error:
            raise _opening_failed(root, error) from error
        try:
            if may_create and (must_create or STORE_FILE not in system.list_directory(root)):
                recovery.create(system, root, chosen)
            session, plan = recovery.open_for_write(
                system, root, chosen, assume_power_cut=power_cut
            )
        except OSError as error:
            lock.release()
            raise _opening_failed(root, error) from error
        except BaseException:
            lock.release()
            raise
        return cls(session, lock, plan)

    def close(self) -> None:
        """Abort an open transaction, release the lock. Names loaded objects that are still open."""
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
        return "r" if self._session.writer is None else "r+"

    @property
    def branch(self) -> str:
        """The current branch."""
        return self._session.state.current

    @property
    def head(self) -> Commit | None:
        """The current branch's newest commit, None on an empty store."""
        head = self._session.state.head
        return commit_view(head) if head else None

    @property
    def snapshots(self) -> list[Snapshot]:
        """Snapshots in name order."""
        infos = self._session.state.snapshots
        return [snapshot_view(infos[name]) for name in sorted(infos)]

    @property
    def kept(self) -> list[Commit]:
        """Commits that stand in the log itself and can be named by step or seq, oldest first."""
        commits = self._session.state.commits
        return [commit_view(commits[seq]) for seq in sorted(commits)]

    @property
    def undoable(self) -> list[UndoableChange]:
        """What `undo` would revert, call by call."""
        state = self._session.state
        return [undoable_view(entry, state) for entry in reversed(state.undo) if not entry.done]

    def commit_of(self, ref: Ref | str = Ref.head) -> Commit:
        """The commit that a ref stands for."""
        return commit_view(self._find(ref))

    def refresh(self) -> None:
        """Look at the log again; only for a store that is open for reading."""
        self._session.check_open()
        self._session.state = self._session.newest_state()

    def tensors(self, ref: Ref | str = Ref.head) -> list[TensorInfo]:
        """Every tensor of a commit, from the verified objects, sorted by name."""
        commit = self._find(ref)
        rows: list[TensorInfo] = []
        for (shard, part), reference in sorted(commit.manifest.items()):
            header = self._session.read_header((shard, part), reference, commit)
            for entry, digest in zip(header.layout.tensors, header.digests, strict=True):
                rows.append(tensor_view(shard, part, entry, digest))
        return sorted(rows, key=lambda row: (row.shard, row.part, row.tensor))

    def state_digest(self, ref: Ref | str = Ref.head) -> str:
        """Equal for two commits exactly when they hold the same tensors (FORMAT.md 5.1)."""
        rows: list[StateRow] = [
            (row.shard, row.part, row.tensor, row.dtype, row.shape, row.digest)
            for row in self.tensors(ref)
        ]
        return state_digest(rows)

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
        caller = Buffer.wrap(into, reference.size) if into is not None else None
        return self._track(*self._session.read_object((shard, part), reference, commit, caller))

    def size_of(self, shard: str, part: str, at: Ref | str = Ref.head) -> int:
        """Bytes of the object that holds a part, what `load(into=...)` needs."""
        commit = self._find(at)
        if (shard, part) not in commit.manifest:
            raise PartNotFoundError(f"step {commit.step} has no shard {shard!r} part {part!r}")
        return commit.manifest[shard, part].size

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
            head = self._session.state.head
            if head is not None and step < head.step:
                raise TransactionError(
                    f"step {step} is below the head's step {head.step}; steps never decrease "
                    "along a line, rewind first"
                )
            self._transaction = Transaction(self._session, step, expect, self._track)
            return self._transaction

    # ------------------------------------------------------------------ refs

    def snapshot(self, name: str | None = None, at: Ref | str = Ref.head) -> Snapshot:
        """Name a commit and keep it for ever, at no cost in data; durable when this returns.

        Without a name it is called step_00000012 after its step. NameTakenError where it exists.
        """
        with self._session.lock:
            self._begin_ref("snapshot")
            target = refs.resolve(self._session.state, at)
            return snapshot_view(snapshot.snapshot(self._session, name, target))

    def delete(self, name: str) -> None:
        """Delete a snapshot; `undo` brings it back while it is among the last three changes."""
        with self._session.lock:
            self._begin_ref("delete")
            snapshot.delete(self._session, name)

    def rewind(self, ref: Ref | str) -> Commit:
        """Move the head back (or sideways) to a kept commit; nothing is copied, history stays."""
        with self._session.lock:
            self._begin_ref("rewind")
            target = refs.resolve(self._session.state, ref)
            return commit_view(snapshot.rewind(self._session, target))

    def undo(self) -> UndoableChange:
        """Revert the newest rewind or deletion not yet undone (of the last three)."""
        with self._session.lock:
            self._begin_ref("undo")
            before = self._session.state
            return undoable_view(snapshot.undo(self._session), before)

    # ------------------------------------------------------------------ insides

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

    def _check_no_transaction(self, what: str) -> None:
        if self._transaction is not None and not self._transaction.finished:
            raise TransactionError(
                f"cannot {what} while the transaction of step {self._transaction.step} is open; "
                "commit or abort it first"
            )

    def _find(self, ref: Ref | str) -> CommitInfo:
        self._session.check_open()
        return snapshot.open_commit(self._session, refs.resolve(self._session.state, ref))


def _make_root(fs: FileSystem, root: str) -> None:
    try:
        fs.make_directory(root)
    except FileExistsError:
        return


def _opening_failed(root: str, error: OSError) -> Exception:
    missing = error.filename if isinstance(error, FileNotFoundError) else None
    if missing is not None and not str(missing).startswith(f"{root}/"):
        return NotAStoreError(f"{root} is not a store: {missing} does not exist")
    if missing is not None and str(missing) != f"{root}/{LOCK_FILE}":
        return CorruptionError("a file of the store is missing", file=str(missing))
    return StorageError(
        f"opening store {root} failed on {error.filename or root}: {error.strerror}; "
        "the store is as it was found",
        errno=error.errno,
    )


def _place(path: str | os.PathLike[str], fs: FileSystem | None) -> tuple[FileSystem, str]:
    """The file system and the root; on the real one absolute: the process may change directory."""
    text = os.fsdecode(path)
    if fs is None:
        return PosixFileSystem(), os.path.abspath(text)
    return fs, posixpath.normpath(text)


def _settings(settings: Settings | None, trace: Trace | None) -> Settings:
    chosen = settings or Settings()
    if trace is None:
        return chosen
    return replace(chosen, trace=trace)
