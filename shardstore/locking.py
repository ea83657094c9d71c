"""The writer's lock: one writer at a time, and who it is."""

from __future__ import annotations

import errno
import json
import time
from typing import Any

from shardstore.errors import LockedError, StorageError
from shardstore.format.names import LOCK_FILE
from shardstore.fs.protocol import FileSystem, Lock, LockHeld

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})


def holder_text(text: str) -> str:
    """What the lock's holder wrote about itself, in words."""
    try:
        holder = json.loads(text)
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def holder_of(fs: FileSystem, root: str) -> dict[str, Any] | None:
    """pid, host and since of the process that holds the store's lock, as far as it said; None
    where nobody does. Takes no lock."""
    text = fs.lock_holder(f"{root}/{LOCK_FILE}")
    if text is None:
        return None
    try:
        said = json.loads(text)
    except ValueError:  # it is just writing it
        said = None
    known = said if isinstance(said, dict) else {}
    return {name: known.get(name) for name in ("pid", "host", "since")}


def take_lock(fs: FileSystem, root: str) -> Lock:
    """Take the store's lock without waiting, or LockedError naming its holder; StorageError where
    the file system has no locks to give."""
    pid, host = fs.process()
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(fs.now()))
    owner = json.dumps({"pid": pid, "host": host, "since": since})
    try:
        return fs.lock(f"{root}/{LOCK_FILE}", owner)
    except LockHeld as error:
        raise LockedError(
            f"store {root} is being written by {holder_text(error.holder)}; "
            "one writer at a time, readers are welcome"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise StorageError(
            f"store {root}: its file system gives no lock on {LOCK_FILE} ({error.strerror}), and "
            "without one nothing keeps two writers apart; put the store on a local file system "
            "(reading it works where it is)",
            errno=error.errno,
        ) from error
