"""Salvage: the newest whole step of a store whose head's objects or log are damaged.

Contract: only when asked (`shardstore recover --salvage`). It reads what the log still says
(`evidence`), verifies every byte that this needs (`verify`), and chooses (`choice`); where the log
is of no use it looks at the objects alone (`objects_alone`). Until its opening record is durable
nothing was changed, and then the state is the new one; files are set aside after that
(`quarantine`), and never deleted. Doing it again, after a crash anywhere, ends in the same state.
Damage of sealed segments touches the history only and is left as it is, for `fsck` to name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from shardstore.errors import CorruptionError, NotAStoreError, StorageError
from shardstore.format.names import (
    OBJECTS_DIRECTORY,
    PINS_FILE,
    STORE_FILE,
    WAL_DIRECTORY,
    packed_file,
    packed_index,
    segment_file,
    segment_index,
)
from shardstore.fs.calls import is_loss, sync_file
from shardstore.fs.protocol import FileSystem
from shardstore.locking import take_lock
from shardstore.pins import make_pins
from shardstore.quarantine import (
    COPY,
    SALVAGE,
    Aside,
    check_place,
    finish_pending,
    highest_number,
    pending,
    set_aside,
)
from shardstore.recovery import (
    STORE_TEMPORARY,
    identity,
    name_store,
    slot_files,
    sync_parent,
    write_synced,
)
from shardstore.salvage.choice import Decision, decide
from shardstore.salvage.evidence import read_evidence
from shardstore.salvage.objects_alone import highest_epoch
from shardstore.salvage.renewal import write_renewed
from shardstore.salvage.verify import Progress, quiet
from shardstore.store_file import examine_store_file, store_text
from shardstore.wal.reader import list_segments, read_segment
from shardstore.wal.writer import make_segment

__all__ = ["Decision", "look", "salvage"]

MISSING = "missing"
UNREADABLE = "unreadable"


def look(fs: FileSystem, root: str, progress: Progress = quiet) -> Decision:
    """What a salvage would do. Reads only; CorruptionError where nothing whole is left."""
    store, uuid = _store_file(fs, root)
    evidence = read_evidence(fs, root, uuid)
    if evidence.state is None and uuid is not None:
        other = read_evidence(fs, root, None)
        if other.state is not None:
            evidence, store = other, "another store's"
    evidence.store = store
    evidence.top = max(evidence.top, highest_epoch(fs, root), highest_number(fs, root))
    decision = decide(fs, root, evidence, progress)
    if evidence.uuid is None:
        raise CorruptionError(
            "nothing says which store this was: STORE, log and objects are damaged",
            file=f"{root}/{STORE_FILE}",
        )
    if store not in ("", MISSING):
        why = f"{store}; written anew from what the log or the objects say"
        decision.aside.append(Aside(COPY, STORE_FILE, why))
    decision.left = _left(fs, root)
    if decision.aside or decision.left:
        check_place(fs, root)
    return decision


def salvage(
    fs: FileSystem,
    root: str,
    *,
    agree: Callable[[Decision], bool] = lambda _decision: True,
    progress: Progress = quiet,
) -> Decision:
    """Finish a salvage that was cut off, decide, and do it if `agree` says so."""
    _store_file(fs, root)  # no lock is left in a directory that is no store
    try:
        lock = take_lock(fs, root)
        try:
            left = _left(fs, root, finish=True)
            decision = look(fs, root, progress)
            decision.left = left
            if decision.needed and agree(decision):
                _perform(fs, root, decision)
            return decision
        finally:
            lock.release()
    except OSError as error:
        raise StorageError(
            f"salvaging store {root} failed on {error.filename or root}: {error.strerror}; do it "
            "again when the cause is gone: nothing is lost by that",
            errno=error.errno,
        ) from error


def _store_file(fs: FileSystem, root: str) -> tuple[str, str | None]:
    """What is wrong with STORE, and the uuid where nothing is. A newer version is not damage, and
    a directory that holds nothing of a store is none."""
    try:
        return "", examine_store_file(fs, root)
    except CorruptionError as error:
        return UNREADABLE if isinstance(error.__cause__, OSError) else "damaged", None
    except NotAStoreError:
        with suppress(FileNotFoundError, NotADirectoryError):
            if segments(fs, root):
                return MISSING, None
        raise


def segments(fs: FileSystem, root: str) -> list[str]:
    """Paths of all segments inside the store."""
    return [
        f"{WAL_DIRECTORY}/{name}"
        for name in fs.list_directory(f"{root}/{WAL_DIRECTORY}")
        if segment_index(name) is not None or packed_index(name) is not None
    ]


def _left(fs: FileSystem, root: str, *, finish: bool = False) -> list[str]:
    """What an earlier salvage left to be moved; moved first, its files are not looked at again."""
    try:
        newest = read_segment(fs, root, max(list_segments(fs, root), default=0))
    except CorruptionError:
        return []
    except OSError as error:
        if not is_loss(error):
            raise
        return []
    return finish_pending(fs, root, newest) if finish else pending(fs, root, newest)


def _perform(fs: FileSystem, root: str, decision: Decision) -> None:
    evidence = decision.evidence
    assert evidence.uuid is not None
    _complete_directories(fs, root)
    store = f"{root}/{STORE_FILE}"
    is_new = evidence.store in (MISSING, UNREADABLE)
    if is_new:
        store = f"{root}/{STORE_TEMPORARY}"
        write_synced(fs, store, store_text(evidence.uuid))
    write_renewed(fs, root, decision.renewed)
    _make_durable(fs, root, decision)
    opening = _opening(fs, store, decision)
    make_segment(
        fs,
        root,
        uuid=evidence.uuid,
        predecessor=evidence.anchor,
        opening=opening,
        prewrite=0,
        first_seq=decision.first_seq,
        index=evidence.newest + 1,
    ).close()
    set_aside(fs, root, opening, evidence.uuid)
    if is_new:
        name_store(fs, root)
    elif evidence.store:
        _rewrite(fs, store, store_text(evidence.uuid))


def _complete_directories(fs: FileSystem, root: str) -> None:
    """What of the store's fixed parts is missing."""
    names = fs.list_directory(root)
    for directory in (WAL_DIRECTORY, OBJECTS_DIRECTORY):
        if directory not in names:
            fs.make_directory(f"{root}/{directory}")
    if PINS_FILE not in names:
        make_pins(fs, root)


def _make_durable(fs: FileSystem, root: str, decision: Decision) -> None:
    """Rule 1: names, then the log, then every slot that the new state needs."""
    for directory in (OBJECTS_DIRECTORY, WAL_DIRECTORY):
        fs.sync_directory(f"{root}/{directory}")
    fs.sync_directory(root)
    sync_parent(fs, root)
    for path in segments(fs, root):  # all of them: this may be a copy
        _sync_segment(fs, root, path, decision)
    files = slot_files(fs, root)
    for slot in sorted(decision.state.needed()):
        for path in files[slot]:
            sync_file(fs, f"{root}/{path}")


def _sync_segment(fs: FileSystem, root: str, path: str, decision: Decision) -> None:
    """Of what is no part of the state, as far as the disk still gives it out."""
    anchor = decision.evidence.anchor
    needed = () if anchor is None else (segment_file(anchor.index), packed_file(anchor.index))
    try:
        sync_file(fs, f"{root}/{path}")
    except OSError as error:
        if not is_loss(error) or path in needed:
            raise


def _opening(fs: FileSystem, store: str, decision: Decision) -> Mapping[str, Any]:
    instance = fs.random_bytes(16).hex()
    return {
        **identity(fs, store, epoch=decision.first_seq, instance=instance),
        "reason": SALVAGE,
        "abandoned": None,
        "salvage": {
            "lost": decision.lost,
            "quarantine": [row.to_json() for row in decision.aside],
            "unproven": decision.unproven,
        },
        "state": decision.state.to_json(),
    }


def _rewrite(fs: FileSystem, path: str, content: bytes) -> None:
    """In place, so that the file stays the one that the opening record names. Cut off, it is
    damaged as before; its copy is in quarantine by now."""
    file = fs.open(path, "write")
    try:
        file.pwrite(0, content)
        file.truncate(len(content))
        file.datasync()
    finally:
        file.close()
