"""Cloning: a store copied into another directory, from which both go on by themselves.

Contract: the copy is of one moment, whatever a writer does meanwhile (`held`); it has the log in
full, the same store uuid, and an instance id of its own in a segment that begins there. Every byte
is verified on its way and written by direct I/O. STORE comes last (rule 12 of docs/design.md), so
that a failure or a kill leaves no store; its remains are taken for their own by the next try.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardstore.buffers import Buffer
from shardstore.context import io_threads
from shardstore.errors import StoreExistsError, UsageError
from shardstore.format.manifest import Publication
from shardstore.format.names import (
    LOCK_FILE,
    OBJECTS_DIRECTORY,
    PINS_FILE,
    RAW,
    STORE_FILE,
    WAL_DIRECTORY,
    packed_file,
    segment_file,
)
from shardstore.fs.calls import close_quietly, storage_error, sync_file
from shardstore.fs.protocol import File, FileSystem, Lock
from shardstore.held import WINDOW_BYTES, HeldState, Item
from shardstore.jobs import Job
from shardstore.locking import take_lock
from shardstore.opening import check_outside, is_within
from shardstore.pins import make_pins
from shardstore.progress import Advance, Progress
from shardstore.recovery import (
    STORE_TEMPORARY,
    empty_directories,
    identity,
    name_store,
    write_synced,
)
from shardstore.refs import Ref, resolve
from shardstore.snapshot import open_commit
from shardstore.store_file import store_text
from shardstore.wal.reader import read_bytes, read_segment, segment_header
from shardstore.wal.state import State
from shardstore.wal.writer import Predecessor, make_segment
from shardstore.workers import Workers, make_workers

CLONE: Mapping[str, Any] = {"reason": "clone"}
PART: Mapping[str, Any] = {**CLONE, "part": True}
"""Of a clone that begins with less than the whole state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloned:
    """What was copied."""

    path: str
    objects: int
    bytes: int
    position: Publication
    """Where the new store stands."""


def cloned_state(held: HeldState, ref: Ref | str | None) -> State:
    """The state that a clone begins with: all of it, or one commit on a branch of its own line."""
    if ref is None:
        return held.state.copy()
    commit = open_commit(held.session, resolve(held.state, ref))
    line = held.view.last.seq + 1
    return State(
        current=commit.branch,
        branches={commit.branch: (commit.seq, line)},
        commits={commit.seq: commit},
        lines={**held.state.lines, line: (commit.line, commit.seq)},
        retention=held.state.retention,
    )


def clone(
    held: HeldState,
    dest: str,
    state: State,
    *,
    progress: Progress,
    fields: Mapping[str, Any] = CLONE,
) -> Cloned:
    """Copy what `state`, all or a part of what is held, needs, and the log, into `dest`.

    `fields` are what the opening record of the new store's own segment says of its reason.
    """
    fs, root = held.session.fs, held.session.root
    check_apart(fs, root, dest)
    items = held.items(state)
    size = sum(item.reference.size for item in items)
    try:
        lock = _claim(fs, dest, store_text(held.session.uuid))
        try:
            with progress(size) as advance:
                _copy_objects(held, dest, items, advance)
            _copy_log(held, dest)
            position = _finish(held, dest, state, fields)
        except BaseException:
            _clear(fs, dest)
            raise
        finally:
            lock.release()
    except OSError as error:
        raise storage_error(fs, dest, f"copying store {root}", error, needed=size) from error
    return Cloned(path=dest, objects=len(items), bytes=size, position=position)


def check_apart(fs: FileSystem, root: str, dest: str) -> None:
    """UsageError where a copy would go into the store itself, or below it or another one."""
    if is_within(fs, dest, root):
        raise UsageError(f"{dest} is the store itself, or inside of it; choose another directory")
    check_outside(dest, fs, itself=False)


def _claim(fs: FileSystem, dest: str, store: bytes) -> Lock:
    """Make the directory ours: new, empty, or what an unfinished copy of this lineage left."""
    try:
        fs.make_directory(dest)
    except FileExistsError:
        _check_claimable(fs, dest, store)
    lock = take_lock(fs, dest)
    try:
        _check_claimable(fs, dest, store)
        names = fs.list_directory(dest)
        if _is_ours(fs, dest, names, store):
            sync_file(fs, f"{dest}/{STORE_TEMPORARY}")
        else:
            write_synced(fs, f"{dest}/{STORE_TEMPORARY}", store)
        fs.sync_directory(dest)
        make_pins(fs, dest)
        empty_directories(fs, dest, names)
    except BaseException:
        lock.release()
        raise
    return lock


def _is_ours(fs: FileSystem, dest: str, names: list[str], store: bytes) -> bool:
    """Whether a copy of this lineage was begun here: that was durable before anything else."""
    return STORE_TEMPORARY in names and read_bytes(fs, f"{dest}/{STORE_TEMPORARY}") == store


def _check_claimable(fs: FileSystem, dest: str, store: bytes) -> None:
    try:
        names = fs.list_directory(dest)
    except NotADirectoryError:
        raise StoreExistsError(f"{dest} is a file, not a directory") from None
    if STORE_FILE in names:
        raise StoreExistsError(f"{dest} is a store already; choose an empty or new directory")
    own = {LOCK_FILE, STORE_TEMPORARY}
    if _is_ours(fs, dest, names, store):
        own |= {PINS_FILE, WAL_DIRECTORY, OBJECTS_DIRECTORY}
    foreign = sorted(set(names) - own)
    if foreign:
        raise StoreExistsError(
            f"{dest} is not empty (it holds {foreign[0]!r}); choose an empty or new directory"
        )


def _copy_objects(held: HeldState, dest: str, items: list[Item], advance: Advance) -> None:
    fs, settings = held.session.fs, held.session.settings
    writer = _Writer(fs, make_workers(io_threads(fs, settings)), settings.piece_bytes)
    try:
        for item, buffer in held.read(items):
            writer.write(
                f"{dest}/{item.reference.file}", buffer, direct=item.reference.format == RAW
            )
            advance(item.reference.size)
        writer.finish()
    finally:
        writer.close()


class _Writer:
    """Writes whole new files, several at a time, and syncs each."""

    def __init__(self, fs: FileSystem, workers: Workers, piece_bytes: int) -> None:
        self._fs = fs
        self._workers = workers
        self._piece = piece_bytes
        self._out: deque[tuple[File, Buffer, list[Job[None]]]] = deque()
        self._size = 0

    def write(self, path: str, buffer: Buffer, *, direct: bool) -> None:
        """Begin to write the buffer, which becomes the writer's; waits for room."""
        while self._out and self._size + buffer.size > WINDOW_BYTES:
            self._land()
        try:
            file = self._fs.open(path, "create", direct=direct)
        except BaseException:
            buffer.release()
            raise
        jobs: list[Job[None]] = []
        self._out.append((file, buffer, jobs))
        self._size += buffer.size
        for begin in range(0, buffer.size, self._piece):
            data = buffer.view[begin : begin + self._piece]
            jobs.append(self._workers.io(file.pwrite, begin, data))

    def finish(self) -> None:
        """Everything is written and durable, but for the names."""
        while self._out:
            self._land()

    def close(self) -> None:
        """Give up what is on its way."""
        self._workers.close()
        for file, buffer, _ in self._out:
            close_quietly(file)
            buffer.release()
        self._out.clear()

    def _land(self) -> None:
        file, buffer, jobs = self._out[0]
        for job in jobs:
            job.result()
        file.datasync()
        self._out.popleft()
        self._size -= buffer.size
        close_quietly(file)
        buffer.release()


def _copy_log(held: HeldState, dest: str) -> None:
    """Every segment up to where the next one took over, the newest up to the held state's end."""
    fs, root, view = held.session.fs, held.session.root, held.view
    cut, index, header = view.last.frame.end, view.segment.index, view.segment.header
    while True:
        path, content = _segment_content(fs, root, index, cut)
        write_synced(fs, f"{dest}/{path}", content)
        link = header["predecessor"]
        if link is None:
            return
        cut, index = int(link["cut"]), int(link["index"])
        header = segment_header(fs, root, index)


def _segment_content(fs: FileSystem, root: str, index: int, cut: int) -> tuple[str, bytes]:
    """The file to write: of a compressed segment the same, else the part that counts."""
    segment = read_segment(fs, root, index, cut=cut)
    for name in (segment_file(index), packed_file(index)):
        try:
            content = read_bytes(fs, f"{root}/{name}")
        except FileNotFoundError:
            continue
        return name, content if name == packed_file(index) else content[: segment.end]
    raise FileNotFoundError(
        errno.ENOENT, os.strerror(errno.ENOENT), f"{root}/{segment_file(index)}"
    )


def _finish(held: HeldState, dest: str, state: State, fields: Mapping[str, Any]) -> Publication:
    """The segment that begins here, then STORE; each durable before what it stands on is needed."""
    fs, last, segment = held.session.fs, held.view.last, held.view.segment
    store, instance = f"{dest}/{STORE_TEMPORARY}", fs.random_bytes(16).hex()
    opening = {
        **identity(fs, store, epoch=last.seq + 1, instance=instance),
        **fields,
        "abandoned": None,
        "state": state.to_json(),
    }
    predecessor = Predecessor(
        index=segment.index, cut=last.frame.end, seq=last.seq, chain=last.chain
    )
    writer = make_segment(
        fs, dest, uuid=held.session.uuid, predecessor=predecessor, opening=opening, prewrite=0
    )  # fmt: skip
    writer.close()
    name_store(fs, dest)
    step = None if state.head is None else state.head.step
    return Publication(seq=writer.seq, chain=writer.chain, step=step, time=opening["time"])


def _clear(fs: FileSystem, dest: str) -> None:
    """Give the space back; never below a STORE that may be durable."""
    try:
        names = fs.list_directory(dest)
        if STORE_FILE in names:
            fs.rename(f"{dest}/{STORE_FILE}", f"{dest}/{STORE_TEMPORARY}")
            fs.sync_directory(dest)
        empty_directories(fs, dest, names)
    except OSError:
        return  # the next try does it
