"""The table of contents of a zip archive that somebody else wrote, as files of torch.save are.

Contract: every entry is stored as it is, inside the file, under a name of its own, and overlaps no
other; nothing stands before the first or behind the table. `crc` is what the archive says of the
entry's bytes; checking it is for whoever reads them.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardstore.importing.files import ForeignFile

if TYPE_CHECKING:
    import zipfile

TABLE_BYTES_MAX = 8 << 20
_LOCAL = struct.Struct("<4s22xHH")
_END_BYTES = 22
_STORED = 0
_ENCRYPTED = 1
_UTF8 = 0x800


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an entry's bytes stand in the file."""

    name: str
    begin: int
    size: int
    crc: int


def read_entries(file: ForeignFile) -> dict[str, Entry]:
    """The archive's entries by name; ForeignFileError where it is not as described above."""
    import zipfile  # late, as commands have to start quickly

    last = file.read(max(0, file.size - _END_BYTES), min(_END_BYTES, file.size))
    if last[:4] != b"PK\x05\x06":
        raise file.wrong(
            "the archive is cut off, or bytes stand behind its end", b"PK\x05\x06", last[:4]
        )
    try:
        archive = zipfile.ZipFile(_Reader(file))
        infos = archive.infolist()
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError) as error:
        raise file.wrong(f"the archive's table of contents is damaged: {error}") from None
    entries: dict[str, Entry] = {}
    at = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < at or (at == 0 and info.header_offset):
            raise file.wrong(
                f"entry {info.filename[:200]!r} overlaps another, or bytes stand before it",
                f"a place from {at} on", info.header_offset,
            )  # fmt: skip
        entry = _entry(file, info, archive.start_dir)
        if entry.name in entries:
            raise file.wrong(f"the archive has two entries {entry.name[:200]!r}")
        entries[entry.name] = entry
        at = entry.begin + entry.size
    return entries


def _entry(file: ForeignFile, info: zipfile.ZipInfo, table: int) -> Entry:
    what = f"entry {info.filename[:200]!r}"
    if info.compress_type != _STORED or info.compress_size != info.file_size:
        # Unpacked it could be of any size; torch packs nothing.
        raise file.wrong(f"{what} is compressed", "entries stored as they are", "another kind")
    if info.flag_bits & _ENCRYPTED:
        raise file.wrong(f"{what} is encrypted")
    if info.header_offset + _LOCAL.size > table:
        raise file.wrong(f"{what} lies beyond the archive", f"below {table}", info.header_offset)
    mark, name, extra = _LOCAL.unpack(file.read(info.header_offset, _LOCAL.size))
    begin = info.header_offset + _LOCAL.size + name + extra
    if mark != b"PK\x03\x04" or begin + info.file_size > table:
        raise file.wrong(
            f"{what} is not where the archive says", f"an end by {table}", begin + info.file_size
        )
    local = file.read(info.header_offset + _LOCAL.size, name)
    spelled = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")
    if local != spelled or info.filename != info.orig_filename:
        raise file.wrong(f"{what} has another name in its place", repr(spelled), repr(local))
    return Entry(info.filename, begin, info.file_size, info.CRC)


class _Reader(io.RawIOBase):
    """The file as the standard library's reader wants it; no read may be larger than the table of
    contents of a sane archive."""

    def __init__(self, file: ForeignFile) -> None:
        self._file = file
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        if base + offset < 0:
            raise ValueError(f"a place before the file's beginning: {base + offset}")
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        rest = max(0, self._file.size - self._at)
        count = rest if size < 0 else min(size, rest)
        if count > TABLE_BYTES_MAX:
            raise ValueError(f"it has {count} bytes, at most {TABLE_BYTES_MAX} are read")
        data = self._file.read(self._at, count)
        self._at += count
        return data
