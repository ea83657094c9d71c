"""Compressed segments (FORMAT.md section 3.5): bytes in, bytes out.

One zstd frame with its content's size and checksum, nothing behind it. The size is looked at
before anything is allocated, so that a damaged file cannot ask for more memory than a segment has.
"""

from __future__ import annotations

from shardstore.errors import CorruptionError

CONTENT_BYTES_MAX = 1 << 30
"""Longer segments stay as they are."""
_LEVEL = 3


def pack_segment(content: bytes) -> bytes:
    """The file that stands for a sealed segment of these bytes."""
    import zstandard  # late: only old segments need it

    compressor = zstandard.ZstdCompressor(
        level=_LEVEL, write_checksum=True, write_content_size=True
    )
    return compressor.compress(content)


def unpack_segment(data: bytes, file: str) -> bytes:
    """The segment's bytes; CorruptionError where the file is not exactly one whole frame."""
    import zstandard

    try:
        parameters = zstandard.get_frame_parameters(data)
        size = parameters.content_size
        if size > CONTENT_BYTES_MAX or not parameters.has_checksum:
            raise zstandard.ZstdError(f"a frame of {size} bytes, or one without a checksum")
        reader = zstandard.ZstdDecompressor().decompressobj()
        content = reader.decompress(data)
    except (zstandard.ZstdError, MemoryError) as error:
        raise _damaged(file, str(error)) from error
    if not reader.eof or reader.unused_data or len(content) != size:
        raise _damaged(file, f"{len(content)} of {size} bytes, {len(reader.unused_data)} behind")
    return content


def _damaged(file: str, found: str) -> CorruptionError:
    return CorruptionError(
        "damaged compressed segment of the log", file=file, offset=0,
        expected="one whole zstd frame with size and checksum", found=found,
    )  # fmt: skip
