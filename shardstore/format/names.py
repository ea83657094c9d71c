"""All names: what users may call things (FORMAT.md section 7), and what files are called.

Shard, part and tensor names are data and never become paths; files are named by numbers only.
"""

from __future__ import annotations

import re

from shardstore.errors import InvalidNameError

FORMAT_VERSION = 1
"""Of FORMAT.md: in STORE, in segment headers and marks, and in the labels of objects."""
STORE_FILE = "STORE"
LOCK_FILE = "LOCK"
PINS_FILE = "PINS"
WAL_DIRECTORY = "wal"
CATALOG_DIRECTORY = "catalog"
OBJECTS_DIRECTORY = "objects"
SEGMENT_TEMPORARY = "tmp"
PACKED_TEMPORARY = "tmp.zst"
QUARANTINE_DIRECTORY = "quarantine"
SNAPSHOT_SHARD = "__snapshot__"
FIRST_BRANCH = "main"
RAW = "raw"
SAFETENSORS = "safetensors"
PT = "pt"
ARCHIVE = "archive"
FORMATS = (RAW, SAFETENSORS, PT)
"""Storage formats that commits are written in."""
ALL_FORMATS = (*FORMATS, ARCHIVE)
"""Storage formats of objects; the ending of a slot's file."""
NAME_BYTES_MAX = 1024
REF_BYTES_MAX = 255

_PADDING = re.compile(r"__pad_\d+__\Z")
_REF = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z", re.ASCII)
_SEGMENT = re.compile(r"([0-9a-f]{16})\.wal\Z")
_PACKED = re.compile(r"([0-9a-f]{16})\.wal\.zst\Z")
_SLOT = re.compile(rf"([0-9a-f]{{6,}})\.({'|'.join(ALL_FORMATS)})\Z")


def check_data_name(kind: str, name: object) -> str:
    """A shard, part or tensor name, or InvalidNameError. `kind` is the word for the message."""
    if not isinstance(name, str):
        raise InvalidNameError(f"{kind} name must be a string, found {type(name).__name__}")
    try:
        encoded = name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidNameError(f"{kind} name {name!r} is not valid UTF-8: {error.reason}") from None
    if not 1 <= len(encoded) <= NAME_BYTES_MAX:
        raise InvalidNameError(
            f"{kind} name {name[:40]!r} has {len(encoded)} bytes of UTF-8, "
            f"expected 1 to {NAME_BYTES_MAX}"
        )
    if b"\0" in encoded:
        raise InvalidNameError(f"{kind} name {name!r} contains a NUL character")
    reserved = name == "__metadata__" or _PADDING.match(name) is not None
    if reserved or (kind == "shard" and name == SNAPSHOT_SHARD):
        raise InvalidNameError(f"{kind} name {name!r} is reserved; choose another")
    return name


def check_ref_name(name: object) -> str:
    """A snapshot or branch name, or InvalidNameError."""
    if not isinstance(name, str) or not _REF.match(name) or len(name) > REF_BYTES_MAX:
        raise InvalidNameError(
            f"name {name!r} is not allowed: expected a letter or '_' followed by letters, "
            f"digits, '_', '.' or '-', at most {REF_BYTES_MAX} characters"
        )
    if name == "head":
        raise InvalidNameError("the name 'head' is reserved for the current position")
    return name


def segment_file(index: int) -> str:
    """Path of a log segment inside the store."""
    return f"{WAL_DIRECTORY}/{index:016x}.wal"


def segment_index(file_name: str) -> int | None:
    """Index of a segment from its name inside `wal/`, None for any other file."""
    match = _SEGMENT.match(file_name)
    return int(match.group(1), 16) if match else None


def packed_file(index: int) -> str:
    """Path of a compressed log segment inside the store."""
    return f"{segment_file(index)}.zst"


def packed_index(file_name: str) -> int | None:
    """Index of a compressed segment from its name inside `wal/`, None for any other file."""
    match = _PACKED.match(file_name)
    return int(match.group(1), 16) if match else None


def slot_file(slot: int, storage_format: str) -> str:
    """Path of a slot inside the store."""
    return f"{OBJECTS_DIRECTORY}/{slot:06x}.{storage_format}"


def slot_of(file_name: str) -> tuple[int, str] | None:
    """Number and storage format of a slot from its name inside `objects/`, None for any other."""
    match = _SLOT.match(file_name)
    if match is None:
        return None
    slot, storage_format = int(match.group(1), 16), match.group(2)
    if slot_file(slot, storage_format) != f"{OBJECTS_DIRECTORY}/{file_name}":
        return None
    return slot, storage_format
