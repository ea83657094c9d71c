"""Digests of FORMAT.md section 1: xxh3_128 as 32 hexadecimal digits, and what is built of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import xxhash

DIGEST_LENGTH = 32
ZERO_DIGEST = "0" * DIGEST_LENGTH

Bytes = bytes | bytearray | memoryview


def digest(*pieces: Bytes) -> str:
    """xxh3_128 of the concatenated pieces, hexadecimal."""
    if len(pieces) == 1:
        return xxhash.xxh3_128_hexdigest(pieces[0])
    state = xxhash.xxh3_128()
    for piece in pieces:
        state.update(piece)
    return state.hexdigest()


def short_digest(data: Bytes) -> str:
    """xxh3_64, hexadecimal: for hints that another digest backs."""
    return xxhash.xxh3_64_hexdigest(data)


def canonical_json(value: Any) -> bytes:
    """The one JSON spelling of a value (FORMAT.md section 1): ASCII, sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def lines_digest(rows: Iterable[Any]) -> str:
    """Digest of the rows' canonical JSON, one a line, in the order given."""
    state = xxhash.xxh3_128()
    for row in rows:
        state.update(canonical_json(row))
        state.update(b"\n")
    return state.hexdigest()


def expect_digest(parts: Iterable[tuple[str, str]]) -> str:
    """Digest of a transaction's expected set of (shard, part) pairs."""
    return lines_digest([list(pair) for pair in sorted(parts)])


def chain_hash(predecessor: str, record: bytes) -> str:
    """Chain hash of a record: covers the predecessor's and the record's bytes, nothing else."""
    return digest(bytes.fromhex(predecessor), record)


StateRow = tuple[str, str, str, str, tuple[int, ...], str]
"""shard, part, tensor, dtype, shape, digest of the tensor's bytes."""


def state_digest(rows: Iterable[StateRow]) -> str:
    """State digest of FORMAT.md section 5.5."""
    ordered = sorted(rows, key=lambda row: row[:3])
    return lines_digest([[*row[:4], list(row[4]), row[5]] for row in ordered])
