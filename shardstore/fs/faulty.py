"""A file system that fails where it is told to, around any other.

Contract: `protocol`, and without rules exactly what the wrapped one does. Operations are named as
the methods are, except opens, which carry their mode: `open_read`, `open_write`, `open_create`,
`open_replace`. Rules name operations and paths by shell patterns (`*` matches "/" too; a rename
matches by either of its names) and hit from the n-th match after the rule was made. Every operation
is counted and can be watched from before and after. Facts about the host pass straight through.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NoReturn, TypeVar

from shardstore.fs.memory import MemoryFile
from shardstore.fs.memory_image import Operation
from shardstore.fs.protocol import Bytes, File, FileStat, FileSystem, Lock, OpenMode, PinFile

_ALIGNMENT = 4096
_SKIPPABLE = (
    "pwrite",
    "truncate",
    "datasync",
    "rename",
    "unlink",
    "sync_directory",
    "make_directory",
)
_T = TypeVar("_T")
Hook = Callable[[Operation], None]


@dataclass(slots=True)
class Rule:
    """One fault. It hits matches `nth` to `nth + times - 1`, all from `nth` when times is None."""

    op: str
    path: str
    nth: int
    times: int | None
    effect: Literal["before", "after", "shorten", "drop", "skip"]
    error: int = 0
    kept_bytes: int = 0
    matched: int = 0
    hits: int = 0

    def takes(self, operation: Operation) -> bool:
        """Counts a match; whether this is one to hit."""
        names = [operation.path, *(str(name) for name in operation.detail)]
        if operation.op != "rename":
            del names[1:]
        if not fnmatchcase(operation.op, self.op):
            return False
        if not any(fnmatchcase(name, self.path) for name in names):
            return False
        self.matched += 1
        past = self.matched - self.nth
        hit = past >= 0 and (self.times is None or past < self.times)
        self.hits += hit
        return hit


class FaultyFile:
    """See `protocol.File`."""

    def __init__(self, owner: FaultyFileSystem, inner: File) -> None:
        self.path = inner.path
        self.direct = inner.direct
        self._owner = owner
        self._inner = inner

    def pread(self, offset: int, buffer: bytearray | memoryview) -> int:
        operation = Operation("pread", self.path, (offset, memoryview(buffer).nbytes))
        count = self._owner.perform(operation, lambda: self._inner.pread(offset, buffer))
        self.direct = self._inner.direct
        return count

    def pwrite(self, offset: int, data: Bytes) -> None:
        def shorten(kept_bytes: int) -> None:
            count = kept_bytes // _ALIGNMENT * _ALIGNMENT if self.direct else kept_bytes
            self._inner.pwrite(offset, memoryview(data).cast("B")[:count])

        operation = Operation("pwrite", self.path, (offset, memoryview(data).nbytes))
        self._owner.change(operation, lambda: self._inner.pwrite(offset, data), shorten)
        self.direct = self._inner.direct

    def size(self) -> int:
        return self._owner.perform(Operation("size", self.path), self._inner.size)

    def truncate(self, size: int) -> None:
        operation = Operation("truncate", self.path, (size,))
        self._owner.change(operation, lambda: self._inner.truncate(size))

    def datasync(self) -> None:
        def drop(_: int) -> None:
            if isinstance(self._inner, MemoryFile):
                self._inner.drop_unsynced()

        self._owner.change(Operation("datasync", self.path), self._inner.datasync, drop)

    def close(self) -> None:
        self._owner.perform(Operation("close", self.path), self._inner.close)


class FaultyLock:
    """See `protocol.Lock`."""

    def __init__(self, owner: FaultyFileSystem, inner: Lock, path: str) -> None:
        self._owner = owner
        self._inner = inner
        self._path = path

    def release(self) -> None:
        self._owner.perform(Operation("release", self._path), self._inner.release)


class FaultyPinFile:
    """See `protocol.PinFile`."""

    def __init__(self, owner: FaultyFileSystem, inner: PinFile, path: str) -> None:
        self._owner = owner
        self._inner = inner
        self._path = path

    def pin(self, slots: Iterable[int]) -> bool:
        numbers = tuple(slots)
        return self._owner.perform(self._named("pin", *numbers), lambda: self._inner.pin(numbers))

    def unpin(self, slots: Iterable[int]) -> None:
        numbers = tuple(slots)
        self._owner.perform(self._named("unpin", *numbers), lambda: self._inner.unpin(numbers))

    def pinned(self, slots: Iterable[int]) -> set[int]:
        numbers = tuple(slots)
        operation = self._named("pinned", *numbers)
        return self._owner.perform(operation, lambda: self._inner.pinned(numbers))

    def close(self) -> None:
        self._owner.perform(self._named("close_pins"), self._inner.close)

    def _named(self, op: str, *slots: int) -> Operation:
        return Operation(op, self._path, slots)


class FaultyFileSystem:
    """See the module's docstring. Rules may be added and cleared at any time, from any thread."""

    def __init__(
        self, inner: FileSystem, *, before: Hook | None = None, after: Hook | None = None
    ) -> None:
        self.inner = inner
        self.parallel = inner.parallel
        self.before = before
        self.after = after
        """Not called for an operation that raised."""
        self.counts: Counter[str] = Counter()
        """Operations begun, by name."""
        self.rules: list[Rule] = []
        self._mutex = threading.Lock()

    # Rules

    def fail(
        self,
        op: str,
        path: str = "*",
        *,
        nth: int = 1,
        times: int | None = 1,
        error: int = errno.EIO,
        after: bool = False,
    ) -> Rule:
        """Raise OSError(error) instead of the operation, or `after` it took effect."""
        return self._add(Rule(op, path, nth, times, "after" if after else "before", error))

    def shorten(
        self,
        path: str = "*",
        *,
        kept_bytes: int,
        nth: int = 1,
        times: int | None = 1,
        error: int = errno.ENOSPC,
    ) -> Rule:
        """Write the first bytes only (whole blocks of a direct file), then raise."""
        return self._add(Rule("pwrite", path, nth, times, "shorten", error, kept_bytes))

    def fail_datasync(
        self,
        path: str = "*",
        *,
        nth: int = 1,
        times: int | None = 1,
        error: int = errno.EIO,
    ) -> Rule:
        """Raise, and on the memory file system lose what was unsynced as a kernel does: visible
        and clean in its cache, not on the disk, in no later sync. Elsewhere nothing is synced."""
        return self._add(Rule("datasync", path, nth, times, "drop", error))

    def skip(self, op: str, path: str = "*", *, nth: int = 1, times: int | None = None) -> Rule:
        """Leave the operation out and report success: what a forgotten call would do."""
        if op not in _SKIPPABLE:
            raise ValueError(f"cannot skip {op!r}: expected one of {', '.join(_SKIPPABLE)}")
        return self._add(Rule(op, path, nth, times, "skip"))

    def clear(self) -> None:
        """Forget all rules; counts stay."""
        with self._mutex:
            self.rules = []

    def _add(self, rule: Rule) -> Rule:
        if rule.nth < 1:
            raise ValueError(f"nth counts from 1, found {rule.nth}")
        with self._mutex:
            self.rules.append(rule)
        return rule

    # How operations are performed

    def _begin(self, operation: Operation) -> Rule | None:
        """Counts, tells the hook, and finds the rule that hits: the oldest of several."""
        with self._mutex:
            self.counts[operation.op] += 1
            hit = [rule for rule in self.rules if rule.takes(operation)]
        if self.before is not None:
            self.before(operation)
        return hit[0] if hit else None

    def _end(self, operation: Operation) -> None:
        if self.after is not None:
            self.after(operation)

    def perform(
        self,
        operation: Operation,
        call: Callable[[], _T],
        give_back: Callable[[_T], None] | None = None,
    ) -> _T:
        """An operation with a result: it can fail before or after taking effect. What nobody
        will receive is given back."""
        rule = self._begin(operation)
        if rule is not None and rule.effect != "after":
            _raise(rule, operation)
        result = call()
        if rule is not None:
            if give_back is not None:
                give_back(result)
            _raise(rule, operation)
        self._end(operation)
        return result

    def change(
        self,
        operation: Operation,
        call: Callable[[], None],
        partly: Callable[[int], None] | None = None,
    ) -> None:
        """An operation without a result: it can also be skipped or done in part."""
        rule = self._begin(operation)
        effect = rule.effect if rule is not None else ""
        if effect in ("", "after"):
            call()
        elif effect in ("shorten", "drop") and rule is not None and partly is not None:
            partly(rule.kept_bytes)
        if rule is not None and effect != "skip":
            _raise(rule, operation)
        self._end(operation)

    # The protocol

    def open(self, path: str, mode: OpenMode, *, direct: bool = False) -> FaultyFile:
        operation = Operation(f"open_{mode}", path)
        file = self.perform(
            operation, lambda: self.inner.open(path, mode, direct=direct), lambda file: file.close()
        )
        return FaultyFile(self, file)

    def stat(self, path: str) -> FileStat:
        return self.perform(Operation("stat", path), lambda: self.inner.stat(path))

    def list_directory(self, path: str) -> list[str]:
        operation = Operation("list_directory", path)
        return self.perform(operation, lambda: self.inner.list_directory(path))

    def make_directory(self, path: str) -> None:
        operation = Operation("make_directory", path)
        self.change(operation, lambda: self.inner.make_directory(path))

    def rename(self, source: str, target: str) -> None:
        operation = Operation("rename", source, (target,))
        self.change(operation, lambda: self.inner.rename(source, target))

    def unlink(self, path: str) -> None:
        self.change(Operation("unlink", path), lambda: self.inner.unlink(path))

    def sync_directory(self, path: str) -> None:
        operation = Operation("sync_directory", path)
        self.change(operation, lambda: self.inner.sync_directory(path))

    def lock(self, path: str, owner: str) -> FaultyLock:
        lock = self.perform(
            Operation("lock", path),
            lambda: self.inner.lock(path, owner),
            lambda lock: lock.release(),
        )
        return FaultyLock(self, lock, path)

    def open_pins(self, path: str) -> FaultyPinFile:
        pins = self.perform(
            Operation("open_pins", path),
            lambda: self.inner.open_pins(path),
            lambda pins: pins.close(),
        )
        return FaultyPinFile(self, pins, path)

    def lock_holder(self, path: str) -> str | None:
        operation = Operation("lock_holder", path)
        return self.perform(operation, lambda: self.inner.lock_holder(path))

    def in_memory(self, path: str) -> bool:
        return self.perform(Operation("in_memory", path), lambda: self.inner.in_memory(path))

    def doubts(self, path: str) -> str | None:
        return self.inner.doubts(path)

    def host_path(self, path: str) -> str | None:
        return self.inner.host_path(path)

    def free_bytes(self, path: str) -> int:
        return self.perform(Operation("free_bytes", path), lambda: self.inner.free_bytes(path))

    def boot_id(self) -> str:
        return self.inner.boot_id()

    def now(self) -> float:
        return self.inner.now()

    def random_bytes(self, count: int) -> bytes:
        return self.inner.random_bytes(count)

    def process(self) -> tuple[int, str]:
        return self.inner.process()


def _raise(rule: Rule, operation: Operation) -> NoReturn:
    target = str(operation.detail[0]) if operation.op == "rename" else None
    raise OSError(rule.error, os.strerror(rule.error), operation.path, None, target)
