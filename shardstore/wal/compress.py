"""Compresses sealed segments of the log (rule 12 of docs/design.md, FORMAT.md section 3.5).

Contract: the caller holds the writer's lock. The newest segment and the one before it stay as they
are. A segment goes only after its compressed form was synced, read back, and its name is durable;
while both are there the plain one counts, so a crash anywhere leaves the log whole. One that is
damaged is left as it is: a check has to see it. Failing is harmless, the segment stays plain.
"""

from __future__ import annotations

from shardstore.errors import CorruptionError
from shardstore.format.names import (
    PACKED_TEMPORARY,
    WAL_DIRECTORY,
    packed_file,
    segment_file,
    segment_index,
)
from shardstore.format.packed import CONTENT_BYTES_MAX, pack_segment, unpack_segment
from shardstore.fs.calls import unlink_quietly
from shardstore.fs.protocol import FileSystem
from shardstore.wal.reader import read_bytes, read_segment

COMPRESS_BYTES_MIN = 64 * 1024
"""Shorter segments are left alone: a file takes a block or two anyway."""
LOOKED_AT = 16


def compress_segments(
    fs: FileSystem, root: str, *, bytes_min: int = COMPRESS_BYTES_MIN
) -> list[int]:
    """Compress what is old and long enough; the indices of the segments that were.

    Raises OSError where the file system refuses; all the segments are still there then.
    """
    return [index for index in _plain(fs, root)[:-2] if _compress(fs, root, index, bytes_min)]


def is_due(fs: FileSystem, root: str, *, bytes_min: int = COMPRESS_BYTES_MIN) -> bool:
    """Whether there is a segment to compress among the newest that may be: those before them had
    their turn, and are short."""
    plain = _plain(fs, root)[:-2][-LOOKED_AT:]
    return any(fs.stat(f"{root}/{segment_file(index)}").size >= bytes_min for index in plain)


def _plain(fs: FileSystem, root: str) -> list[int]:
    names = fs.list_directory(f"{root}/{WAL_DIRECTORY}")
    return sorted(index for name in names if (index := segment_index(name)) is not None)


def _compress(fs: FileSystem, root: str, index: int, bytes_min: int) -> bool:
    path = f"{root}/{segment_file(index)}"
    if fs.stat(path).size < bytes_min:
        return False
    try:
        predecessor = read_segment(fs, root, index + 1).header["predecessor"]
        if predecessor is None or predecessor["index"] != index:
            return False  # a salvage passed over it
        cut = int(predecessor["cut"])
        read_segment(fs, root, index, cut=cut)
    except (CorruptionError, FileNotFoundError):
        return False
    content = read_bytes(fs, path)[:cut]
    if len(content) > CONTENT_BYTES_MAX:
        return False
    try:
        written = _write(fs, root, content)
        if written:
            _replace(fs, root, index)
    except OSError:  # the temporary file may be what fills the disk
        unlink_quietly(fs, f"{root}/{WAL_DIRECTORY}/{PACKED_TEMPORARY}")
        raise
    return written


def _write(fs: FileSystem, root: str, content: bytes) -> bool:
    """Write the temporary file and make it durable; whether it reads back as what was meant."""
    temporary = f"{root}/{WAL_DIRECTORY}/{PACKED_TEMPORARY}"
    if PACKED_TEMPORARY in fs.list_directory(f"{root}/{WAL_DIRECTORY}"):
        fs.unlink(temporary)
    file = fs.open(temporary, "create")
    try:
        file.pwrite(0, pack_segment(content))
        file.datasync()
    finally:
        file.close()
    try:
        return unpack_segment(read_bytes(fs, temporary), temporary) == content
    except CorruptionError:
        return False


def _replace(fs: FileSystem, root: str, index: int) -> None:
    """Put the compressed file in the segment's place; its name is durable before the old goes."""
    directory, target = f"{root}/{WAL_DIRECTORY}", f"{root}/{packed_file(index)}"
    if target.rpartition("/")[2] in fs.list_directory(directory):
        fs.unlink(target)  # of a compression that a crash cut off; the plain one still counts
    fs.rename(f"{directory}/{PACKED_TEMPORARY}", target)
    fs.sync_directory(directory)
    fs.unlink(f"{root}/{segment_file(index)}")
    fs.sync_directory(directory)
