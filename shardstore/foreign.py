"""Reading whole objects of the storage formats safetensors, pt and archive.

Contract: as for raw objects (`objects`), bytes that are not what the manifest says never become
tensors: the whole file's digest is compared before anything in it is interpreted. What is loaded
has the layout of a raw object, so that nobody behind this module knows the difference. Files are
read through the page cache, in one piece; speed is the raw format's business. An archived object
may be the difference to another, its base, which is read and verified for that too.
"""

from __future__ import annotations

from collections.abc import Callable

from shardstore.buffers import Buffer
from shardstore.codecs import archive, foreign
from shardstore.errors import CorruptionError
from shardstore.format import safetensors_file
from shardstore.format.archive_file import base_name
from shardstore.format.digests import digest, short_digest
from shardstore.format.headers import ObjectHeader
from shardstore.format.layout import HEAD_BYTES
from shardstore.format.manifest import ObjectRef, Part
from shardstore.format.names import ARCHIVE, PT, RAW
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
    base: archive.Base | None = None,
) -> tuple[Buffer, ObjectHeader]:
    """The object in `into`, which has the size of the object in memory, or in a new buffer. `base`
    is an archived object's, where the caller has it."""
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
            if reference.format == ARCHIVE:
                buffer, header = _unpack(reader, part, reference, step, data, place, acquire, base)
            else:
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
    """What the object says of itself: the file's beginning, which the reference's head vouches for,
    or else the whole file."""
    if reference.format != PT:
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
        header = _parse_beginning(data, reference, path)
    if header is not None:
        _check_names(header, part, path, what)
    return header


def _parse_beginning(data: memoryview, reference: ObjectRef, path: str) -> ObjectHeader | None:
    if reference.format == ARCHIVE:
        packed = archive.parse(data, file=path, file_size=reference.size)
        return None if packed is None else packed.object
    size = safetensors_file.header_length(data[:8], file=path, file_size=reference.size)
    if size > len(data):
        return None
    return safetensors_file.parse_header(data[:size], file=path, file_size=reference.size).object


def _unpack(
    reader: ObjectReader,
    part: Part,
    reference: ObjectRef,
    step: int,
    data: memoryview,
    place: Acquire,
    acquire: Acquire,
    base: archive.Base | None,
) -> tuple[Buffer, ObjectHeader]:
    """An archived object of its whole file, with its base, which is read unless it is there."""
    path = f"{reader.root}/{reference.file}"
    header = archive.parse(data, file=path)
    assert header is not None, "all of the file is there"
    named = None if reference.base is None else base_name(reference.base)
    if header.base != named:
        raise CorruptionError(
            "base of the archived object", file=path, offset=0, expected=named, found=header.base
        )
    archive.check_frames(data, header, file=path)
    held: Buffer | None = None
    if reference.base is not None and base is None:
        held, base = _read_base(reader, part, reference.base, step, acquire)
    try:
        buffer = place(header.object.layout.total_bytes)
        try:
            archive.decode(data, header, base, buffer.view, reader.workers, file=path)
        except BaseException:
            buffer.release()
            raise
    finally:
        if held is not None:
            held.release()
    return buffer, header.object


def _read_base(
    reader: ObjectReader, part: Part, base: ObjectRef, step: int, acquire: Acquire
) -> tuple[Buffer, archive.Base]:
    if base.format not in (RAW, ARCHIVE):
        raise CorruptionError(
            "storage format of the base", file=f"{reader.root}/{base.file}",
            expected=(RAW, ARCHIVE), found=base.format,
        )  # fmt: skip
    try:
        if base.format == ARCHIVE:
            buffer, header = read(reader, part, base, step, None, acquire)
        else:
            buffer, header = read_raw(reader, part, base, step, None, acquire)
    except CorruptionError as error:
        raise CorruptionError(
            f"its base: {error.what}", file=error.file, offset=error.offset,
            expected=error.expected, found=error.found,
        ) from None  # fmt: skip
    return buffer, archive.Base(base, header.layout, buffer.view)


def read_raw(
    reader: ObjectReader,
    part: Part,
    reference: ObjectRef,
    step: int,
    into: Buffer | None,
    acquire: Acquire,
) -> tuple[Buffer, ObjectHeader]:
    """As `read`, of a raw object."""
    buffer = into or acquire(reference.size)
    try:
        return buffer, reader.read(part, reference, step, buffer)
    except BaseException:
        if into is None:
            buffer.release()
        raise


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
