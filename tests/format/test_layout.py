"""The layout of objects: places, headers, damage.

Goal: a file made from a layout is what FORMAT.md says and what other readers expect, and no damage
gets past reading. Method: whole files in memory; safetensors' reader as the witness; every byte
flipped. `test_headers` is about hostile headers.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from shardstore.errors import CorruptionError, InvalidTensorError
from shardstore.format.digests import digest
from shardstore.format.layout import (
    DTYPE_SIZES,
    DataCheck,
    ObjectHeader,
    TensorSpec,
    build_header,
    check_data,
    find_damage,
    header_length,
    object_digest,
    parse_header,
    plan_layout,
)
from tests.support.objects import DTYPES, bytes_of, make_file, make_label, tensor_of

NUMPY_HAS = [name for name in DTYPES if name not in ("BF16", "F8_E4M3", "F8_E5M2")]
ODD_NAMES = ["a/b", "../x", "0.weight", "häß→😀", "q\"u\\o'te", "\x01\n\t", "x" * 1024, "header"]

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
specs = st.lists(
    st.builds(
        TensorSpec,
        name=names.filter(lambda n: len(n.encode()) <= 1024 and not n.startswith("__")),
        dtype=st.sampled_from(sorted(DTYPE_SIZES)),
        shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ),
    unique_by=lambda spec: spec.name,
    max_size=6,
)


def read(data: bytes | bytearray) -> ObjectHeader:
    """Reads a file as the store does: length, header, size, data."""
    length = header_length(data[:8], file="f", file_size=len(data))
    header = parse_header(data[:length], file="f", file_size=len(data))
    check_data(header, data, file="f")
    return header


@given(specs)
def test_tensors_stand_in_order_aligned_and_without_holes(found: list[TensorSpec]) -> None:
    layout = plan_layout(found, "s", "p")
    assert layout.specs == tuple(found)
    assert layout.header_bytes % 4096 == layout.total_bytes % 4096 == 0
    places = [(e.begin, e.end) for e in layout.tensors]
    assert all((begin - layout.header_bytes) % 64 == 0 for begin, _ in places)
    assert places == sorted(places)
    position = layout.header_bytes
    for begin, end in sorted([*places, *layout.pads]):
        assert begin == position
        position = end
    assert position == layout.total_bytes
    assert all(0 < end - begin < 4096 for begin, end in layout.pads)


@given(specs, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.randoms())
def test_the_header_size_depends_on_names_dtypes_and_shapes_only(
    found: list[TensorSpec], step: int, count: int, draw: random.Random
) -> None:
    layout = plan_layout(found, "s", "p")
    hexes = [f"{draw.getrandbits(128):032x}" for _ in range(3 + len(found))]
    label = make_label(
        *("s", "p"), step=step, txn=f"{count:016x}-{step:016x}", write=f"{step:016x}-{count:016x}",
        store=hexes[0], expect=hexes[1], parent=hexes[2],
    )  # fmt: skip
    region = build_header(layout, label, hexes[3:])
    assert len(region) == layout.header_bytes == header_length(region, file="f", file_size=2**40)
    header = parse_header(region, file="f")
    assert (header.layout, header.label, header.digests) == (layout, label, tuple(hexes[3:]))


def test_the_header_says_what_the_format_says() -> None:
    """Pins the spelling, so that it does not change unnoticed."""
    data = make_file({"b": tensor_of("F32", (3,), 1), "a": tensor_of("I8", (2, 0), 2)})
    length = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + length].decode("ascii")
    members = json.loads(text)
    assert list(members) == ["__metadata__", "b", "a", "__pad_0__", "__pad_1__"]
    assert members["b"] == {"data_offsets": [0, 12], "dtype": "F32", "shape": [3]}
    assert members["a"] == {"data_offsets": [64, 64], "dtype": "I8", "shape": [2, 0]}
    assert members["__pad_0__"] == {"data_offsets": [12, 64], "dtype": "U8", "shape": [52]}
    assert members["__pad_1__"]["data_offsets"] == [64, 4096]
    assert members["__metadata__"] | {"header": ""} == {
        "digests": f"{digest(data[4096:4108])},{digest(b'')}",
        "expect": "e" * 32,
        "format": "shardstore.raw.1",
        "header": "",
        "parent": "a" * 32,
        "part": "params",
        "shard": "block_000",
        "step": "00000000000000000012",
        "store": "5" * 32,
        "txn": "0000000000000001-0000000000000007",
        "write": "0000000000000001-0000000000000009",
    }
    own = members["__metadata__"]["header"]
    assert own == digest(bytes(data[:4096]).replace(own.encode(), b"0" * 32))
    assert text.rstrip(" ") == json.dumps(members, separators=(",", ":"))
    assert object_digest(data[:4096]) == digest(bytes(data[:4096]))


@pytest.mark.req("S10")
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_safetensors_opens_every_dtype_and_name(tmp_path: Path, framework: str) -> None:
    dtypes = NUMPY_HAS if framework == "numpy" else list(DTYPES)
    tensors = {f"t.{dtype}": tensor_of(dtype, (3, 5), 7) for dtype in dtypes}
    tensors |= {name: tensor_of("F32", (i, 2), i) for i, name in enumerate(ODD_NAMES)}
    tensors["scalar"] = tensor_of("F64", (), 3)
    path = tmp_path / "object.raw"
    path.write_bytes(make_file(tensors, make_label("sh/ard→", 'p"art')))
    with safe_open(path, framework) as opened:
        assert {*tensors} == {k for k in opened.keys() if not k.startswith("__pad_")}  # noqa: SIM118
        assert opened.metadata()["shard"] == "sh/ard→"
        for name, tensor in tensors.items():
            found = opened.get_tensor(name)
            assert tuple(found.shape) == tuple(tensor.shape)
            same = found.tobytes() if framework == "numpy" else bytes_of(found)
            assert same == bytes_of(tensor), name
            assert framework == "numpy" or found.dtype == tensor.dtype


@pytest.mark.req("S10")
@pytest.mark.parametrize("tensors", [{}, {"e": tensor_of("F32", (0, 3), 1)}])
def test_an_object_without_data_is_a_header_alone(tmp_path: Path, tensors: dict[str, Any]) -> None:
    data = make_file(tensors)
    assert len(data) == 4096
    assert [spec.name for spec in read(data).layout.specs] == list(tensors)
    (tmp_path / "o").write_bytes(data)
    with safe_open(tmp_path / "o", "numpy") as opened:
        assert list(opened.keys()) == list(tensors)


@pytest.mark.req("S11")
def test_every_flipped_byte_is_found_in_its_place() -> None:
    tensors = {"w": tensor_of("F32", (5, 5), 1), "bias": tensor_of("BF16", (7,), 2)}
    data = make_file(tensors)
    layout = read(data).layout
    assert len(data) == 8192
    key = data.index(b'"header":"')
    for offset in range(len(data)):
        data[offset] ^= 1 << offset % 8
        with pytest.raises(CorruptionError) as caught:
            read(data)
        data[offset] ^= 1 << offset % 8
        error, message = caught.value, str(caught.value)
        assert error.file == "f" and error.offset is not None and error.found != error.expected
        hit = [e for e in layout.tensors if e.begin <= offset < e.end]
        if offset < layout.header_bytes:
            assert error.offset < layout.header_bytes
            unseen = offset < 8 or key <= offset < key + len('"header":"')
            assert unseen or "its own digest is wrong" in message
        elif hit:
            assert error.offset == hit[0].begin
            assert f"tensor {hit[0].spec.name!r} of shard 'block_000' part 'params'" in message
            assert "step 12" in message
        else:
            assert error.offset == offset and "padding" in message
    read(data)


@pytest.mark.req("S11")
def test_all_damage_is_listed_in_the_order_of_the_file() -> None:
    data = make_file({"a": tensor_of("F32", (5,), 1), "b": tensor_of("F32", (5,), 2)})
    header = read(data)
    for offset in (4096 + 70, 4096, 4096 + 30, 8191):
        data[offset] ^= 0x10
    found = [error.offset for error in find_damage(header, data, file="f")]
    assert found == [4096, 4096 + 30, 4096 + 64, 8191]


@pytest.mark.req("S11")
@pytest.mark.parametrize("size", [0, 7, 8, 4095, 4096, 4097, 8191, 8193, 12288])
def test_a_truncated_or_overlong_file_is_damage(size: int) -> None:
    data = make_file({"a": tensor_of("F32", (5,), 1)})
    header = read(data)
    cut = bytes(data[:size]).ljust(size, b"\0")
    with pytest.raises(CorruptionError):
        read(cut)
    errors = list(find_damage(header, cut, file="f"))
    assert [error.offset for error in errors] == [min(size, 8192)]
    assert "8192 bytes" in str(errors[0]) and f"{size} bytes" in str(errors[0])


def test_what_no_file_could_hold_is_refused() -> None:
    for shape in [(2**40, 2**30), (2**40, 2**40, 0)]:
        with pytest.raises(InvalidTensorError, match="'big'"):
            plan_layout([TensorSpec(name="big", dtype="F32", shape=shape)], "s", "p")


@pytest.mark.req("S11")
@given(st.lists(st.integers(0, 12288), max_size=4), st.sets(st.integers(4096, 12287), max_size=4))
def test_how_a_file_arrives_changes_nothing_that_is_found(
    cuts: list[int], spoilt: set[int]
) -> None:
    data = make_file({"a": tensor_of("F32", (5,), 1), "b": tensor_of("U8", (5000,), 2),
                      "none": tensor_of("F32", (0,), 3)})  # fmt: skip
    header = read(data)
    for offset in spoilt:
        data[offset] ^= 0x10
    expected = [str(error) for error in find_damage(header, data, file="f")]
    check, view = DataCheck(header, file="f"), memoryview(bytes(data))
    found = []
    for begin, end in pairwise(sorted({0, len(data), *cuts})):
        found += [str(error) for error in check.feed(begin, view[begin:end])]
    assert found == expected and bool(found) == bool(spoilt)
