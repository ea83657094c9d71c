"""What may travel with a commit beside tensors: JSON that reads back exactly, and small blobs."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from shardstore.errors import InvalidTensorError
from shardstore.format.digests import canonical_json
from shardstore.format.names import check_data_name

METADATA_BYTES_MAX = 1024 * 1024
METADATA_DEPTH_MAX = 64
"""Deeper ones could be written on a shallow stack and not be read on a deep one."""
BLOBS_BYTES_MAX = 1024 * 1024


def check_metadata(metadata: Mapping[str, Any]) -> Any:
    """A copy that reads back exactly, or InvalidTensorError naming the offending place."""
    if not isinstance(metadata, dict):
        raise InvalidTensorError(f"metadata is a {type(metadata).__name__}, expected a dict")
    _check_json(metadata, "metadata")
    try:
        encoded = canonical_json(metadata)
    except ValueError as error:  # an integer beyond what Python reads back
        raise InvalidTensorError(f"metadata cannot be written as JSON: {error}") from error
    if len(encoded) > METADATA_BYTES_MAX:
        raise InvalidTensorError(
            f"metadata is {len(encoded)} bytes of JSON, at most {METADATA_BYTES_MAX} are allowed; "
            "stage what is large as a part"
        )
    return json.loads(encoded)


def _check_json(value: Any, place: str, depth: int = 0) -> None:
    if depth > METADATA_DEPTH_MAX:
        raise InvalidTensorError(
            f"metadata is nested more than {METADATA_DEPTH_MAX} deep at {place[:100]}...; "
            "flatten it"
        )
    if isinstance(value, dict):
        for key, inner in value.items():
            if type(key) is not str:
                raise InvalidTensorError(f"{place} has the key {key!r}, expected strings")
            _check_json(inner, f"{place}[{key!r}]", depth + 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check_json(inner, f"{place}[{index}]", depth + 1)
    elif value is not None and type(value) not in (str, int, float, bool):
        raise InvalidTensorError(
            f"{place} is a {type(value).__name__}, expected JSON: dict, list, str, int, float, "
            "bool or None"
        )


def encode_blobs(blobs: Mapping[str, bytes]) -> dict[str, str]:
    """Blobs as they stand in a record, or InvalidTensorError."""
    if not isinstance(blobs, Mapping):
        raise InvalidTensorError(f"blobs are a {type(blobs).__name__}, expected a dict")
    total = 0
    for name, blob in blobs.items():
        check_data_name("blob", name)
        if not isinstance(blob, bytes | bytearray | memoryview):
            raise InvalidTensorError(f"blob {name!r} is a {type(blob).__name__}, expected bytes")
        total += memoryview(blob).nbytes
    if total > BLOBS_BYTES_MAX:
        raise InvalidTensorError(
            f"blobs are {total} bytes in all, at most {BLOBS_BYTES_MAX} are allowed; stage what is "
            "large as a part"
        )
    return {name: base64.b64encode(bytes(blob)).decode("ascii") for name, blob in blobs.items()}
