"""Replay without parsing what does not matter: a commit's `put` is read only if it is asked for.

Nearly all of a commit's record is its `put`, and of a segment's thousand commits a few are kept.
Contract: the values are those that parsing everything gives. `decode_record` cuts `put` out by the
one spelling that FORMAT.md allows and parses the whole record wherever that is not what it finds; a
`DeferredManifest` is resolved by the fold before anybody else sees it. The bytes were verified by
the frame's digest before; what is left out cannot be damaged, only wrong, and fsck parses it all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardstore.format.digests import expect_digest
from shardstore.format.manifest import Manifest, ObjectRef, Part

_decode = json.JSONDecoder().decode
_PUT, _REMOVE = b',"put":[', b',"remove":['


class DeferredRows(Sequence[Any]):
    """The rows of a `put`, parsed when they are first looked at."""

    __slots__ = ("_rows", "_text")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._rows: list[Any] | None = None

    def _parsed(self) -> list[Any]:
        if self._rows is None:
            self._rows = json.loads(self._text)
        return self._rows

    def __getitem__(self, index: Any) -> Any:
        return self._parsed()[index]

    def __len__(self) -> int:
        return len(self._parsed())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parsed())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._parsed() == list(other)

    __hash__ = None  # type: ignore[assignment]


def decode_record(record: bytes) -> Any:
    """The record's JSON value; of a commit `put` stays text until it is looked at.

    Keys are sorted and quotes in strings escaped: behind the last `,"put":[` and `,"remove":[`
    of a commit no other object follows, so both are its own.
    """
    begin, end = record.rfind(_PUT), record.rfind(_REMOVE)
    if 0 < begin < end:
        rest = _decode((record[:begin] + record[end:]).decode("ascii"))
        if isinstance(rest, dict) and rest.get("type") == "commit" and "put" not in rest:
            rest["put"] = DeferredRows(record[begin + len(_PUT) - 1 : end])
            return rest
    return json.loads(record)


class DeferredManifest(Mapping[Part, ObjectRef]):
    """The manifest of a commit that may not be kept: its parent's with `put` laid over."""

    __slots__ = ("_expect", "_parent", "_put", "_value")

    def __init__(self, parent: Manifest, put: DeferredRows, expect: str) -> None:
        self._parent: Manifest | None = parent
        self._put = put
        self._expect = expect
        self._value: dict[Part, ObjectRef] | None = None

    def resolve(self) -> dict[Part, ObjectRef]:
        """From the newest backwards: the first that puts a part is right. Once the parts found are
        all that the record's `expect` stands for, nothing older matters."""
        if self._value is not None:
            return self._value
        found: dict[Part, ObjectRef] = {}
        at: Manifest | None = self
        while isinstance(at, DeferredManifest) and at._value is None:
            before = len(found)
            for shard, part, reference in at._put:
                found.setdefault((shard, part), ObjectRef.from_json(reference))
            if len(found) > before and expect_digest(found) == self._expect:
                at = None
            else:
                at = at._parent
        for key, value in at.items() if at is not None else ():
            found.setdefault(key, value)
        self._value, self._parent = found, None
        return found

    def __getitem__(self, part: Part) -> ObjectRef:
        return self.resolve()[part]

    def __iter__(self) -> Iterator[Part]:
        return iter(self.resolve())

    def __len__(self) -> int:
        return len(self.resolve())
