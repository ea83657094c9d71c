"""The errors of the store, grouped by what a handler would do.

    ShardStoreError
    |-- UsageError                 the call is wrong: change the call
    |   |-- InvalidNameError           a shard, part, tensor or ref name is not allowed
    |   |-- InvalidTensorError         a tensor, dtype, metadata or blob cannot be stored
    |   |-- RefNotFoundError           no kept commit answers to this ref
    |   |-- AmbiguousRefError          several commits answer to this ref
    |   |-- NameTakenError             the name is in use
    |   |-- PartNotFoundError          the commit has no such shard or part
    |   |-- IncompleteCommitError      expected parts were neither staged, kept nor removed
    |   |-- TransactionError           a transaction is open, finished, or misused
    |   `-- ClosedError                the store or the object was closed
    |-- UnavailableError           the world is in the way: wait, or fix it outside
    |   |-- NotAStoreError             the path holds no store
    |   |-- StoreExistsError           the path holds a store already
    |   |-- LockedError                another writer holds the store
    |   |-- ReadOnlyError              the store was opened for reading
    |   |-- VersionError               the store was written by a newer format
    |   |-- StepMovedOnError           the commit that was read is no longer kept
    |   |-- TierConflictError          the active and the durable store both went on
    |   |-- MissingLibraryError        an optional dependency is needed and not installed
    |   `-- StorageError               the file system refused (full, I/O error, permission)
    |-- CorruptionError            bytes are not what was written: run fsck
    |-- ForeignFileError           a file to import is damaged, hostile or of another kind
    `-- PoisonedError              an append or sync failed: close and open again

Every message names the file, shard, tensor or ref, what was expected and found, and what to do.
"""

from __future__ import annotations

from typing import Any


class ShardStoreError(Exception):
    """Root of every error that the store raises on purpose."""


class UsageError(ShardStoreError):
    """The call cannot be honoured as it stands; nothing was changed."""


class InvalidNameError(UsageError):
    """A shard, part, tensor, snapshot or branch name is not allowed."""


class InvalidTensorError(UsageError):
    """A tensor, metadata value or blob cannot be stored exactly."""


class RefNotFoundError(UsageError):
    """No kept commit answers to the ref."""


class AmbiguousRefError(UsageError):
    """Several commits on other lines answer to the step."""


class NameTakenError(UsageError):
    """A snapshot or branch of that name exists."""


class PartNotFoundError(UsageError):
    """The commit holds no such shard or part."""


class IncompleteCommitError(UsageError):
    """Expected parts were neither staged, kept nor removed."""

    def __init__(self, message: str, missing: tuple[tuple[str, str], ...]) -> None:
        super().__init__(message)
        self.missing = missing
        """The (shard, part) pairs about which the transaction said nothing."""


class TransactionError(UsageError):
    """A transaction is open where none may be, or is finished already."""


class ClosedError(UsageError):
    """The store, transaction or loaded object was closed or donated."""


class UnavailableError(ShardStoreError):
    """Something outside the store is in the way."""


class NotAStoreError(UnavailableError):
    """The path holds no store."""


class StoreExistsError(UnavailableError):
    """The path holds a store, or something else, already."""


class LockedError(UnavailableError):
    """Another writer holds the store's lock."""


class ReadOnlyError(UnavailableError):
    """The store was opened for reading."""


class VersionError(UnavailableError):
    """The store's format has a version that this library does not read."""


class StepMovedOnError(UnavailableError):
    """The writer reused what this view was reading; open or refresh the view."""


class TierConflictError(UnavailableError):
    """An active and a durable store do not follow from each other: somebody has to choose."""


class MissingLibraryError(UnavailableError):
    """An optional dependency is needed for this and not installed."""


class StorageError(UnavailableError):
    """The file system refused an operation."""

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno
        """The operating system's error number, where there was one."""


class CorruptionError(ShardStoreError):
    """Bytes on disk are not what was written. Run `shardstore fsck`."""

    def __init__(
        self,
        what: str,
        *,
        file: str,
        offset: int | None = None,
        expected: Any = None,
        found: Any = None,
    ) -> None:
        place = file if offset is None else f"{file} at offset {offset}"
        detail = "" if expected is None else f" (expected {expected}, found {found})"
        super().__init__(f"{place}: {what}{detail}; run 'shardstore fsck' on the store")
        self.what = what
        self.file = file
        self.offset = offset
        self.expected = expected
        self.found = found


class ForeignFileError(ShardStoreError):
    """A file to import is not what it has to be. Nothing in it was executed or taken."""

    def __init__(
        self, what: str, *, file: str, expected: Any = None, found: Any = None, advice: str = ""
    ) -> None:
        detail = "" if expected is None else f" (expected {expected}, found {found})"
        super().__init__(f"{file}: {what}{detail}{'; ' if advice else ''}{advice}")
        self.what = what
        self.file = file
        self.expected = expected
        self.found = found


class PoisonedError(ShardStoreError):
    """An append or sync failed, so what is durable is unknown until the next opening."""
