"""The raw codec: any tensor that can be stored exactly comes back bit for bit; others are refused.

Method: random bits in every dtype and arrangement of memory; the oracle copies element by element.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardstore.buffers import Buffer
from shardstore.codecs import PIECE_BYTES, raw
from shardstore.errors import InvalidNameError, InvalidTensorError
from shardstore.format.digests import digest
from shardstore.format.layout import check_data, parse_header, plan_layout
from shardstore.loaded import LoadedObject
from tests.support.objects import (
    ARRANGEMENTS,
    DTYPES,
    arranged,
    bytes_of,
    make_file,
    tensor_of,
)

TORCH_ONLY = {"BF16", "F8_E4M3", "F8_E5M2"}


def load(data: bytearray) -> LoadedObject:
    length = 8 + int.from_bytes(data[:8], "little")
    header = parse_header(data[:length], file="f", file_size=len(data))
    check_data(header, data, file="f")
    return LoadedObject(Buffer.wrap(data), header)


def check_round_trip(tensors: dict[str, torch.Tensor]) -> None:
    loaded = load(make_file(tensors))
    assert loaded.names == tuple(tensors)
    for (name, stored), found in zip(tensors.items(), loaded.torch().values(), strict=True):
        assert (found.dtype, found.shape) == (stored.dtype, stored.shape)
        assert bytes_of(found) == bytes(loaded.raw(name)) == bytes_of(stored)


@pytest.mark.req("S9")
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_in_every_arrangement(dtype: str, arrangement: str) -> None:
    tensor = arranged(dtype, arrangement, (6, 7), 11)
    check_round_trip({"t": tensor})
    if dtype not in TORCH_ONLY:
        array = tensor.numpy()
        found = load(make_file({"t": array})).numpy()["t"]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes() == bytes_of(tensor)


@pytest.mark.req("S9")
@given(st.data())
def test_objects_of_many_tensors(data: st.DataObject) -> None:
    parts = st.tuples(
        st.sampled_from(sorted(DTYPES)),
        st.sampled_from(ARRANGEMENTS),
        st.tuples(st.integers(1, 9), st.integers(1, 9)),
        st.integers(0, 99),
    )
    tensors = [arranged(*part) for part in data.draw(st.lists(parts, max_size=5))]
    check_round_trip({f"t{index}": tensor for index, tensor in enumerate(tensors)})


@pytest.mark.req("S9")
@pytest.mark.parametrize("arrangement", ["contiguous", "transposed", "expanded", "strided"])
@pytest.mark.parametrize("shape", [(3, 200_000), (200_000, 3), (700, 800)])
def test_tensors_of_several_pieces(arrangement: str, shape: tuple[int, int]) -> None:
    tensor = arranged("F32", arrangement, shape, 5)
    assert tensor.nbytes > 2 * PIECE_BYTES or arrangement != "contiguous"
    check_round_trip({"t": tensor, "n": tensor[:, 0], "deep": tensor[None, :, None]})
    found = load(make_file({"t": tensor.numpy()})).numpy()["t"]
    assert found.tobytes() == bytes_of(tensor)


@pytest.mark.req("S9")
def test_tensors_that_share_storage_are_stored_each() -> None:
    base = tensor_of("F32", (10,), 1)
    check_round_trip({"all": base, "head": base[:6], "tail": base[3:], "again": base})


@pytest.mark.req("S9")
@pytest.mark.parametrize(
    "tensor",
    [
        torch.nn.Parameter(torch.ones(2, 3)),
        torch.ones(2, 3, requires_grad=True) * 2,
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.nn.Linear(3, 2).weight.t(),
    ],
    ids=["parameter", "grad", "conjugate", "negative", "channels last", "transposed parameter"],
)
def test_tensors_whose_bytes_are_not_plain(tensor: torch.Tensor) -> None:
    found = load(make_file({"t": tensor})).torch()["t"]
    assert torch.equal(found, tensor) and found.shape == tensor.shape
    assert found.is_contiguous() and not found.requires_grad


@pytest.mark.req("S9")
def test_big_endian_and_mapped_arrays(tmp_path: Any) -> None:
    values = np.arange(300_000, dtype="<f8").reshape(3, -1)
    values[0, 0] = np.frombuffer(b"\1\2\3\4\5\6\xf7\x7f", "<f8")[0]  # a NaN that signals
    mapped = np.memmap(tmp_path / "m", "<f8", "w+", shape=values.shape)
    mapped[:] = values
    for array in (values.astype(">f8"), values.astype(">f8").T.copy().T, mapped):
        found = load(make_file({"t": array})).numpy()["t"]
        assert found.dtype == np.dtype("<f8") and found.tobytes() == values.tobytes()


class Subclass(torch.Tensor):
    """Stands for tensors that carry more than their bytes."""


class ArraySubclass(np.ndarray):
    """Stands for arrays with units or masks."""


REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "sparse": (lambda: torch.ones(2, 2).to_sparse(), "sparse_coo", "to_dense"),
    "sparse csr": (lambda: torch.ones(2, 2).to_sparse_csr(), "sparse_csr", "to_dense"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2)]), "nested", "to_dense"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "quantized",
        "int_repr",
    ),
    "C128": (lambda: torch.ones(2, dtype=torch.complex128), "complex128", "view_as_real"),
    "complex32": (lambda: torch.empty(2, dtype=torch.complex32), "complex32", "convert"),
    "meta": (lambda: torch.ones(2, device="meta"), "meta tensor", "materialize"),
    "subclass": (
        lambda: torch.ones(2).as_subclass(Subclass),
        "test_raw_codec.Subclass",
        "torch.Tensor",
    ),
    "array subclass": (
        lambda: np.ones(2).view(ArraySubclass),
        "ArraySubclass",
        "plain numpy.ndarray",
    ),
    "masked": (
        lambda: np.ma.masked_array([1, 2], [True, False]),
        "MaskedArray",
        "plain numpy.ndarray",
    ),
    "object": (lambda: np.array([None]), "dtype object", "metadata"),
    "string": (lambda: np.array(["a"]), "dtype <U1", "metadata"),
    "new string": (lambda: np.array(["a"], np.dtypes.StringDType()), "StringDType", "metadata"),
    "bytes": (lambda: np.array([b"a"]), "dtype |S1", "blob"),
    "datetime": (lambda: np.array(["2020-01-01"], "M8[D]"), "dtype datetime64[D]", "view('i8')"),
    "timedelta": (lambda: np.array([1], "m8[s]"), "dtype timedelta64[s]", "view('i8')"),
    "structured": (lambda: np.zeros(1, [("a", "f4")]), "structured", "each field"),
    "void": (lambda: np.zeros(1, "V4"), "dtype |V4", "each field"),
    "longdouble": (lambda: np.zeros(1, np.longdouble), "dtype float128", "astype('f8')"),
    "numpy C128": (lambda: np.zeros(1, "c16"), "dtype complex128", ".real"),
    "scalar": (lambda: np.float32(1), "numpy.float32", "numpy.asarray"),
    "list": (lambda: [1.0], "builtins.list", "numpy.asarray"),
    "none": (lambda: None, "builtins.NoneType", "numpy.asarray"),
}


@pytest.mark.req("S9")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "found", "advice"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_stored_exactly_is_refused_by_name(
    make: Callable[[], Any], found: str, advice: str
) -> None:
    with pytest.raises(InvalidTensorError) as caught:
        raw.specs_of({"good": np.ones(1), "bad/one": make()}, shard="block_0", part="optim")
    message = str(caught.value)
    assert message.startswith("shard 'block_0' part 'optim' tensor 'bad/one': found ")
    assert found in message and advice in message


@pytest.mark.req("S25")
@pytest.mark.parametrize("name", ["", "x" * 1025, "a\0b", "__metadata__", "__pad_3__", "\ud800", 3])
def test_a_bad_tensor_name_is_refused_with_its_place(name: Any) -> None:
    with pytest.raises(InvalidNameError, match="shard 's' part 'p': tensor name"):
        raw.specs_of({name: np.ones(1)}, shard="s", part="p")


def test_digests_are_those_of_the_bytes_and_padding_is_zero() -> None:
    first, second = tensor_of("F32", (300, 301), 1), np.arange(5)
    tensors = {"a": first, "b": second, "c": np.ones((0, 2))}
    layout = plan_layout(raw.specs_of(tensors, shard="s", part="p"), "s", "p")
    view = memoryview(bytearray(b"\xee" * layout.total_bytes))
    digests = raw.fill(view, layout, tensors)
    expected = [bytes_of(first), second.tobytes(), b""]
    assert digests == [digest(piece) for piece in expected] == raw.digests_of(view, layout)
    assert all(not any(view[begin:end]) for begin, end in layout.pads)
    assert bytes(view[: layout.header_bytes]) == b"\xee" * layout.header_bytes
    view[layout.tensors[1].begin] ^= 1
    assert raw.digests_of(view, layout)[1] != digests[1]


def test_stored_tensors_are_copied_to_another_place() -> None:
    tensors = {"a": tensor_of("F32", (300, 301), 1), "b": tensor_of("BF16", (0,), 1)}
    loaded = load(make_file(tensors))
    layout = plan_layout(loaded.specs, "\x01" * 1000, "p")
    view = memoryview(bytearray(b"\xee" * layout.total_bytes))
    digests = raw.copy_bytes(view, layout, loaded.raw)
    assert layout != loaded.header.layout and digests == list(loaded.header.digests)
    assert digests == raw.digests_of(view, layout)
    assert all(not any(view[begin:end]) for begin, end in layout.pads)


@pytest.mark.req("S26")
def test_the_codec_imports_neither_library_before_it_is_needed() -> None:
    code = (
        "import sys, shardstore.loaded, shardstore.codecs.raw as raw\n"
        "assert not {'numpy', 'torch'} & sys.modules.keys()\n"
        "try: raw.specs_of({'a': 1}, shard='s', part='p')\n"
        "except Exception as error: assert 'builtins.int' in str(error)\n"
        "assert not {'numpy', 'torch'} & sys.modules.keys()\n"
        "import numpy; raw.specs_of({'a': numpy.ones(1)}, shard='s', part='p')\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
@pytest.mark.req("S9")
def test_tensors_on_cuda_are_copied_in_stream_order() -> None:
    tensors = {name: tensor_of("F32", (1000, 1000), 1).cuda() for name in "ab"}
    tensors["t"] = tensors["a"].t()
    for tensor in list(tensors.values())[:2]:
        tensor.add_(1)
    check_round_trip({name: tensor.cpu() for name, tensor in tensors.items()})
    loaded = load(make_file(tensors))
    assert all(bytes(loaded.raw(n)) == bytes_of(t.cpu()) for n, t in tensors.items())
