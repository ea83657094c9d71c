"""Reading and writing whole objects of the storage formats safetensors and pt.

Contract: as for raw objects (`objects`), bytes that are not what the manifest says never become
tensors: the whole file's digest is compared before anything in it is interpreted. What is loaded
has the layout of a raw object, so that nobody behind this module knows the difference. Files are
read and written through the page cache, in one piece; speed is the raw format's business.
"""

from __future__ import annotations

from collections.abc import Callable

from shardstore.buffers import Buffer
from shardstore.codecs import foreign
from shardstore.errors import CorruptionError
from shardstore.format import safetensors_file
from shardstore.format.digests import digest, short_digest
from shardstore.format.headers import ObjectHeader
from shardstore.format.layout import HEAD_BYTES
from shardstore.format.manifest import ObjectRef, Part
from shardstore.format.names import SAFETENSORS
from shardstore.objects import ObjectReader, naming

Acquire = Callable[[int], Buffer]
"""Size -> a buffer, which the caller of `acquire` owns."""


def read(
    reader: ObjectReader,
    part: Part,
    reference: ObjectRef,
    step: int,
    into: Buffer | None,
    acquire: Acquire,
) -> tuple[Buffer, ObjectHeader]:
    """The object in `into`, which has the size of the object in memory, or in a new buffer."""
    path, what = reader.describe(part, reference, step)
    held = acquire(reference.size)

    def place(size: int) -> Buffer:
        if into is None:
            return acquire(size)
        assert into.size == size, "whoever gives memory asks for the size in memory first"
        return into

    try:
        data = reader.fill(path, what, reference, held)
        with naming(what):
            _check_file(data, reference, path)
            buffer, header = foreign.decode(reference.format, data, place, file=path)
    finally:
        held.release()
    try:
        _check_names(header, part, path, what)
    except CorruptionError:
        buffer.release()
        raise
    return buffer, header


def read_file(
    reader: ObjectReader, part: Part, reference: ObjectRef, step: int, buffer: Buffer
) -> None:
    """The object's file as it is, verified, in the buffer."""
    path, what = reader.describe(part, reference, step)
    data = reader.fill(path, what, reference, buffer)
    with naming(what):
        _check_file(data, reference, path)


def read_header(
    reader: ObjectReader, part: Part, reference: ObjectRef, step: int, acquire: Acquire
) -> ObjectHeader:
    """What the object says of itself: a safetensors file's beginning, which the reference's head
    vouches for, or else the whole file."""
    if reference.format == SAFETENSORS:
        header = _header_in_beginning(reader, part, reference, step)
        if header is not None:
            return header
    buffer, header = read(reader, part, reference, step, None, acquire)
    buffer.release()
    return header


def _header_in_beginning(
    reader: ObjectReader, part: Part, reference: ObjectRef, step: int
) -> ObjectHeader | None:
    path, what = reader.describe(part, reference, step)
    data = reader.beginning(path, what, reference, HEAD_BYTES)
    found = short_digest(data)
    if found != reference.head:
        raise CorruptionError(
            f"{what}: digest of the beginning", file=path, offset=0, expected=reference.head,
            found=found,
        )  # fmt: skip
    with naming(what):
        size = safetensors_file.header_length(data[:8], file=path, file_size=reference.size)
        if size > len(data):
            return None
        header = safetensors_file.parse_header(data[:size], file=path, file_size=reference.size)
    _check_names(header.object, part, path, what)
    return header.object


def _check_file(data: memoryview, reference: ObjectRef, path: str) -> None:
    found = digest(data)
    if found == reference.digest:
        return
    for error in foreign.find_damage(reference.format, data, file=path):
        raise error
    raise CorruptionError(
        "digest of the file", file=path, offset=0, expected=reference.digest, found=found
    )


def _check_names(header: ObjectHeader, part: Part, path: str, what: str) -> None:
    names = (header.label.shard, header.label.part)
    if names != part:
        raise CorruptionError(
            f"{what}: names in the header", file=path, offset=0, expected=part, found=names
        )
