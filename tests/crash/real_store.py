"""A small store on a real file system whose every byte says which step wrote it, and its judge.

Contract: `commit` writes a step, `look` reads all that the head and the snapshots hold and raises
`Wrong` at the first byte of another step, `judge` says whether a store that was interrupted is one
of the states that were allowed, and whether it goes on: fsck is clean, a reader and the recovery
agree, the next commit works. Steps are never used twice, so that a state names its writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardstore import Settings, Store
from shardstore.errors import ShardStoreError
from shardstore.fs.posix import PosixFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import fsck

ELEMENTS = {("a", "params"): 300, ("a", "optim"): 70_000, ("b", "params"): 2_000}
SETTINGS = Settings(
    prewrite_bytes=32 * 1024, commits_per_segment=6, io_threads=0, host_budget_bytes=0
)
"""Segments are short, and every call is made by the thread that asks for it."""


class Wrong(Exception):
    """The store is not what it has to be."""


class OtherBoot(PosixFileSystem):
    """The real file system, on a machine that was started under this boot id."""

    def __init__(self, boot_id: str) -> None:
        super().__init__()
        self._id = boot_id

    def boot_id(self) -> str:
        return self._id


@dataclass(frozen=True, slots=True)
class Seen:
    """What a user can name: the head's step, 0 before the first commit, and the snapshots."""

    step: int = 0
    snapshots: frozenset[str] = frozenset()

    def committed(self, step: int) -> Seen:
        return replace(self, step=step)

    def named(self, name: str) -> Seen:
        return replace(self, snapshots=self.snapshots | {name})

    def without(self, name: str) -> Seen:
        return replace(self, snapshots=self.snapshots - {name})

    def __str__(self) -> str:
        return f"step {self.step}, snapshots {sorted(self.snapshots)}"


def commit(store: Store, step: int, *, text: str = "") -> None:
    """Every part, each byte of it by this step."""
    with store.begin(step) as txn:
        for number, (key, count) in enumerate(ELEMENTS.items()):
            txn.stage(*key, {"w": np.full(count, step * 10 + number, "i8")})
        txn.commit({"text": text} if text else {})


def look(store: Store) -> Seen:
    """All that can be named, read and compared."""
    names = [snapshot.name for snapshot in store.snapshots]
    for name in names:
        _check(store, name, store.commit_of(name).step)
    if store.head is None:
        return Seen(0, frozenset(names))
    _check(store, "head", store.head.step)
    return Seen(store.head.step, frozenset(names))


def _check(store: Store, ref: str, step: int) -> None:
    parts = store.commit_of(ref).parts
    if set(parts) != set(ELEMENTS):
        raise Wrong(f"{ref} has the parts {sorted(parts)}")
    for number, (key, count) in enumerate(ELEMENTS.items()):
        with store.load(*key, ref) as loaded:
            found = loaded.numpy()["w"]
            if len(found) != count or not (found == step * 10 + number).all():
                raise Wrong(f"{'/'.join(key)} of {ref} is not that of step {step}")


def sound(fs: FileSystem, root: str) -> None:
    """fsck reads every byte and finds nothing."""
    damage = [str(finding) for finding in fsck(fs, root, deep=True).findings if finding.is_damage]
    if damage:
        raise Wrong(f"fsck of {root}: {'; '.join(damage)}")


def judge(root: str, allowed: Sequence[Seen], next_step: int, fs: FileSystem | None = None) -> Seen:
    """Raises Wrong, or gives the state of the store after one more commit."""
    system = fs or PosixFileSystem()
    try:
        sound(system, root)
        with Store.open(root, "r", fs=system, settings=SETTINGS) as store:
            seen = look(store)
        if seen not in allowed:
            raise Wrong(f"found {seen}; allowed: {' or '.join(map(str, allowed))}")
        with Store.open(root, "r+", fs=system, settings=SETTINGS) as store:
            opened = look(store)
            if opened != seen:
                raise Wrong(f"the reader saw {seen}, the recovery made it {opened}")
            commit(store, next_step)
        sound(system, root)
        with Store.open(root, "r", fs=system, settings=SETTINGS) as store:
            after = look(store)
    except (ShardStoreError, OSError) as error:
        raise Wrong(f"{type(error).__name__}: {error}") from error
    if after != seen.committed(next_step):
        raise Wrong(f"after the next commit: {after}")
    return after
