"""Foreign files: regular ones only, read in exact stretches, told apart by their first bytes.

Contract: whatever the file holds, reading raises nothing but ForeignFileError and the operating
system's own errors, and allocates no more than its caller asked for. A file that changed since it
was first looked at is refused, and so is a link that leads out of the directory to be imported.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from shardstore.errors import ForeignFileError
from shardstore.fs.calls import close_quietly
from shardstore.fs.protocol import File
from shardstore.fs.system import local_file_system

PIECE_BYTES = 8 << 20
"""Long stretches are read in pieces of this size."""
HEAD_BYTES = 512

Advance = Callable[[int], None]
"""Called with the bytes that were read since the last call."""

_POINTERS = (
    (b"version https://git-lfs.github.com/", "git lfs pull"),
    (b"version https://hawser.github.com/", "git lfs pull"),
    (b"/annex/objects/", "git annex get"),
)
# Torch before 1.6 wrote several pickles, the first of which is this number.
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_KNOWN = (
    (_OLD_TORCH, "a file of torch.save from before torch 1.6", "save it again with a newer torch"),
    (b"\x80", "a bare pickle, which may run code", "save its tensors as safetensors"),
    (b"\x93NUMPY", "a numpy array", "save it as safetensors"),
    (b"GGUF", "a GGUF model", "convert it to safetensors"),
    (b"\x89HDF\r\n", "an HDF5 file", "convert it to safetensors"),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it first"),
    (b"BZh", "a bzip2 archive", "unpack it first"),
    (b"\xfd7zXZ", "an xz archive", "unpack it first"),
)


class ForeignFile:
    """One file that is read and not trusted. Opened when it is read, until `close`."""

    def __init__(self, path: str, *, within: str | None = None) -> None:
        """ForeignFileError unless it is a regular file, below `within` if that is given."""
        self.path = path
        if within is not None:
            check_within(path, within)
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            kind = "a directory" if stat.S_ISDIR(found.st_mode) else "a pipe, device or socket"
            raise ForeignFileError(
                "this is no regular file", file=path, expected="a file", found=kind
            )
        self.size = found.st_size
        self._identity = _identity(found)
        self._file: File | None = None

    def read(self, begin: int, count: int) -> bytes:
        """Exactly these bytes; the caller has made sure that so many are a sane amount."""
        data = bytearray(min(count, max(0, self.size - begin)))
        self.read_into(begin, memoryview(data))
        if len(data) != count:
            raise self.wrong("the file ends too early", f"{begin + count} bytes", self.size)
        return bytes(data)

    def read_into(self, begin: int, view: memoryview, advance: Advance | None = None) -> None:
        """Fill the view from there on, piece by piece."""
        file = self._opened()
        for at in range(0, len(view), PIECE_BYTES):
            piece = view[at : at + PIECE_BYTES]
            got = file.pread(begin + at, piece)
            if got != len(piece):
                found = f"{begin + at + got} bytes"
                raise self.wrong("the file ends too early", f"{begin + len(view)} bytes", found)
            if advance is not None:
                advance(got)

    def head(self) -> bytes:
        """The first bytes, as far as there are any."""
        return self.read(0, min(HEAD_BYTES, self.size))

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            close_quietly(file)

    def wrong(
        self, what: str, expected: object = None, found: object = None, advice: str = ""
    ) -> ForeignFileError:
        """The error for something in this file."""
        return ForeignFileError(
            what, file=self.path, expected=expected, found=_short(found), advice=advice
        )

    def _opened(self) -> File:
        if self._file is None:
            if _identity(os.stat(self.path)) != self._identity:
                raise self.wrong(
                    "the file changed while it was imported",
                    advice="stop what writes it, and import again",
                )
            self._file = local_file_system().open(self.path, "read")
        return self._file


def is_run_directory(path: str) -> bool:
    """Whether it is laid out like a run of the earlier system, or one of its checkpoints."""
    return os.path.isdir(f"{path}/shards/params")


def check_within(path: str, root: str) -> None:
    """ForeignFileError where links lead from a path below the directory out of it."""
    real, home = os.path.realpath(path), os.path.realpath(root)
    if os.path.commonpath([real, home]) != home:
        raise ForeignFileError(
            f"a link leads out of {root}, to {real}", file=path,
            advice="put the file itself there if it belongs to the import",
        )  # fmt: skip


def check_data(file: ForeignFile, head: bytes) -> None:
    """ForeignFileError for what is known not to be data of tensors."""
    if not head:
        raise file.wrong("the file is empty")
    for mark, command in _POINTERS:
        if mark in head[:200]:
            raise file.wrong(
                f"this is a pointer to data that was not fetched ({head[:40]!r})",
                advice=f"fetch it: {command}",
            )
    if head.lstrip()[:15].lower().startswith((b"<!doctype", b"<html")):
        raise file.wrong("this is a web page instead of data", advice="download it again")


def unknown(file: ForeignFile, head: bytes, wanted: str) -> ForeignFileError:
    """The error for a file of no kind that can be imported, in words for what it is."""
    for mark, words, advice in _KNOWN:
        if head.startswith(mark):
            return file.wrong("this cannot be imported", wanted, words, advice)
    if not any(head):
        return file.wrong("this cannot be imported", wanted, "zeros", "copy the file again")
    kind = "text" if _is_text(head) else "bytes of an unknown kind"
    return file.wrong("this cannot be imported", wanted, f"{kind}: {head[:24]!r}")


def _is_text(head: bytes) -> bool:
    return all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def shown(value: object) -> str:
    """A value of a hostile file as an error can show it."""
    try:
        return repr(value)[:200]
    except RecursionError:
        return "something nested very deep"


def _short(value: object) -> object:
    return f"{value[:200]}..." if isinstance(value, str) and len(value) > 200 else value
