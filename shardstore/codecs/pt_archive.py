"""Looking into a pt file without torch: whose it is, and where each tensor's bytes stand.

Contract: for naming damage and owners only, never for tensors; whatever the bytes are, the answer
is None or what they say, and nothing in them is called. The archive's table of contents must be
whole, and the pickle must agree with its checksum, before it is looked at.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import Any

from shardstore.codecs.contents import Contents
from shardstore.errors import CorruptionError
from shardstore.format.digests import Bytes
from shardstore.format.fields import parse_label
from shardstore.format.names import PT
from shardstore.format.placement import METADATA_KEY

_LOCAL_HEADER_BYTES = 30


def look(data: Bytes, *, file: str) -> Contents | None:
    """What a whole pt file holds, as far as it can be told."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        entries = {entry.filename: entry for entry in archive.infolist()}
        (pickled,) = (name for name in entries if name.endswith("/data.pkl"))
        if entries[pickled].compress_type != zipfile.ZIP_STORED:
            return None  # torch packs nothing; unpacked it could be of any size
        members = _Keys(io.BytesIO(archive.read(pickled))).load()
        label, digests = parse_label(members.pop(METADATA_KEY), PT, file)
        folder = pickled.removesuffix("data.pkl") + "data/"
        places = {
            name: _place(memoryview(data), entries[folder + key]) for name, key in members.items()
        }
    except CorruptionError:
        return None
    except Exception:
        # Archives and unpicklers raise errors of every kind over damaged bytes.
        return None
    return Contents(label=label, digests=digests, places=places)


def _place(data: memoryview, entry: zipfile.ZipInfo) -> tuple[int, int]:
    """Where an entry's bytes stand: behind its local header, a name and an extra field."""
    at = entry.header_offset + 26
    lengths = (int.from_bytes(data[at + i : at + i + 2], "little") for i in (0, 2))
    begin = entry.header_offset + _LOCAL_HEADER_BYTES + sum(lengths)
    return begin, begin + entry.file_size


class _Nothing:
    """Stands for everything that the pickle names; a tensor's is called with its storage first."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        return arguments[0] if arguments else None


class _Keys(pickle.Unpickler):
    """Rebuilds nothing: each tensor becomes the key of its storage."""

    def find_class(self, _module: str, _name: str) -> Any:
        return _Nothing()

    def persistent_load(self, pid: Any) -> Any:
        return pid[2]
