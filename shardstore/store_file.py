"""STORE: which format, which store (FORMAT.md sections 2 and 9).

Contract: `read_store_file` is what everything that looks at a store calls first. Its error tells
apart what is no store, what is one of another version, which is not touched, and damage.
`examine_store_file` is for whoever looks for damage: a file that the disk lost is damaged to it.
Neighbours: `recovery` writes the file last when it creates a store, `salvage` writes it anew.
"""

from __future__ import annotations

from shardstore.errors import CorruptionError, NotAStoreError, StorageError, VersionError
from shardstore.format.digests import digest
from shardstore.format.names import FORMAT_VERSION, STORE_FILE
from shardstore.fs.calls import is_loss
from shardstore.fs.protocol import FileSystem
from shardstore.wal.reader import read_bytes


def store_text(uuid: str) -> bytes:
    """The content of STORE."""
    body = f"shardstore\nversion {FORMAT_VERSION}\nuuid {uuid}\n".encode("ascii")
    return body + f"digest {digest(body)}\n".encode("ascii")


def examine_store_file(fs: FileSystem, root: str) -> str:
    """As `read_store_file`, but where the disk does not give it out, or something else stands in
    its place, a CorruptionError that has the system's error as its cause."""
    try:
        return read_store_file(fs, root)
    except StorageError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or not is_loss(cause):
            raise
        what = f"cannot be read: {cause.strerror}"
        raise CorruptionError(what, file=f"{root}/{STORE_FILE}") from cause


def read_store_file(fs: FileSystem, root: str) -> str:
    """The store's uuid; NotAStoreError, VersionError or CorruptionError otherwise."""
    path = f"{root}/{STORE_FILE}"
    try:
        text = read_bytes(fs, path)
    except (FileNotFoundError, NotADirectoryError):
        raise NotAStoreError(
            f"{root} is not a store: it has no file {STORE_FILE}; create one with "
            f"'shardstore init {root}'"
        ) from None
    except OSError as error:
        raise StorageError(f"reading {path} failed: {error.strerror}", errno=error.errno) from error
    lines = text.split(b"\n")
    if lines[0] != b"shardstore" or len(lines) < 2 or not lines[1].startswith(b"version "):
        raise CorruptionError("not a STORE file", file=path, offset=0, expected="'shardstore'",
                              found=repr(lines[0][:20]))  # fmt: skip
    version = lines[1].removeprefix(b"version ")
    if version.isdigit() and int(version) != FORMAT_VERSION and _intact(text, lines):
        raise VersionError(_other_version(root, int(version)))
    uuid = lines[2].removeprefix(b"uuid ") if len(lines) > 2 else b""
    if not uuid.isascii() or text != store_text(uuid.decode("ascii")):
        raise CorruptionError("damaged STORE file", file=path, offset=0,
                              expected="its digest to agree", found="another")  # fmt: skip
    return uuid.decode("ascii")


def _other_version(root: str, found: int) -> str:
    """Why a store of another version is not read, and what to do."""
    if found > FORMAT_VERSION:
        return (
            f"{root} has format version {found}, this library reads version {FORMAT_VERSION}; "
            "install a newer shardstore"
        )
    return (
        f"{root} has format version {found}, from before the first one that stays readable "
        f"(version 1); export it with the shardstore that wrote it ('shardstore export'), and "
        "import that into a new store"
    )


def _intact(text: bytes, lines: list[bytes]) -> bool:
    body = b"\n".join(lines[:-2]) + b"\n"
    return text == body + f"digest {digest(body)}\n".encode("ascii")
