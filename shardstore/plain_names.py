"""How parts and exported files find each other: file names, and what stands in safetensors files.

Contract: names are data. A file's name is `PART/SHARD.ENDING` with every character escaped that
could mean something to a file system, so that two parts have two files and none leaves its place.
"""

from __future__ import annotations

import string

from shardstore.format.digests import digest

SHARD_KEY = "shardstore.shard"
PART_KEY = "shardstore.part"
STEP_KEY = "shardstore.step"
_KEPT = frozenset((string.ascii_letters + string.digits + "_-.").encode())
_FILE_BYTES_MAX = 200
_KEPT_BYTES = 120


def file_name(shard: str, part: str, ending: str) -> str:
    """Where a part goes, relative to the directory that is exported to."""
    return f"{_plain(part)}/{_plain(shard)}.{ending}"


def _plain(name: str) -> str:
    """Letters, digits, `_`, `-` and inner dots as they are, bytes of all others as %XX."""
    escaped = "".join(chr(b) if b in _KEPT else f"%{b:02X}" for b in name.encode())
    if escaped.startswith("."):
        escaped = f"%2E{escaped[1:]}"
    if len(escaped) > _FILE_BYTES_MAX:
        return f"{escaped[:_KEPT_BYTES]}~{digest(name.encode())}"
    return escaped
