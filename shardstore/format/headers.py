"""Reading the header of an object (FORMAT.md section 5).

Contract: whatever the bytes are, reading raises nothing but CorruptionError, which names the file
and the offset, and never allocates more than the file is long. A header is accepted only if
writing its content again gives the same bytes, so two spellings of one object do not exist.
`placement` plans and writes headers; `layout` checks data against them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardstore.errors import CorruptionError, InvalidNameError, InvalidTensorError
from shardstore.format.digests import DIGEST_LENGTH, Bytes
from shardstore.format.names import check_data_name
from shardstore.format.placement import (
    BLOCK_BYTES,
    DTYPE_SIZES,
    FORMAT_NAME,
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    METADATA_KEY,
    OBJECT_BYTES_MAX,
    ObjectLabel,
    ObjectLayout,
    TensorSpec,
    build_header,
    own_digest,
    own_digest_offset,
    plan_layout,
)

_PADDING = re.compile(r"__pad_[0-9]+__", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)
_WRITE_ID = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}", re.ASCII)
_FIELDS = {
    "digests": re.compile(r"([0-9a-f]{32}(,[0-9a-f]{32})*)?", re.ASCII),
    "expect": _DIGEST,
    "format": re.compile(re.escape(FORMAT_NAME)),
    "header": _DIGEST,
    "parent": _DIGEST,
    "part": re.compile(r".+", re.DOTALL),
    "shard": re.compile(r".+", re.DOTALL),
    "step": re.compile(r"[0-9]{20}", re.ASCII),
    "store": _DIGEST,
    "txn": _WRITE_ID,
    "write": _WRITE_ID,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectHeader:
    """A header region that was read and found sound in itself."""

    layout: ObjectLayout
    label: ObjectLabel
    digests: tuple[str, ...]
    """The tensors' digests, in declaration order."""


def header_length(first: Bytes, *, file: str, file_size: int) -> int:
    """Size of the header region, from the first 8 bytes of a file of `file_size` bytes."""
    if file_size < BLOCK_BYTES or len(first) < LENGTH_BYTES:
        raise CorruptionError(
            "the file is too short for an object",
            file=file,
            offset=min(file_size, len(first)),
            expected=f"{BLOCK_BYTES} bytes or more",
            found=f"{file_size} bytes",
        )
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    region = LENGTH_BYTES + length
    if length > HEADER_BYTES_MAX or region > file_size or region % BLOCK_BYTES:
        raise CorruptionError(
            "the header's length is impossible",
            file=file,
            offset=0,
            expected=f"{LENGTH_BYTES} less than a multiple of {BLOCK_BYTES}, within the "
            f"file's {file_size} bytes and at most {HEADER_BYTES_MAX}",
            found=length,
        )
    return region


def parse_header(region: Bytes, *, file: str, file_size: int | None = None) -> ObjectHeader:
    """Read a header region; with `file_size` the file's length is checked too."""
    data = bytes(region)
    length = header_length(data[:LENGTH_BYTES], file=file, file_size=len(data))
    if length != len(data):
        raise CorruptionError(
            "the header's length is wrong", file=file, offset=0, expected=len(data), found=length
        )
    _check_own_digest(data, file)
    members = _members(data, file)
    label, digests = _label(members.pop(METADATA_KEY, None), file)
    layout = _layout(members, label, file)
    if len(digests) != len(layout.tensors):
        raise _wrong("the list of digests is wrong", file, len(layout.tensors), len(digests))
    written = build_header(layout, label, digests)
    if written != data:
        pairs = enumerate(zip(written, data, strict=False))
        offset = next((i for i, (ours, theirs) in pairs if ours != theirs), 0)
        raise CorruptionError("the header is not spelled as the format says", file=file,
                              offset=offset, expected=written[offset : offset + 8],
                              found=data[offset : offset + 8])  # fmt: skip
    if file_size is not None:
        check_size(layout, file_size, file)
    return ObjectHeader(layout=layout, label=label, digests=digests)


def check_size(layout: ObjectLayout, size: int, file: str) -> None:
    """Whether a file of `size` bytes can hold the whole object, and nothing else."""
    if size != layout.total_bytes:
        raise CorruptionError(
            "the file's length is wrong",
            file=file,
            offset=min(size, layout.total_bytes),
            expected=f"{layout.total_bytes} bytes",
            found=f"{size} bytes",
        )


def _check_own_digest(data: bytes, file: str) -> None:
    begin = own_digest_offset(data)
    if begin < 0:
        raise _wrong("this is not an object's header", file, "a digest of its own", "none")
    expected, found = own_digest(data, begin), data[begin : begin + DIGEST_LENGTH]
    if expected.encode() != found:
        found_text = found.decode("ascii", "backslashreplace")
        raise CorruptionError("the header is damaged: its own digest is wrong", file=file,
                              offset=begin, expected=expected, found=found_text)  # fmt: skip


def _members(data: bytes, file: str) -> dict[str, Any]:
    try:
        members = json.loads(data[LENGTH_BYTES:].decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise _wrong("the header is not JSON", file, "one JSON object", error) from None
    if not isinstance(members, dict):
        raise _wrong("the header is not JSON", file, "one object", type(members).__name__)
    return members


def _label(metadata: Any, file: str) -> tuple[ObjectLabel, tuple[str, ...]]:
    if not isinstance(metadata, dict) or metadata.keys() != _FIELDS.keys():
        found = sorted(metadata) if isinstance(metadata, dict) else type(metadata).__name__
        raise _wrong(f"{METADATA_KEY} is wrong", file, sorted(_FIELDS), found)
    for key, pattern in _FIELDS.items():
        value = metadata[key]
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _wrong(f"{METADATA_KEY} has a bad {key!r}", file, pattern.pattern, repr(value))
    for key in ("shard", "part"):
        # An internal shard's name is refused to users only, so both are checked as parts.
        _check_name("part", metadata[key], file)
    digests = tuple(metadata["digests"].split(",")) if metadata["digests"] else ()
    plain = ("store", "shard", "part", "txn", "write", "expect", "parent")
    return ObjectLabel(step=int(metadata["step"]), **{k: metadata[k] for k in plain}), digests


def _layout(members: Mapping[str, Any], label: ObjectLabel, file: str) -> ObjectLayout:
    """The layout planned for the declared tensors, if that is where the header puts them."""
    declared = [(name, _declared(name, value, file)) for name, value in members.items()]
    # All padding is declared after all tensors, under names that no tensor may have.
    count = sum(1 for name, _ in declared if not _PADDING.fullmatch(name))
    specs = [spec for _, (spec, _) in declared[:count]]
    for spec in specs:
        _check_name("tensor", spec.name, file)
    try:
        layout = plan_layout(specs, label.shard, label.part)
    except InvalidTensorError as error:
        raise _wrong(f"the header is absurd: {error}", file, "a possible object", "none") from None
    base = layout.header_bytes
    planned: list[Any] = [(e.spec.name, e.begin - base, e.end - base) for e in layout.tensors]
    for index, (begin, end) in enumerate(layout.pads):
        planned.append((f"__pad_{index}__", begin - base, end - base))
    planned.append("the end")
    found = [*((name, *place) for name, (_, place) in declared), "the end"]
    if planned != found:
        at = next(i for i, (ours, theirs) in enumerate(zip(planned, found, strict=False))
                  if ours != theirs)  # fmt: skip
        what = "tensors overlap, leave holes or are out of order"
        raise _wrong(what, file, planned[at], found[at])
    return layout


def _declared(name: str, value: Any, file: str) -> tuple[TensorSpec, tuple[int, int]]:
    """One member of the header as spec and offsets in the data, types checked."""
    keys = {"data_offsets", "dtype", "shape"}
    if not isinstance(value, dict) or value.keys() != keys:
        raise _wrong(f"tensor {name!r} is declared wrongly", file, sorted(keys), repr(value)[:200])
    dtype, shape, place = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_SIZES:
        expected = " ".join(DTYPE_SIZES)
        raise _wrong(f"tensor {name!r} has a bad dtype", file, expected, repr(dtype)[:200])
    for what, numbers in (("shape", shape), ("place", place)):
        good = isinstance(numbers, list) and all(map(_is_count, numbers))
        if not good or (what == "place" and len(numbers) != 2):
            found = repr(numbers)[:200]
            raise _wrong(f"tensor {name!r} has a bad {what}", file, "counts", found)
    return TensorSpec(name=name, dtype=dtype, shape=tuple(shape)), (place[0], place[1])


def _is_count(value: Any) -> bool:
    """A bool is no count, though Python says so."""
    return type(value) is int and 0 <= value <= OBJECT_BYTES_MAX


def _check_name(kind: str, name: str, file: str) -> None:
    try:
        check_data_name(kind, name)
    except InvalidNameError as error:
        raise _wrong(str(error), file, "a legal name", ascii(name)[:200]) from None


def _wrong(what: str, file: str, expected: Any, found: Any) -> CorruptionError:
    return CorruptionError(what, file=file, offset=LENGTH_BYTES, expected=expected, found=found)
