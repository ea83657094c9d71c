"""Opening a store from outside: the path, the lock, creation, and errors in the store's words.

`recovery` has what happens to the store's bytes; `store` wraps what is returned here.
"""

from __future__ import annotations

import os
import posixpath
import warnings
from contextlib import suppress
from dataclasses import replace

from shardstore import recovery
from shardstore.context import Settings, Trace
from shardstore.errors import (
    CorruptionError,
    NotAStoreError,
    ShardStoreError,
    StorageError,
    UsageError,
)
from shardstore.format.names import LOCK_FILE, STORE_FILE, WAL_DIRECTORY
from shardstore.fs.calls import space_text
from shardstore.fs.protocol import FileSystem, Lock
from shardstore.fs.system import local_file_system
from shardstore.locking import take_lock
from shardstore.session import Session

_warned: set[str] = set()
"""Roots that this process was warned of."""


def open_reading(
    path: str | os.PathLike[str], fs: FileSystem | None, settings: Settings
) -> Session:
    """A session that reads; changes no byte."""
    system, root = place(path, fs)
    try:
        return recovery.open_for_read(system, root, settings)
    except OSError as error:
        raise _opening_failed(system, root, error) from error


def open_writing(
    path: str | os.PathLike[str],
    fs: FileSystem | None,
    settings: Settings,
    *,
    may_create: bool,
    must_create: bool = False,
    power_cut: bool = False,
) -> tuple[Session, Lock, recovery.Plan]:
    """Take the lock, create where allowed, recover; a session that writes."""
    system, root = place(path, fs)
    try:
        if may_create:
            check_outside(root, system, itself=False)
            _make_root(system, root)
            recovery.check_creatable(system, root)
        elif STORE_FILE not in system.list_directory(root):
            raise NotAStoreError(
                f"{root} is not a store: it has no file {STORE_FILE}; create one with "
                f"'shardstore init {root}'"
            )
        _warn_of(system, root)
        lock = take_lock(system, root)
    except OSError as error:
        raise _opening_failed(system, root, error) from error
    try:
        if may_create and (must_create or STORE_FILE not in system.list_directory(root)):
            recovery.create(system, root, settings)
        session, plan = recovery.open_for_write(system, root, settings, assume_power_cut=power_cut)
    except OSError as error:
        lock.release()
        raise _opening_failed(system, root, error) from error
    except BaseException:
        lock.release()
        raise
    return session, lock, plan


def is_store(path: str) -> bool:
    """Whether the path holds a store already."""
    system, root = place(path, None)
    try:
        return STORE_FILE in system.list_directory(root)
    except (FileNotFoundError, NotADirectoryError):
        return False


def unmake_quietly(path: str) -> None:
    """Take a store away that got no commit; one that somebody writes, or that cannot be read or
    removed, stays."""
    system, root = place(path, None)
    with suppress(OSError, ShardStoreError):
        lock = take_lock(system, root)
        try:
            recovery.unmake(system, root)
        finally:
            lock.release()


def _warn_of(fs: FileSystem, root: str) -> None:
    """Once a process and store: what is known to speak against its file system."""
    doubts = fs.doubts(root)
    if doubts is None or root in _warned:
        return
    _warned.add(root)
    message = (
        f"store {root} is on a file system that its promises were not tested on: {doubts}; "
        "a local one (ext4, xfs, btrfs) keeps them"
    )
    warnings.warn(message, UserWarning, stacklevel=4)


def _make_root(fs: FileSystem, root: str) -> None:
    try:
        fs.make_directory(root)
    except FileExistsError:
        return


def _opening_failed(fs: FileSystem, root: str, error: OSError) -> Exception:
    missing = error.filename if isinstance(error, FileNotFoundError) else None
    if missing is not None and not str(missing).startswith(f"{root}/"):
        return NotAStoreError(f"{root} is not a store: {missing} does not exist")
    if missing is not None and str(missing) != f"{root}/{LOCK_FILE}":
        return CorruptionError("a file of the store is missing", file=str(missing))
    return StorageError(
        f"opening store {root} failed on {error.filename or root}: {error.strerror}"
        f"{space_text(fs, root, error)}; the store is as it was found",
        errno=error.errno,
    )


def place(
    path: str | os.PathLike[str], fs: FileSystem | None, *, follow: bool = False
) -> tuple[FileSystem, str]:
    """The file system and the root; on the real one absolute, since the process may change
    directory, and with `follow` without links."""
    text = os.fsdecode(path)
    if not text:
        raise UsageError("the path of a store is empty; name a directory ('.' for this one)")
    system = local_file_system() if fs is None else fs
    if system.host_path(text) is not None:
        return system, os.path.realpath(text) if follow else os.path.abspath(text)
    return system, posixpath.normpath(text)


def is_within(fs: FileSystem, path: str, root: str) -> bool:
    """Whether `path`, which need not be there yet, is the directory `root` or below it, by
    whatever names and links."""
    home = fs.stat(root)
    while True:
        try:
            found = fs.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        else:
            if (found.device, found.inode) == (home.device, home.inode):
                return True
        above = posixpath.dirname(path)
        if above in (path, ""):
            return False
        path = above


def check_outside(
    path: str | os.PathLike[str], fs: FileSystem | None = None, *, itself: bool
) -> None:
    """UsageError where `path`, which need not be there yet, is to be written to and lies inside of
    a store, by whatever links; with `itself` also where it is one."""
    system, real = place(path, fs, follow=True)
    at = real if itself else posixpath.dirname(real)
    while at:
        if _holds_store(system, at):
            what = "is" if at == real else "is inside of"
            raise UsageError(
                f"{os.fsdecode(path)} {what} the store {at}, where only objects and the log are "
                "written; choose another directory"
            )
        above = posixpath.dirname(at)
        at = "" if above == at else above


def _holds_store(fs: FileSystem, path: str) -> bool:
    try:
        if fs.stat(f"{path}/{STORE_FILE}").is_directory:
            return False
        return fs.stat(f"{path}/{WAL_DIRECTORY}").is_directory
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False


def chosen_settings(
    settings: Settings | None, trace: Trace | None, storage_format: str | None
) -> Settings:
    """The settings with what the call says besides."""
    chosen = settings or Settings()
    if trace is not None:
        chosen = replace(chosen, trace=trace)
    if storage_format is not None:
        chosen = replace(chosen, storage_format=storage_format)
    return chosen
