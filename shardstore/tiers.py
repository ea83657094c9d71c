"""Two tiers: an active store, on a RAM disk say, and the durable store behind it, at a start.

Contract: which of the two goes on is decided by lineage and sequence, never by the step (rule 11 of
docs/design.md, `lineage`). Where the durable one does, the active one is set aside and made anew of
it; nothing is ever deleted. Where neither follows from the other, nothing is done until somebody
says which to take. Publishing is `Store.publish`.
"""

from __future__ import annotations

import os
import posixpath
from typing import Literal

from shardstore import cloning, lineage
from shardstore.context import Settings
from shardstore.errors import NotAStoreError, TierConflictError, UsageError
from shardstore.format.policy import Retention
from shardstore.fs.calls import storage_error
from shardstore.fs.protocol import FileSystem
from shardstore.held import hold
from shardstore.locking import take_lock
from shardstore.opening import is_within, place
from shardstore.progress import Progress, silent
from shardstore.publishing import check_lineage, conflict, noted
from shardstore.recovery import sync_parent
from shardstore.store import Store
from shardstore.store_file import read_store_file
from shardstore.wal.reader import LogView, read_log

Take = Literal["active", "durable"]


def open_active(
    active: str | os.PathLike[str],
    durable: str | os.PathLike[str],
    *,
    fs: FileSystem | None = None,
    settings: Settings | None = None,
    take: Take | None = None,
    progress: Progress = silent,
) -> Store:
    """Open the active store of two tiers for writing, whichever of the two its state is in.

    Without a durable store it is opened, or created, as it stands; without an active one it is made
    of the durable one. TierConflictError where both went on by themselves; `take` then says which
    is the one. The other is renamed to `*.set-aside-N`, never deleted. `progress` is given the
    bytes that are to be copied.
    """
    if take not in (None, "active", "durable"):
        raise UsageError(f"take is {take!r}, expected 'active' or 'durable'")
    system, root = place(active, fs, follow=True)  # of a link its target is set aside
    _, other = place(durable, system, follow=True)
    chosen = settings or Settings()
    if not _is_store(system, other):
        return Store.open(root, "a", fs=fs, settings=chosen)
    if _is_store(system, root):
        if is_within(system, other, root) or is_within(system, root, other):
            raise UsageError(
                f"the active store {root} and the durable one {other} are the same directory, or "
                "one is inside of the other; two tiers are two directories"
            )
        check_lineage(root, read_store_file(system, root), other, read_store_file(system, other))
        store = Store.open(root, "r+", fs=fs, settings=chosen)  # recovers, and keeps others out
        try:
            winner, view = _decide(system, root, other, take)
        except BaseException:
            store.close()
            raise
        if winner == lineage.ACTIVE:
            return store
        store.close()
        set_aside(system, root, _last_work(system, root, view))
    _make_active(system, root, other, chosen, progress)
    return Store.open(root, "r+", fs=fs, settings=chosen)


def set_aside(fs: FileSystem, path: str, last: str) -> str:
    """Rename a store out of the way; its new path. `last` is the chain hash of the record that it
    was judged by.

    Under its writer's lock: whoever works there would go on in what takes its place. LockedError
    where somebody does, TierConflictError where somebody did meanwhile.
    """
    lock = take_lock(fs, path)
    try:
        if _last_work(fs, path, read_log(fs, path)) != last:
            raise TierConflictError(f"somebody worked on {path} while it was judged; start again")
        return _rename_aside(fs, path)
    except OSError as error:
        raise storage_error(
            fs, path, f"setting {path} aside, which you may do by hand,", error
        ) from error
    finally:
        lock.release()


def _rename_aside(fs: FileSystem, path: str) -> str:
    number = 1
    names = set(fs.list_directory(posixpath.dirname(path) or "."))
    while f"{posixpath.basename(path)}.set-aside-{number}" in names:
        number += 1
    target = f"{path}.set-aside-{number}"
    fs.rename(path, target)
    sync_parent(fs, path)
    return target


def _last_work(fs: FileSystem, root: str, view: LogView) -> str:
    """The newest record that is somebody's work; openings come and go."""
    links = lineage.side(fs, root, view).links
    return next((link.chain for link in links if link.is_work), "")


def _is_store(fs: FileSystem, root: str) -> bool:
    try:
        read_store_file(fs, root)
    except NotAStoreError:
        return False
    return True


def _decide(fs: FileSystem, root: str, other: str, take: Take | None) -> tuple[str, LogView]:
    """Which one goes on: what somebody said, else what the logs say. And the active one's log."""
    view, behind = read_log(fs, root), read_log(fs, other)
    choice = lineage.choose(lineage.side(fs, root, view), lineage.side(fs, other, behind))
    winner = take or choice.winner
    if winner is None:
        raise TierConflictError(conflict(choice, root, view.state, other, behind.state))
    if winner == lineage.ACTIVE and choice.winner != lineage.ACTIVE:
        set_aside(fs, other, _last_work(fs, other, behind))
    return winner, view


def _make_active(
    fs: FileSystem, root: str, durable: str, settings: Settings, progress: Progress
) -> None:
    """An active store with the durable one's state, and the rule that active stores have."""
    with hold(fs, durable, settings, durable=True) as held:
        state = held.state.copy()
        origin = state.origin
        if origin is not None and origin.retention is not None:
            state.retention = Retention.from_json(origin.retention)
        state.base, state.origin = noted(held.position()), None
        cloning.clone(held, root, state, progress=progress)
