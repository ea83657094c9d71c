"""What the headers of all storage formats have in common, read with suspicion.

Contract: whatever stands there, reading raises nothing but CorruptionError. `headers` and
`safetensors_file` put these together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from shardstore.errors import CorruptionError, InvalidNameError, InvalidTensorError
from shardstore.format.digests import DIGEST_LENGTH
from shardstore.format.names import FORMAT_VERSION, check_data_name
from shardstore.format.placement import (
    DTYPE_SIZES,
    LENGTH_BYTES,
    METADATA_KEY,
    OBJECT_BYTES_MAX,
    ObjectLabel,
    ObjectLayout,
    TensorSpec,
    format_name,
    own_digest,
    own_digest_offset,
    plan_layout,
)

_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)
_WRITE_ID = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}", re.ASCII)
_FIELDS = {
    "digests": re.compile(r"([0-9a-f]{32}(,[0-9a-f]{32})*)?", re.ASCII),
    "expect": _DIGEST,
    "format": re.compile(rf"shardstore\.[a-z]+\.{FORMAT_VERSION}", re.ASCII),
    "parent": _DIGEST,
    "part": re.compile(r".+", re.DOTALL),
    "shard": re.compile(r".+", re.DOTALL),
    "step": re.compile(r"[0-9]{20}", re.ASCII),
    "store": _DIGEST,
    "txn": _WRITE_ID,
    "write": _WRITE_ID,
}


def parse_members(data: bytes, file: str) -> dict[str, Any]:
    """The JSON object of a header; `data` begins with its length."""
    try:
        members = json.loads(data[LENGTH_BYTES:].decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise wrong_header("the header is not JSON", file, "one JSON object", error) from None
    if not isinstance(members, dict):
        raise wrong_header("the header is not JSON", file, "one object", type(members).__name__)
    return members


Label = tuple[ObjectLabel, tuple[str, ...]]
"""The label and the tensors' digests."""


def parse_label(metadata: Any, storage_format: str, file: str) -> Label:
    """What `placement.label_fields` wrote."""
    if not isinstance(metadata, dict) or metadata.keys() != _FIELDS.keys():
        found = sorted(metadata) if isinstance(metadata, dict) else type(metadata).__name__
        raise wrong_header(f"{METADATA_KEY} is wrong", file, sorted(_FIELDS), found)
    for key, pattern in _FIELDS.items():
        value = metadata[key]
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise wrong_header(
                f"{METADATA_KEY} has a bad {key!r}", file, pattern.pattern, repr(value)
            )
    if metadata["format"] != format_name(storage_format):
        expected = format_name(storage_format)
        raise wrong_header("another storage format", file, expected, metadata["format"])
    for key in ("shard", "part"):
        # An internal shard's name is refused to users only, so both are checked as parts.
        check_name("part", metadata[key], file)
    digests = tuple(metadata["digests"].split(",")) if metadata["digests"] else ()
    plain = ("store", "shard", "part", "txn", "write", "expect", "parent")
    return ObjectLabel(step=int(metadata["step"]), **{k: metadata[k] for k in plain}), digests


def parse_sealed_label(metadata: Any, storage_format: str, file: str) -> Label:
    """The same, beside a digest of the header that `check_own_digest` has looked at."""
    if not isinstance(metadata, dict) or not is_digest(metadata.get("header")):
        raise wrong_header(f"{METADATA_KEY} is wrong", file, "a digest of the header", "none")
    rest = {key: value for key, value in metadata.items() if key != "header"}
    return parse_label(rest, storage_format, file)


def possible_layout(specs: Sequence[TensorSpec], label: ObjectLabel, file: str) -> ObjectLayout:
    """Places in memory for tensors that a header declares, if there can be such an object."""
    try:
        return plan_layout(specs, label.shard, label.part)
    except InvalidTensorError as error:
        raise wrong_header(
            f"the header is absurd: {error}", file, "a possible object", "none"
        ) from None


def declared_tensor(name: str, value: Any, file: str) -> tuple[TensorSpec, tuple[int, int]]:
    """One member of the header as spec and offsets in the data, types checked."""
    keys = {"data_offsets", "dtype", "shape"}
    if not isinstance(value, dict) or value.keys() != keys:
        raise wrong_header(
            f"tensor {name!r} is declared wrongly", file, sorted(keys), repr(value)[:200]
        )
    dtype, shape, place = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_SIZES:
        expected = " ".join(DTYPE_SIZES)
        raise wrong_header(f"tensor {name!r} has a bad dtype", file, expected, repr(dtype)[:200])
    for what, numbers in (("shape", shape), ("place", place)):
        good = isinstance(numbers, list) and all(map(_is_count, numbers))
        if not good or (what == "place" and len(numbers) != 2):
            found = repr(numbers)[:200]
            raise wrong_header(f"tensor {name!r} has a bad {what}", file, "counts", found)
    return TensorSpec(name=name, dtype=dtype, shape=tuple(shape)), (place[0], place[1])


def check_own_digest(data: bytes, file: str) -> None:
    """A header that holds a digest of itself must agree with it."""
    begin = own_digest_offset(data)
    if begin < 0:
        raise wrong_header("this is not an object's header", file, "a digest of its own", "none")
    expected, found = own_digest(data, begin), data[begin : begin + DIGEST_LENGTH]
    if expected.encode() != found:
        found_text = found.decode("ascii", "backslashreplace")
        raise CorruptionError("the header is damaged: its own digest is wrong", file=file,
                              offset=begin, expected=expected, found=found_text)  # fmt: skip


def check_spelling(written: bytes, data: bytes, file: str) -> None:
    """A header must be what writing its content again gives."""
    if written == data:
        return
    pairs = enumerate(zip(written, data, strict=False))
    offset = next((i for i, (ours, theirs) in pairs if ours != theirs), 0)
    raise CorruptionError(
        "the header is not spelled as the format says",
        file=file,
        offset=offset,
        expected=written[offset : offset + 8],
        found=data[offset : offset + 8],
    )


def is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is_count(value: Any) -> bool:
    """A bool is no count, though Python says so."""
    return type(value) is int and 0 <= value <= OBJECT_BYTES_MAX


def check_name(kind: str, name: str, file: str) -> None:
    try:
        check_data_name(kind, name)
    except InvalidNameError as error:
        raise wrong_header(str(error), file, "a legal name", ascii(name)[:200]) from None


def wrong_header(what: str, file: str, expected: Any, found: Any) -> CorruptionError:
    return CorruptionError(what, file=file, offset=LENGTH_BYTES, expected=expected, found=found)
