"""Reading objects out of their slots, verified: bytes that are not what the manifest says never
become tensors.

Errors name store, step, shard, part, file and offset. Nothing here knows whether a commit is still
kept; `session` turns damage into StepMovedOnError where the writer has moved on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shardstore.buffers import Buffer
from shardstore.errors import CorruptionError
from shardstore.format.layout import (
    ObjectHeader,
    check_data,
    header_length,
    object_digest,
    parse_header,
)
from shardstore.format.manifest import ObjectRef, Part
from shardstore.format.names import slot_file
from shardstore.fs.calls import close_quietly, storage_error
from shardstore.fs.protocol import File, FileSystem

PIECE_BYTES = 16 * 1024 * 1024


class ObjectReader:
    """Reads the objects of one store. Any thread may call."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root

    def read(self, part: Part, reference: ObjectRef, step: int, buffer: Buffer) -> ObjectHeader:
        """Fill the buffer with the whole object and verify every byte."""
        path, what = self._describe(part, reference, step)
        file = self._open(path, what, reference, direct=buffer.aligned)
        view = buffer.view[: reference.size]
        try:
            for at in range(0, reference.size, PIECE_BYTES):
                file.pread(at, view[at : at + PIECE_BYTES])
        except OSError as error:
            raise storage_error(self._fs, self._root, "reading an object", error) from error
        finally:
            close_quietly(file)
        return check_object(view, part, reference, path, what)

    def read_header(self, part: Part, reference: ObjectRef, step: int) -> ObjectHeader:
        """Read and verify the header region only."""
        path, what = self._describe(part, reference, step)
        file = self._open(path, what, reference, direct=False)
        try:
            first = bytearray(8)
            file.pread(0, first)
            with naming(what):
                size = header_length(first, file=path, file_size=reference.size)
            region = bytearray(size)
            file.pread(0, region)
        except OSError as error:
            raise storage_error(self._fs, self._root, "reading an object", error) from error
        finally:
            close_quietly(file)
        return check_header(memoryview(region), part, reference, path, what)

    def _describe(self, part: Part, reference: ObjectRef, step: int) -> tuple[str, str]:
        what = f"object of shard {part[0]!r} part {part[1]!r} at step {step} of store {self._root}"
        return f"{self._root}/{slot_file(reference.slot)}", what

    def _open(self, path: str, what: str, reference: ObjectRef, *, direct: bool) -> File:
        try:
            file = self._fs.open(path, "read", direct=direct)
        except FileNotFoundError:
            raise CorruptionError(f"{what}: the file is missing", file=path) from None
        except OSError as error:
            raise storage_error(self._fs, self._root, "opening an object", error) from error
        try:
            found = file.size()
        except OSError as error:
            close_quietly(file)
            raise storage_error(self._fs, self._root, "reading an object", error) from error
        if found != reference.size:
            close_quietly(file)
            raise CorruptionError(
                f"{what}: size", file=path, offset=min(found, reference.size),
                expected=reference.size, found=found,
            )  # fmt: skip
        return file


def check_object(
    data: memoryview, part: Part, reference: ObjectRef, path: str, what: str
) -> ObjectHeader:
    """Verify an object's bytes against its reference, or CorruptionError with the place."""
    with naming(what):
        size = header_length(data[:8], file=path, file_size=len(data))
    header = check_header(data[:size], part, reference, path, what)
    with naming(what):
        check_data(header, data, file=path)
    return header


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Damage found in bytes alone is told with the object that they should be."""
    try:
        yield
    except CorruptionError as error:
        raise CorruptionError(
            f"{what}: {error.what}",
            file=error.file,
            offset=error.offset,
            expected=error.expected,
            found=error.found,
        ) from None


def check_header(
    region: memoryview, part: Part, reference: ObjectRef, path: str, what: str
) -> ObjectHeader:
    """Verify a header region against the reference that the manifest holds."""
    found = object_digest(region)
    if found != reference.digest:
        raise CorruptionError(
            f"{what}: digest of the header", file=path, offset=0, expected=reference.digest,
            found=found,
        )  # fmt: skip
    with naming(what):
        header = parse_header(region, file=path)
    names = (header.label.shard, header.label.part)
    if names != part:
        raise CorruptionError(
            f"{what}: names in the header", file=path, offset=0, expected=part, found=names
        )
    return header
