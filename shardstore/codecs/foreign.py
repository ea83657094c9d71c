"""Objects in the storage formats that other tools write too: safetensors and pt.

Contract: in memory an object has the layout of a raw one, whatever its file looks like; `encode`
makes a file of such memory, `decode` such memory of a file. A reference's digest is that of the
whole file here, and so is the head its beginning's; the tensors' digests are the same in every
format. `codecs.raw` fills memory with tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shardstore.buffers import Buffer
from shardstore.codecs import archive, pt, raw
from shardstore.codecs.contents import Contents
from shardstore.errors import CorruptionError, InvalidNameError, InvalidTensorError
from shardstore.format import safetensors_file
from shardstore.format.digests import Bytes, digest, short_digest
from shardstore.format.fields import possible_layout, wrong_header
from shardstore.format.headers import ObjectHeader
from shardstore.format.layout import HEAD_BYTES
from shardstore.format.names import ARCHIVE, PT, SAFETENSORS
from shardstore.format.placement import ObjectLabel, ObjectLayout
from shardstore.format.safetensors_file import PlainHeader

Acquire = Callable[[int], Buffer]


def encode(
    storage_format: str,
    view: memoryview,
    layout: ObjectLayout,
    label: ObjectLabel,
    digests: Sequence[str],
) -> list[memoryview]:
    """The pieces of the whole file, of tensors that stand in `view` as `layout` says."""
    if storage_format != SAFETENSORS:
        return [pt.save(view, layout, label, digests)]
    memory = {entry.spec.name: view[entry.begin : entry.end] for entry in layout.tensors}
    names = safetensors_file.data_places(layout.specs)
    header = safetensors_file.build_header(layout.specs, label, digests)
    return [memoryview(header), *(memory[name] for name in names)]


def decode(
    storage_format: str, data: memoryview, acquire: Acquire, *, file: str
) -> tuple[Buffer, ObjectHeader]:
    """A file that is the one its reference means, as memory; `acquire` gives a size's buffer."""
    fill: Callable[[memoryview, ObjectLayout], list[str]]
    if storage_format == SAFETENSORS:
        plain = _plain_header(data, file=file, file_size=len(data))
        header = plain.object

        def fill(view: memoryview, layout: ObjectLayout) -> list[str]:
            return raw.copy_bytes(view, layout, lambda name: data[slice(*plain.places[name])])
    else:
        label, digests, tensors = pt.load(data, file=file)
        try:
            specs = raw.specs_of(tensors, shard=label.shard, part=label.part)
        except (InvalidNameError, InvalidTensorError) as error:
            raise CorruptionError(str(error), file=file) from None
        if len(digests) != len(specs):
            raise wrong_header("the list of digests is wrong", file, len(specs), len(digests))
        layout = possible_layout(specs, label, file)
        header = ObjectHeader(layout=layout, label=label, digests=digests)

        def fill(view: memoryview, layout: ObjectLayout) -> list[str]:
            return raw.fill(view, layout, tensors)

    buffer = acquire(header.layout.total_bytes)
    try:
        _check_digests(header, fill(buffer.view, header.layout), file)
    except BaseException:
        buffer.release()
        raise
    return buffer, header


def _check_digests(header: ObjectHeader, found: list[str], file: str) -> None:
    for entry, expected, digits in zip(header.layout.tensors, header.digests, found, strict=True):
        if digits != expected:
            what = f"tensor {entry.spec.name!r} is not the one that was declared"
            raise CorruptionError(what, file=file, offset=0, expected=expected, found=digits)


def look(
    storage_format: str, data: memoryview, *, file: str, file_size: int | None = None
) -> Contents | None:
    """What a file says that it holds, of all its bytes or the first ones; None where that cannot be
    told. CorruptionError if a header is damaged, but for pt files."""
    size = len(data) if file_size is None else file_size
    if storage_format == ARCHIVE:
        packed = archive.parse(data, file=file, file_size=size)
        return None if packed is None else archive.contents_of(packed)
    if storage_format != SAFETENSORS:
        from shardstore.codecs import pt_archive  # zipfile and pickle are slow to import

        return pt_archive.look(data, file=file) if len(data) == size else None
    if safetensors_file.header_length(data[:8], file=file, file_size=size) > len(data):
        return None
    plain = _plain_header(data, file=file, file_size=size)
    return Contents(label=plain.object.label, digests=plain.object.digests, places=plain.places)


def _plain_header(data: memoryview, *, file: str, file_size: int) -> PlainHeader:
    length = safetensors_file.header_length(data[:8], file=file, file_size=file_size)
    return safetensors_file.parse_header(data[:length], file=file, file_size=file_size)


def check_available(storage_format: str) -> None:
    """Raises MissingLibraryError where objects of this format cannot be written."""
    if storage_format == PT:
        pt.torch_side("written")


def file_digests(pieces: Sequence[Bytes]) -> tuple[str, str]:
    """Digest and head of a reference to such a file."""
    beginning, left = [], HEAD_BYTES
    for piece in pieces:
        beginning.append(bytes(memoryview(piece)[:left]))
        left -= len(beginning[-1])
    return digest(*pieces), short_digest(b"".join(beginning))


def find_damage(storage_format: str, data: memoryview, *, file: str) -> Iterator[CorruptionError]:
    """What can be said of a file whose digest is wrong, from the file alone; may be nothing."""
    try:
        contents = look(storage_format, data, file=file)
    except CorruptionError as error:
        yield error
        return
    if contents is not None:
        yield from (error for _, error in contents.damage(data, file=file))
