"""What a foreign file is, told by its content and not by its name, and what it holds."""

from __future__ import annotations

import json
from typing import Any

from shardstore.importing import pt_file, safetensors_file
from shardstore.importing.contents import Contents
from shardstore.importing.files import ForeignFile, check_data, shown, unknown

JSON_BYTES_MAX = 4 << 20
_WANTED = "a safetensors file or one of torch.save"


def read_contents(path: str, *, within: str | None = None) -> Contents:
    """A .pt or .safetensors file; closed until its tensors are read."""
    file = ForeignFile(path, within=within)
    try:
        head = file.head()
        check_data(file, head)
        if pt_file.is_pt(head):
            return pt_file.read(file)
        if safetensors_file.is_safetensors(head):
            return safetensors_file.read(file)
        raise unknown(file, head, _WANTED)
    finally:
        file.close()


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
