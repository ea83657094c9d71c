"""Files of the formats safetensors and pt: hostile bytes, and files that torch writes otherwise.

Whatever the bytes are, decoding raises CorruptionError or gives what the writer would have written.
The caller compares the file's digest first; here that is left out, as if a forger had got past it.
"""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardstore.buffers import BufferPool
from shardstore.codecs import foreign, pt_archive, raw
from shardstore.errors import CorruptionError
from shardstore.format.layout import parse_header, plan_layout
from shardstore.format.placement import label_fields
from tests.support.objects import bytes_of, make_file, make_label, reseal, tensor_of

TENSORS = {
    "b": tensor_of("BF16", (3,), 1),
    "w": tensor_of("F32", (5, 7), 2),
    "none": tensor_of("F32", (0, 3), 2),
    "n": tensor_of("I64", (), 3),
}
FOREIGN = ("safetensors", "pt")


def encoded(storage_format: str, tensors: dict[str, torch.Tensor] = TENSORS) -> bytes:
    data = memoryview(make_file(tensors))
    header = parse_header(data[: 8 + int.from_bytes(data[:8], "little")], file="f")
    pieces = foreign.encode(storage_format, data, header.layout, header.label, header.digests)
    return b"".join(pieces)


def decoded(storage_format: str, data: bytes) -> dict[str, bytes]:
    pool = BufferPool()
    buffer, header = foreign.decode(storage_format, memoryview(data), pool.acquire, file="f")
    assert header.label == make_label()
    return {e.spec.name: bytes(buffer.view[e.begin : e.end]) for e in header.layout.tensors}


def digests_of(tensors: dict[str, torch.Tensor]) -> list[str]:
    layout = plan_layout(raw.specs_of(tensors, shard="s", part="p"), "s", "p")
    return raw.fill(memoryview(bytearray(layout.total_bytes)), layout, tensors)


def saved(members: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(members, stream)
    return stream.getvalue()


def labelled(tensors: dict[str, Any], digests: list[str], **changes: Any) -> bytes:
    fields: dict[str, Any] = {**label_fields(make_label(), digests, "pt"), **changes}
    return saved({"__metadata__": fields, **tensors})


@pytest.mark.req("S9")
@pytest.mark.parametrize("storage_format", FOREIGN)
def test_an_object_comes_back(storage_format: str) -> None:
    found = decoded(storage_format, encoded(storage_format))
    assert list(found) == list(TENSORS)
    assert found == {name: bytes_of(tensor) for name, tensor in TENSORS.items()}
    assert decoded(storage_format, encoded(storage_format, {})) == {}


@pytest.mark.req("S9")
def test_safetensors_are_aligned_to_their_elements() -> None:
    data = encoded("safetensors")
    begin = 8 + int.from_bytes(data[:8], "little")
    members = json.loads(data[8:begin])
    assert list(members) == ["__metadata__", *TENSORS] and begin % 8 == 0
    for name, tensor in TENSORS.items():
        assert members[name]["data_offsets"][0] % tensor.element_size() == 0


@pytest.mark.req("S11")
@given(st.data())
def test_a_changed_safetensors_file_is_refused_and_the_tensor_named(data: st.DataObject) -> None:
    good = encoded("safetensors")
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptionError):
        decoded("safetensors", bytes(bad))
    found = list(foreign.find_damage("safetensors", memoryview(bad), file="f"))
    begin = 8 + int.from_bytes(good[:8], "little")
    assert len(found) == 1 and found[0].what.startswith("tensor '") == (at >= begin)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    for storage_format in FOREIGN:
        with pytest.raises(CorruptionError):
            decoded(storage_format, data)
        for error in foreign.find_damage(storage_format, memoryview(data), file="f"):
            assert error.file == "f"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"F32"', b'"F64"'),
        (b'"F32"', b'"F33"'),
        (b'"shape":[5,7]', b'"shape":[-5,-7]'),
        (b'"data_offsets":[0,8]', b'"data_offsets":[8,0]'),
        (b'{"__metadata__"', b'{ "__metadata__"'),
        (b'"b":{', b'"w":{'),
        (b'"b":{', b'"__pad_0__":{'),
        (b"shardstore.safetensors.1", b"shardstore.raw.1"),
        (b'"none"', b'"\\u0000"'),
    ],
)
def test_headers_in_another_spelling_are_refused(old: bytes, new: bytes) -> None:
    """With a digest of their own that is right."""
    good = encoded("safetensors")
    begin = 8 + int.from_bytes(good[:8], "little")
    assert old in good[:begin]
    text = good[8:begin].replace(old, new, 1).rstrip()
    text = text.ljust(-(-len(text) // 8) * 8)
    with pytest.raises(CorruptionError):
        decoded("safetensors", reseal(len(text).to_bytes(8, "little") + text) + good[begin:])


class Code:
    """Runs something where it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path("ran").touch, ())


@pytest.mark.req("S9")
def test_no_code_in_a_pt_file_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Code()))
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    digests = digests_of(TENSORS)
    for data in (labelled({**TENSORS, "x": Code()}, digests), pickle.dumps(Code()), saved(Code())):
        with pytest.raises(CorruptionError):
            decoded("pt", data)
        pt_archive.look(data, file="f")
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data",
    [
        saved([1, 2]),
        saved(dict(TENSORS)),
        saved({"__metadata__": "x", **TENSORS}),
        labelled(TENSORS, digests_of(TENSORS)[:-1]),
        labelled(TENSORS, digests_of(TENSORS), step="7"),
        labelled(TENSORS, digests_of(TENSORS), step=7),
        labelled(TENSORS, digests_of(TENSORS), format="shardstore.safetensors.1"),
        labelled({**TENSORS, "x": 5}, [*digests_of(TENSORS), "0" * 32]),
        labelled({"a": torch.zeros(2)}, ["0" * 32]),
        labelled({3: torch.zeros(2)}, ["0" * 32]),  # type: ignore[dict-item]
        labelled({"a": torch.zeros(2, dtype=torch.complex128)}, ["0" * 32]),
        labelled({"a": torch.ones(2, 2).to_sparse()}, ["0" * 32]),
        labelled({"a": torch.zeros(1).expand(10**9, 10**9)}, ["0" * 32]),
        labelled({"__pad_0__": torch.zeros(1)}, digests_of({"a": torch.zeros(1)})),
    ],
)
def test_pt_files_that_no_store_wrote_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decoded("pt", data)


@pytest.mark.req("S11")
def test_the_damaged_tensor_of_a_pt_file_is_named_without_torch() -> None:
    good = encoded("pt")
    contents = pt_archive.look(good, file="f")
    assert contents is not None and list(contents.places) == list(TENSORS)
    assert contents.label == make_label()
    for name, (begin, end) in contents.places.items():
        assert good[begin:end] == bytes_of(TENSORS[name])
        bad = bytearray(good)
        if end == begin:
            continue
        bad[end - 1] ^= 1
        (error,) = foreign.find_damage("pt", memoryview(bad), file="f")
        assert (error.offset, f"tensor {name!r}" in error.what) == (begin, True)
    for at in range(0, len(good), 7):  # other damage may go unnamed, but is never misnamed
        bad = bytearray(good)
        bad[at] ^= 0x41
        for error in foreign.find_damage("pt", memoryview(bad), file="f"):
            assert error.offset is not None and "tensor" in error.what


@pytest.mark.req("S26")
def test_without_torch_only_pt_files_are_out_of_reach() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from shardstore.errors import MissingLibraryError\n"
        "from shardstore.fs.memory import MemoryFileSystem\n"
        "from shardstore.fsck import fsck\n"
        "from shardstore.store import Store\n"
        "fs = MemoryFileSystem()\n"
        "for step, name in enumerate(('raw', 'safetensors', 'pt')):\n"
        "    with Store.open('run', 'a', fs=fs, format=name) as store, store.begin(step) as txn:\n"
        "        before = fs.list_directory('run/objects')\n"
        "        try: txn.stage('s', 'p', {'a': np.ones(step + 1)})\n"
        "        except MissingLibraryError as error:\n"
        "            assert name == 'pt' and 'pip install' in str(error)\n"
        "            assert fs.list_directory('run/objects') == before\n"
        "        else:\n"
        "            txn.commit()\n"
        "            with store.load('s', 'p') as loaded:\n"
        "                assert loaded.numpy()['a'].sum() == step + 1\n"
        "assert fsck(fs, 'run', deep=True).clean\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
