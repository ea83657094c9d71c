"""Hostile headers: whatever the bytes are, reading raises CorruptionError or tells the truth.

Method: headers are changed at random or by hand and their own digest is made right again, as a
forger or a wrong writer would; what is accepted must be what the format's writer writes.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardstore.errors import CorruptionError
from shardstore.format.layout import (
    TensorSpec,
    build_header,
    header_length,
    parse_header,
    plan_layout,
)
from tests.support.objects import make_file, make_label, reseal, tensor_of


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
@example(2**64 - 1, 2**64)
@example(2**62 - 8, 2**62)
@example(4088, 4095)
@example(8184, 4096)
def test_an_impossible_header_length_is_refused(length: int, file_size: int) -> None:
    """No caller is told to read more than there is, or more than a header can be."""
    try:
        region = header_length(length.to_bytes(8, "little"), file="f", file_size=file_size)
    except CorruptionError:
        return
    assert region == length + 8 <= file_size and region % 4096 == 0 and length <= 100_000_000


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["F32", "U8", "0" * 32, "\ud800", "__pad_0__", 64, 4096]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    found = []
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            found += [(value, key), *places_in(value[key])]
    return found


def region_of(text: str) -> bytes:
    data = text.encode("ascii", "replace")
    size = -(-(8 + len(data)) // 4096) * 4096 - 8
    return reseal(size.to_bytes(8, "little") + data.ljust(size))


@pytest.mark.req("S11")
@given(st.data())
def test_a_forged_header_raises_corruption_or_says_what_was_written(data: st.DataObject) -> None:
    """JSON is changed at random and sealed again: nothing else may come out of reading."""
    tensors = {"w": tensor_of("F32", (5, 5), 1), "é": tensor_of("BF16", (0,), 2)}
    original = bytes(make_file(tensors)[:4096])
    members = json.loads(original[8:])
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places_in(members)))
        change = data.draw(st.sampled_from(["replace", "remove", "add", "reorder"]))
        if change == "replace":
            container[key] = data.draw(values)
        elif change == "remove":
            del container[key]
        elif isinstance(container, list):
            container.insert(0, data.draw(values))
        else:
            moved = data.draw(values) if change == "add" else container.pop(key)
            container["new" if change == "add" else key] = moved
        if not places_in(members):
            break
    region = region_of(json.dumps(members, separators=(",", ":")))
    try:
        header = parse_header(region, file="f")
    except CorruptionError as error:
        assert error.file == "f" and error.offset is not None
        return
    assert build_header(header.layout, header.label, header.digests) == region


@given(st.lists(st.tuples(st.integers(0, 4095), st.binary(min_size=1, max_size=3)), max_size=4))
def test_a_scribbled_header_raises_only_corruption(edits: list[tuple[int, bytes]]) -> None:
    original = bytes(make_file({"w": tensor_of("F32", (5, 5), 1)})[:4096])
    region = bytearray(original)
    for offset, piece in edits:
        region[offset : offset + len(piece)] = piece[: 4096 - offset]
    for version in (bytes(region), reseal(bytes(region))):
        try:
            header = parse_header(version, file="f")
        except CorruptionError:
            continue
        assert build_header(header.layout, header.label, header.digests) == version


HOSTILE = {
    "deep": "[" * 50_000,
    "not an object": "[1]",
    "huge number": '{"w":{"data_offsets":[0,1],"dtype":"U8","shape":[' + "9" * 5000 + "]}}",
    "nothing": "",
    "two values": "{}{}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_is_corruption(text: str) -> None:
    with pytest.raises(CorruptionError):
        parse_header(region_of(text), file="f")
    with pytest.raises(CorruptionError):
        parse_header(region_of(f'{{"x":{{"header":"{"0" * 32}"}},"y":{text}}}'), file="f")


FORGED: dict[str, tuple[str, str, str]] = {
    "overlap": ("[64,128]", "[0,64]", "overlap"),
    "hole": ("[64,128]", "[128,192]", "holes"),
    "absurd shape": ('"shape":[16]', '"shape":[999999999999999,99999]', "absurd"),
    "true for one": ('"shape":[16]', '"shape":[16,true]', "bad shape"),
    "dtype": ('"dtype":"F32"', '"dtype":"C128"', "bad dtype"),
    "newer format": ("shardstore.raw.1", "shardstore.raw.2", "bad 'format'"),
    "reserved name": ('"b":{', '"__pad_7__":{', "overlap"),
    "spaces": ('"b":{', '"b": {', "spelled"),
    "twice": ('"b":{', '"a":{', "overlap"),
    "a digest too few": ("," + "d" * 32, "", "list of digests"),
    "NUL in a name": ('"b":{', '"\\u0000":{', "NUL"),
}


@pytest.mark.req("S11")
@pytest.mark.parametrize(("old", "new", "word"), FORGED.values(), ids=FORGED)
def test_a_forged_header_is_named(old: str, new: str, word: str) -> None:
    """The header's own digest is right: only its meaning is wrong."""
    shapes = [TensorSpec(name=name, dtype="F32", shape=(16,)) for name in "ab"]
    region = build_header(plan_layout(shapes, "s", "p"), make_label("s", "p"), ["d" * 32] * 2)
    text = region[8:].decode().rstrip(" ")
    assert old in text
    with pytest.raises(CorruptionError) as caught:
        parse_header(region_of(text.replace(old, new)), file="f")
    assert "its own digest" not in str(caught.value)
    assert word in str(caught.value)
