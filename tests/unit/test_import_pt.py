"""Files of torch.save, read without torch: what they hold, and what they might do.

Whatever the bytes are, reading raises ForeignFileError or gives the tensors; it calls nothing.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shardstore.errors import ForeignFileError
from shardstore.importing.contents import Contents
from shardstore.importing.readers import read_contents
from shardstore.torch import DTYPES

PEAK_BYTES = 40 << 20
"""Far above what reading small files takes, far below what they claim."""


def saved(path: Path, value: Any) -> Path:
    torch.save(value, path)
    return path


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def read_all(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    contents = read_contents(str(path))
    try:
        return {t.name: (t.spec.dtype, t.spec.shape, t.bytes()) for t in contents.tensors}
    finally:
        contents.file.close()


def archive_of(path: Path, pickled: bytes, **entries: bytes) -> Path:
    """A file like torch's with any pickle and any storages."""
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("x/data.pkl", pickled)
        for name, data in entries.items():
            made.writestr(f"x/data/{name}", data)
    return path


def made(name: str) -> torch.Tensor:
    dtype = DTYPES[name]
    if name == "BOOL":
        return torch.arange(24).reshape(4, 6) % 3 == 0
    if name == "C64":
        return torch.complex(torch.arange(24.0), -torch.arange(24.0)).reshape(4, 6)
    return torch.arange(24).reshape(4, 6).to(dtype)


@pytest.mark.req("S9", "S24")
@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_type_and_memory_layout_comes_through(tmp_path: Path, name: str) -> None:
    tensor = made(name)
    cases = {
        "plain": tensor,
        "transposed": tensor.t(),
        "row": tensor[2],
        "column": tensor[:, 3],
        "some": tensor[1:3, 2:5],
        "none": tensor[:0],
        "scalar": tensor[1, 1],
    }
    found = read_all(saved(tmp_path / "t.pt", cases))
    assert list(found) == list(cases)
    for key, case in cases.items():
        assert found[key] == (name, tuple(case.shape), bits(case)), key


def test_states_of_modules_and_optimizers(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    value = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": 7,
        "note": "as it was",
        "raw": b"\xff\x00",
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "list": [torch.zeros(1), {"deep": torch.ones(1)}],
        "type": torch.bfloat16,
        "ordered": OrderedDict(a=1.5),
    }
    path = saved(tmp_path / "all.pt", value)
    found = read_all(path)
    for name, tensor in model.state_dict().items():
        assert found[f"model.{name}"][2] == bits(tensor)
    state = optimizer.state_dict()["state"]
    assert found["optimizer.state.0.exp_avg"][2] == bits(state[0]["exp_avg"])
    assert found["list.1.deep"][1] == (1,) and found["parameter"][2] == bits(torch.ones(2))
    values = read_contents(str(path)).values
    assert values["step"] == 7 and values["note"] == "as it was" and values["raw"] == "\xff\x00"
    assert values["optimizer.param_groups.0.lr"] == 0.01 and values["type"] == "dtype BF16"
    assert values["ordered.a"] == 1.5
    assert read_all(saved(tmp_path / "one.pt", torch.arange(3)))["tensor"][1] == (3,)


def test_it_needs_no_torch(tmp_path: Path) -> None:
    path = saved(tmp_path / "t.pt", {"w": torch.arange(6.0).reshape(2, 3).t()})
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from shardstore.importing.readers import read_contents\n"
        f"(tensor,) = read_contents({str(path)!r}).tensors\n"
        "import json; print(json.dumps([tensor.spec.shape, tensor.bytes().hex()]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[3, 2], bits(torch.arange(6.0).reshape(2, 3).t()).hex()]


# ---------------------------------------------------------------------- pickles that run code


class Call:
    """Pickles into a call of anything."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.called = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.called


class Hooked:
    """Pickles into an object with state."""

    def __init__(self) -> None:
        self.value = 1


def _commands(mark: Path) -> dict[str, Any]:
    touch = f"touch {mark}"
    return {
        "system": Call(os.system, touch),
        "eval": Call(eval, f"__import__('os').system('{touch}')"),
        "exec": Call(exec, f"open({str(mark)!r}, 'w')"),
        "open": Call(open, str(mark), "w"),
        "getattr": Call(getattr, "os", "system"),
        "popen": Call(subprocess.Popen, touch, -1),
        "import": Call(__import__, "os"),
        "load": Call(torch.load, str(mark)),
        "object": Hooked(),
        "function": os.system,
        "ordered": Call(OrderedDict, [((1,), 2)]),
        "set": {1, 2},
    }


@pytest.mark.parametrize("name", sorted(_commands(Path())))
def test_pickles_that_would_run_code_are_refused(tmp_path: Path, name: str) -> None:
    mark = tmp_path / "executed"
    value = {"w": torch.ones(2), "evil": _commands(mark)[name]}
    with pytest.raises(ForeignFileError, match="nothing of it was executed") as told:
        read_contents(str(saved(tmp_path / "evil.pt", value)))
    assert not mark.exists()
    assert ("a call of" if name == "ordered" else "which is not allowed") in str(told.value)
    assert str(told.value).startswith(str(tmp_path / "evil.pt")) and "\n" not in str(told.value)


def _unicode(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


STOP = b"."
HOSTILE_PICKLES = {
    "instance": b"(cos\nsystem\no" + STOP,
    "inst": b"(ios\nsystem\n" + STOP,
    "new object": b"\x80\x02ccollections\nOrderedDict\n)\x81" + STOP,
    "extension": b"\x80\x02\x82\x01" + STOP,
    "long memo": b"\x80\x02Nr\xff\xff\xff\xff0" + STOP,
    "huge bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 60) + STOP,
    "huge string": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + STOP,
    "huge bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + STOP,
    "huge integer": b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + STOP,
    "long integer": b"\x80\x02\x8a\xff" + b"\x7f" * 255 + STOP,
    "nothing": b"",
    "no stop": b"\x80\x02}",
    "empty stack": b"\x80\x02a" + STOP,
    "no mark": b"\x80\x02}u" + STOP,
    "only a mark": b"(" + STOP,
    "unknown memo": b"\x80\x02h\x07" + STOP,
    "item for a list": b"\x80\x02]NNs" + STOP,
    "element for a dict": b"\x80\x02}Na" + STOP,
    "tuple as key": b"\x80\x02}N\x85Ns" + STOP,
    "deep tuple as key": b"\x80\x02}N" + b"\x85" * 200_000 + b"Ns" + STOP,
    "attributes for a dict": b"\x80\x02}}b" + STOP,
    "call of a string": b"\x80\x02" + _unicode("os") + b")R" + STOP,
    "not a storage": b"\x80\x02NQ" + STOP,
    "a storage that is not there": (
        b"\x80\x02(" + _unicode("storage") + b"ctorch\nFloatStorage\n" + _unicode("9")
        + _unicode("cpu") + b"K\x01tQ" + STOP
    ),
    "tensor of nothing": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R" + STOP,
    "tensor of numbers": (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x01K\x01K\x01K\x01K\x01tR" + STOP
    ),
    "a call instead of a tensor": (
        b"\x80\x02}" + _unicode("w") + b"ctorch._utils\n_rebuild_tensor_v2\ns" + STOP
    ),
    "text": b"not a pickle at all",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(HOSTILE_PICKLES))
def test_hostile_pickles(tmp_path: Path, name: str) -> None:
    path = archive_of(tmp_path / "evil.pt", HOSTILE_PICKLES[name])
    tracemalloc.start()
    try:
        with pytest.raises(ForeignFileError):
            read_contents(str(path))
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES
    finally:
        tracemalloc.stop()


def test_values_that_share_without_end_are_refused(tmp_path: Path) -> None:
    """Few bytes that describe endless trees: memory stays that of the file."""
    itself: list[Any] = []
    itself.append(itself)
    doubled: Any = {"w": 1}
    for _ in range(30):
        doubled = {"a": doubled, "b": doubled}
    long_name = "n" * 1_000_000
    named: Any = {long_name: {str(number): number for number in range(10_000)}}
    for value in (itself, doubled, named):
        path = archive_of(tmp_path / "endless.pt", pickle.dumps(value, 4))
        tracemalloc.start()
        try:
            with pytest.raises(ForeignFileError, match="nested too deep, or endless"):
                read_contents(str(path))
            assert tracemalloc.get_traced_memory()[1] < 4 * PEAK_BYTES
        finally:
            tracemalloc.stop()


# ---------------------------------------------------------------------- tensors that lie


def _tensor_pickle(
    shape: tuple[int, ...], strides: tuple[int, ...], *, offset: int = 0, count: int = 6
) -> bytes:
    """{"w": a tensor over storage 0}, as torch spells it."""

    class Writer(pickle._Pickler):  # the one in Python: it may name what is not there
        def persistent_id(self, value: Any) -> Any:
            return value.pid if isinstance(value, Storage) else None

    class Storage:
        pid = ("storage", torch.FloatStorage, "0", "cpu", count)

    class Tensor:
        def __reduce__(self) -> Any:
            arguments = (Storage(), offset, shape, strides, False, OrderedDict())
            return torch._utils._rebuild_tensor_v2, arguments

    stream = io.BytesIO()
    Writer(stream, 2).dump({"w": Tensor()})
    return stream.getvalue()


def test_a_tensor_stays_inside_of_its_storage(tmp_path: Path) -> None:
    data = struct.pack("<6f", *range(6))
    path = tmp_path / "t.pt"
    good = archive_of(path, _tensor_pickle((2, 3), (3, 1)), **{"0": data})
    assert read_all(good)["w"] == ("F32", (2, 3), data)
    for shape, strides, offset in (
        ((2, 3), (3, 1), 1),
        ((2, 3), (4, 1), 0),
        ((7,), (1,), 0),
        ((1 << 40,), (0,), 0),  # expanded: one number seen a trillion times
        ((1 << 62, 4), (0, 0), 0),
        ((2, 3), (-3, 1), 3),
        ((2,), (3, 1), 0),
        ((2, 3), (3, 1), -1),
    ):
        bad = archive_of(path, _tensor_pickle(shape, strides, offset=offset), **{"0": data})
        with pytest.raises(ForeignFileError):
            read_contents(str(bad))
    bad = archive_of(path, _tensor_pickle((7,), (1,), count=7), **{"0": data})
    with pytest.raises(ForeignFileError, match="wrong length"):
        read_contents(str(bad))


def test_many_tensors_over_one_storage_are_bounded(tmp_path: Path) -> None:
    one = torch.zeros(1000)
    tied = saved(tmp_path / "tied.pt", {"a": one, "b": one})
    assert len(read_all(tied)) == 2
    many = saved(tmp_path / "many.pt", {str(number): one for number in range(200)})
    with pytest.raises(ForeignFileError, match="more than it can hold"):
        read_contents(str(many))


# ---------------------------------------------------------------------- archives that lie


def test_archives_of_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("word/document.xml", "<xml/>")
    with pytest.raises(ForeignFileError, match="no file of torch"):
        read_contents(str(path))
    with zipfile.ZipFile(path, "w") as script:
        script.writestr("x/data.pkl", b"\x80\x02}.")
        script.writestr("x/constants.pkl", b"\x80\x02).")
    with pytest.raises(ForeignFileError, match="TorchScript, which is a program"):
        read_contents(str(path))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("x/data.pkl", bytes(100_000_000))
    with pytest.raises(ForeignFileError, match="is compressed"):
        read_contents(str(path))
    torch.save({"w": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ForeignFileError, match="from before torch"):
        read_contents(str(path))
    with zipfile.ZipFile(path, "w") as big:
        big.writestr("x/data.pkl", b"\x80\x02}.")
        big.writestr("x/byteorder", b"big")
    with pytest.raises(ForeignFileError, match="another byte order"):
        read_contents(str(path))


def test_an_archive_is_the_whole_file_and_nothing_else(tmp_path: Path) -> None:
    path = saved(tmp_path / "t.pt", {"w": torch.arange(40.0)})
    data = path.read_bytes()
    for number, changed in enumerate((
        data + b"x", data + bytes(64), b"PK\x03\x04" + data, data[:-1], data[: len(data) // 2],
        data[:30], data[:4],
    )):  # fmt: skip
        path.write_bytes(changed)
        with pytest.raises(ForeignFileError):
            read_contents(str(path))
            pytest.fail(f"case {number}")


def test_entries_do_not_overlap(tmp_path: Path) -> None:
    """A second name in the table for bytes that another entry has."""
    path = archive_of(tmp_path / "t.pt", b"\x80\x02}.", **{"0": b"a" * 64, "1": b"b" * 64})
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", at + 4)
    third = data.index(b"PK\x01\x02", second + 4)
    data[third + 42 : third + 46] = data[second + 42 : second + 46]
    path.write_bytes(data)
    with pytest.raises(ForeignFileError, match="overlaps another"):
        read_contents(str(path))


def test_flipped_bits_are_found_or_harmless(tmp_path: Path) -> None:
    path = saved(tmp_path / "t.pt", {"w": torch.arange(8.0), "n": torch.tensor(3)})
    data, before = bytearray(path.read_bytes()), read_all(path)
    found = 0
    for at in range(len(data)):
        data[at] ^= 1 << (at % 8)
        path.write_bytes(data)
        try:
            assert read_all(path) == before, f"offset {at}"
        except ForeignFileError:
            found += 1
        data[at] ^= 1 << (at % 8)
    assert found > 300


def test_files_without_checksums_say_so(tmp_path: Path) -> None:
    value = {"w": torch.arange(9.0), "part": torch.arange(9.0)[2:4]}
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(tmp_path / "t.pt", value)
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_all(path)["w"][2] == bits(value["w"])
    assert read_all(path)["part"][2] == bits(value["part"])
    (warning,) = read_contents(str(path)).warnings
    assert "was written without checksums" in warning
    assert read_contents(str(saved(path, value))).warnings == ()


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "t.pt", {"w": torch.zeros(100)})
    contents: Contents = read_contents(str(path))
    saved(path, {"w": torch.ones(101)})
    with pytest.raises(ForeignFileError, match="changed while it was imported"):
        contents.tensors[0].bytes()
