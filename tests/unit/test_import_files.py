"""Foreign files in general, and safetensors files in particular: diagnosed by what they hold."""

from __future__ import annotations

import json
import os
import pickle
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from shardstore import Store
from shardstore.errors import ForeignFileError
from shardstore.importing.files import ForeignFile
from shardstore.importing.readers import read_contents
from shardstore.importing.small_files import JSON_BYTES_MAX, parse_json, read_small

PEAK_BYTES = 16 << 20


def written(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def headed(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def row(begin: int, end: int, shape: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# ---------------------------------------------------------------------- what is no data


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
        (b"../../.git/annex/objects/ab/cd/SHA256E-s9--00\n", "git annex get"),
        (b"<!DOCTYPE html><html>not found</html>", "a web page"),
        (b"\n <HTML><body>", "a web page"),
        (pickle.dumps({"w": 1}), "a bare pickle, which may run code"),
        (b"\x93NUMPY\x01\x00", "a numpy array"),
        (b"GGUF\x03\x00\x00\x00", "a GGUF model"),
        (b"\x1f\x8b\x08\x00", "a gzip archive"),
        (bytes(4096), "zeros"),
        (b"just some words", "text: b'just some words'"),
        (b"\x00\x01\x02\x03", "bytes of an unknown kind"),
    ],
)
def test_the_content_says_what_a_file_is(tmp_path: Path, data: bytes, words: str) -> None:
    for name in ("model.safetensors", "model.pt", "model.bin"):
        path = written(tmp_path / name, data)
        with pytest.raises(ForeignFileError, match=words) as told:
            read_contents(path)
        assert str(told.value).startswith(f"{path}: ")


def test_the_name_does_not_matter(tmp_path: Path) -> None:
    data = safetensors.numpy.save({"w": np.arange(3, dtype="f4")})
    contents = read_contents(written(tmp_path / "model.pt", data))
    assert contents.kind == "safetensors" and contents.tensors[0].name == "w"


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe would be waited for, a device never ends."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
    for name in ("pipe", "socket"):
        with pytest.raises(ForeignFileError, match="a pipe, device or socket"):
            ForeignFile(str(tmp_path / name))
    with pytest.raises(ForeignFileError, match="a pipe, device or socket"):
        ForeignFile("/dev/zero")
    with pytest.raises(ForeignFileError, match="a directory"):
        ForeignFile(str(tmp_path))


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    inside = tmp_path / "run"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (inside / "there").write_bytes(b"{}")
    (inside / "out").symlink_to(tmp_path / "secret")
    (inside / "up").symlink_to("../secret")
    (inside / "in").symlink_to("there")
    for name in ("out", "up"):
        with pytest.raises(ForeignFileError, match="a link leads out of"):
            ForeignFile(str(inside / name), within=str(inside))
    assert ForeignFile(str(inside / "in"), within=str(inside)).size == 2


def test_small_files_are_small_and_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(JSON_BYTES_MAX + 1)
    with pytest.raises(ForeignFileError, match="too long"):
        read_small(str(path))
    for data in (b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1} x'):
        with pytest.raises(ForeignFileError, match="not JSON"):
            parse_json(written(path, data), data)


# ---------------------------------------------------------------------- safetensors


def test_a_file_of_every_kind_of_tensor(tmp_path: Path) -> None:
    tensors = {
        "w": np.arange(12, dtype="f4").reshape(3, 4),
        "n": np.array(5, dtype="i8"),
        "none": np.zeros((0, 3), dtype="f2"),
    }
    data = safetensors.numpy.save(tensors, metadata={"made": "here"})
    contents = read_contents(written(tmp_path / "m.safetensors", data))
    found = {t.name: (t.spec.shape, t.bytes()) for t in contents.tensors}
    assert found == {name: (array.shape, array.tobytes()) for name, array in tensors.items()}
    assert contents.metadata == {"made": "here"}


def test_a_raw_object_of_a_store_comes_without_its_padding(tmp_path: Path) -> None:
    array = np.arange(5, dtype="f4")
    with Store.open(tmp_path / "run", "a") as store, store.begin(1) as txn:
        txn.stage("s", "p", {"w": array})
        txn.commit()
    (path,) = (tmp_path / "run" / "objects").glob("*.raw")
    (tensor,) = read_contents(str(path)).tensors
    assert tensor.name == "w" and tensor.bytes() == array.tobytes()


HOSTILE = {
    "length beyond the file": headed({}, length=1 << 20),
    "length of everything": headed({}, length=2**64 - 1),
    "length beyond all headers": headed({}, length=200_000_000),
    "no JSON": headed(b"{nonsense}"),
    "JSON with a tail": headed(b"{} {}"),
    "not UTF-8": headed(b'{"\xff": 1}'),
    "too deep": headed(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "twice": headed(b'{"w":%s,"w":%s}' % ((json.dumps(row(0, 4, [1])).encode(),) * 2), bytes(4)),
    "overlap": headed({"a": row(0, 8, [2]), "b": row(4, 12, [2])}, bytes(12)),
    "the same place": headed({"a": row(0, 8, [2]), "b": row(0, 8, [2])}, bytes(8)),
    "hole": headed({"a": row(0, 4, [1]), "b": row(8, 12, [1])}, bytes(12)),
    "late begin": headed({"a": row(4, 8, [1])}, bytes(8)),
    "trailing bytes": headed({"a": row(0, 4, [1])}, bytes(5)),
    "bytes of nothing": headed({}, bytes(5)),
    "cut off": headed({"a": row(0, 4, [1])}, bytes(3)),
    "beyond the file": headed({"a": row(0, 1 << 40, [1 << 38])}, bytes(8)),
    "end before begin": headed({"a": row(8, 4, [1])}, bytes(8)),
    "negative": headed({"a": row(-4, 0, [1])}, bytes(4)),
    "wrong size": headed({"a": row(0, 4, [2])}, bytes(4)),
    "overflowing shape": headed({"a": row(0, 0, [2**62, 2**62, 4])}),
    "shape of text": headed({"a": row(0, 4, ["1"])}, bytes(4)),
    "shape of truth": headed({"a": row(0, 4, [True])}, bytes(4)),
    "shape of fractions": headed({"a": row(0, 4, [1.0])}, bytes(4)),
    "no shape": headed({"a": row(0, 4, None)}, bytes(4)),
    "unknown type": headed({"a": row(0, 4, [1], "F99")}, bytes(4)),
    "type of a list": headed({"a": row(0, 4, [1], ["F32"])}, bytes(4)),
    "three offsets": headed({"a": {**row(0, 4, [1]), "data_offsets": [0, 4, 8]}}, bytes(4)),
    "extra key": headed({"a": {**row(0, 4, [1]), "code": "x"}}, bytes(4)),
    "not an object": headed({"a": 1}),
    "metadata of numbers": headed({"__metadata__": {"a": 1}}),
    "metadata of a list": headed({"__metadata__": [1]}),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_headers(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "m.safetensors", HOSTILE[name])
    tracemalloc.start()
    try:
        with pytest.raises(ForeignFileError) as told:
            read_contents(path)
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES
    finally:
        tracemalloc.stop()
    assert ("the header's length is impossible" in str(told.value)) is name.startswith("length")
    assert len(str(told.value)) < 1500 + len(path) and "\n" not in str(told.value)


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_any_bytes_are_refused_or_read(tmp_path_factory: Any, data: bytes, length: int) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    for whole in (data, length.to_bytes(8, "little") + b"{" + data, b"PK\x03\x04" + data):
        try:
            contents = read_contents(written(path, whole))
        except ForeignFileError:
            continue
        assert sum(t.spec.nbytes for t in contents.tensors) <= len(whole)
