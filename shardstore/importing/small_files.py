"""Small foreign files of text: configurations, states, layouts."""

from __future__ import annotations

import json
from typing import Any

from shardstore.importing.files import ForeignFile, check_data, shown

JSON_BYTES_MAX = 4 << 20


def read_small(path: str, *, within: str | None = None) -> bytes:
    """All of a small file of text."""
    file = ForeignFile(path, within=within)
    try:
        if file.size > JSON_BYTES_MAX:
            raise file.wrong("it is too long", f"{JSON_BYTES_MAX} bytes at most", file.size)
        data = file.read(0, file.size)
        check_data(file, data)
        return data
    finally:
        file.close()


def parse_json(path: str, data: bytes) -> Any:
    """What stands in a file of JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        file = ForeignFile(path)
        raise file.wrong("this is not JSON", found=str(error), expected="JSON") from None


def parse_object(path: str, data: bytes) -> dict[str, Any]:
    """The one object that stands in a file of JSON."""
    value = parse_json(path, data)
    if not isinstance(value, dict):
        raise ForeignFile(path).wrong("this is not an object of JSON", "{...}", shown(value))
    return value
