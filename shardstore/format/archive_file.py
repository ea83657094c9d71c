"""The header of an archived object's file (FORMAT.md section 5.6), written and read.

Contract: pure, and reading raises nothing but CorruptionError; it accepts only what `build_header`
writes, and pieces that are just as many as the declared tensors have. `codecs.archive` makes the
frames and reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardstore.errors import CorruptionError
from shardstore.format.digests import Bytes
from shardstore.format.fields import (
    check_name,
    check_own_digest,
    check_spelling,
    declared_tensor,
    is_digest,
    parse_members,
    parse_sealed_label,
    possible_layout,
    wrong_header,
)
from shardstore.format.headers import ObjectHeader
from shardstore.format.manifest import ObjectRef, write_id
from shardstore.format.names import ARCHIVE
from shardstore.format.placement import (
    DTYPE_SIZES,
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    METADATA_KEY,
    ObjectLabel,
    TensorEntry,
    TensorSpec,
    seal,
    unsealed_fields,
)

PIECE_BYTES = 4 << 20
"""A tensor's bytes are packed in pieces of this size."""
PLAIN, PACKED, DELTA = 0, 1, 2
"""How a frame is made of a piece."""

_ALIGNMENT_BYTES = 8
_KEYS = {METADATA_KEY, "base", "pieces", "tensors"}
_CHECK = re.compile(r"[0-9a-f]{16}", re.ASCII)
_WRITE_ID = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}", re.ASCII)


class Piece(NamedTuple):
    """A row of `pieces`."""

    bytes: int
    """Of the frame."""
    method: int
    check: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveHeader:
    """A header that was read and found sound in itself."""

    object: ObjectHeader
    """Its layout is the one in memory."""
    base: tuple[str, str] | None
    """Digest and write id."""
    pieces: tuple[Piece, ...]
    frames_begin: int

    def frames(self) -> Iterator[tuple[TensorEntry, int, Piece, int]]:
        """Each piece with its tensor, where it begins in memory and its frame in the file."""
        at, pieces = self.frames_begin, iter(self.pieces)
        for entry in self.object.layout.tensors:
            for begin in range(entry.begin, entry.end, PIECE_BYTES):
                piece = next(pieces)
                yield entry, begin, piece, at
                at += piece.bytes


def width_of(dtype: str) -> int:
    """Bytes of what is shuffled; a complex number is two of them."""
    return 4 if dtype == "C64" else DTYPE_SIZES[dtype]


def base_name(base: ObjectRef) -> tuple[str, str]:
    """What a header says of its base: digest and write id."""
    return base.digest, write_id(base.epoch, base.counter)


def build_header(
    specs: Sequence[TensorSpec],
    label: ObjectLabel,
    digests: Sequence[str],
    base: tuple[str, str] | None,
    pieces: Sequence[Piece],
) -> bytes:
    """The file's bytes before the frames."""
    members = {
        METADATA_KEY: unsealed_fields(label, digests, ARCHIVE),
        "base": None if base is None else {"digest": base[0], "write": base[1]},
        "tensors": [[spec.name, spec.dtype, list(spec.shape)] for spec in specs],
        "pieces": [list(piece) for piece in pieces],
    }
    text = json.dumps(members, separators=(",", ":")).encode("ascii")
    size = -(-len(text) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return seal(size.to_bytes(LENGTH_BYTES, "little") + text.ljust(size))


def header_length(first: Bytes, *, file: str, file_size: int) -> int:
    """Bytes before the frames, from the first 8 bytes of a file of `file_size` bytes."""
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    region = LENGTH_BYTES + length
    if len(first) < LENGTH_BYTES or region > file_size or length > HEADER_BYTES_MAX:
        raise CorruptionError(
            "the header's length is impossible", file=file, offset=0,
            expected=f"within the file's {file_size} bytes and at most {HEADER_BYTES_MAX}",
            found=length,
        )  # fmt: skip
    return region


def parse_header(region: Bytes, *, file: str, file_size: int) -> ArchiveHeader:
    """Read the bytes before the frames of a file of `file_size` bytes."""
    data = bytes(region)
    check_own_digest(data, file)
    members = parse_members(data, file)
    if members.keys() != _KEYS:
        raise wrong_header("members of the header", file, sorted(_KEYS), sorted(members))
    label, digests = parse_sealed_label(members[METADATA_KEY], ARCHIVE, file)
    specs = _specs(members["tensors"], file)
    layout = possible_layout(specs, label, file)
    if len(digests) != len(specs):
        raise wrong_header("the list of digests is wrong", file, len(specs), len(digests))
    base, pieces = _base(members["base"], file), _pieces(members["pieces"], file)
    check_spelling(build_header(specs, label, digests, base, pieces), data, file)
    count = sum(-(-spec.nbytes // PIECE_BYTES) for spec in specs)
    if count != len(pieces):
        raise wrong_header("the list of pieces is wrong", file, count, len(pieces))
    if (base is not None) != any(piece.method == DELTA for piece in pieces):
        raise wrong_header("a base, or the use of one, is missing", file, "both or none", base)
    end = len(data) + sum(piece.bytes for piece in pieces)
    if end != file_size:
        raise CorruptionError(
            "the file's length is wrong", file=file, offset=min(end, file_size),
            expected=f"{end} bytes", found=f"{file_size} bytes",
        )  # fmt: skip
    header = ObjectHeader(layout=layout, label=label, digests=digests)
    return ArchiveHeader(object=header, base=base, pieces=pieces, frames_begin=len(data))


def _specs(rows: Any, file: str) -> list[TensorSpec]:
    found: dict[str, TensorSpec] = {}
    for row in _rows("tensors", rows, 3, file):
        name, dtype, shape = row
        if not isinstance(name, str) or name in found:
            raise wrong_header("a tensor's name", file, "one of its own", repr(name)[:200])
        check_name("tensor", name, file)
        value = {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
        found[name], _ = declared_tensor(name, value, file)
    return list(found.values())


def _pieces(rows: Any, file: str) -> tuple[Piece, ...]:
    found = []
    for size, method, check in _rows("pieces", rows, 3, file):
        good = type(size) is int and 0 < size <= 2 * PIECE_BYTES
        good = good and type(method) is int and method in (PLAIN, PACKED, DELTA)
        if not good or not isinstance(check, str) or not _CHECK.fullmatch(check):
            row = repr([size, method, check])[:200]
            raise wrong_header("a piece is declared wrongly", file, "bytes, method, check", row)
        found.append(Piece(size, method, check))
    return tuple(found)


def _base(value: Any, file: str) -> tuple[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() != {"digest", "write"}:
        raise wrong_header("the base is named wrongly", file, "digest, write", repr(value)[:200])
    digest, write = value["digest"], value["write"]
    if not is_digest(digest) or not isinstance(write, str) or not _WRITE_ID.fullmatch(write):
        raise wrong_header("the base is named wrongly", file, "digest, write", repr(value)[:200])
    return digest, write


def _rows(what: str, rows: Any, length: int, file: str) -> list[list[Any]]:
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and len(row) == length for row in rows
    ):
        raise wrong_header(f"{what} of the header", file, f"rows of {length}", repr(rows)[:200])
    return rows
