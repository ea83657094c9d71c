"""Files of torch.save, read without torch: the archive, its pickle as data, tensors as stretches.

Contract: as for every foreign file. The pickle is interpreted by `pickles` with the table below, so
that a file may hold tensors in dicts and lists, numbers and words, and nothing else. A storage has
to be as long as it is declared and agree with the archive's checksum before its bytes count.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shardstore.format.placement import DTYPE_SIZES, TensorSpec
from shardstore.importing.contents import Contents, ForeignTensor, Plain
from shardstore.importing.files import PIECE_BYTES, Advance, ForeignFile
from shardstore.importing.pickles import (
    PICKLE_BYTES_MAX,
    Attributes,
    PickleRefused,
    Rebuild,
    load,
)
from shardstore.importing.strided import gather
from shardstore.importing.zip_entries import Entry, read_entries

DEPTH_MAX = 32
LEAVES_MAX = 1_000_000
NAME_CHARACTERS_MAX = 64 << 20
"""Of all names together: values that are shared would make them endless."""
_SHARING_MAX = 4
"""Tensors may share storages, tied weights do; beyond so many times the file's size they do not."""
_WHOLE = "tensor"
"""What a file's only tensor is called that has no name."""

_UNCHECKED = "was written without checksums: whether its bytes are whole cannot be told"

_DTYPES = {
    "float64": "F64", "double": "F64", "float32": "F32", "float": "F32", "float16": "F16",
    "half": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int64": "I64", "long": "I64", "int32": "I32", "int": "I32", "int16": "I16", "short": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL", "complex64": "C64", "cfloat": "C64",
}  # fmt: skip
_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL", "ComplexFloatStorage": "C64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Type:
    """A dtype, or the type of a storage; "" where the storage has none of its own."""

    dtype: str


@dataclass(slots=True)
class _Storage:
    """A storage of the archive, sound in size; its bytes are checked when they are read."""

    file: ForeignFile
    entry: Entry
    dtype: str
    checked: bool
    """Nothing is left to compare."""

    def read(self, begin: int, view: memoryview, advance: Advance) -> None:
        """A stretch of it, after the checksum of all of it was compared."""
        if not self.checked and begin == 0 and len(view) == self.entry.size:
            crc = 0
            for at in range(0, len(view), PIECE_BYTES):
                piece = view[at : at + PIECE_BYTES]
                self.file.read_into(self.entry.begin + at, piece, advance)
                crc = zlib.crc32(piece, crc)
            self._check(crc)
            return
        if not self.checked:
            crc, end = 0, self.entry.begin + self.entry.size
            for at in range(self.entry.begin, end, PIECE_BYTES):
                crc = zlib.crc32(self.file.read(at, min(PIECE_BYTES, end - at)), crc)
            self._check(crc)
        self.file.read_into(self.entry.begin + begin, view, advance)

    def _check(self, crc: int) -> None:
        if crc != self.entry.crc:
            raise self.file.wrong(
                f"{self.entry.name!r} is damaged: its checksum is wrong",
                f"{self.entry.crc:08x}", f"{crc:08x}", "copy or save the file again",
            )  # fmt: skip
        self.checked = True


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Offset and strides in elements."""


def is_pt(head: bytes) -> bool:
    """Whether a file begins like a zip archive."""
    return head[:4] == b"PK\x03\x04"


def read(file: ForeignFile) -> Contents:
    """The tensors of a file by dotted name, in the order of its dicts."""
    entries = read_entries(file)
    pickles = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
    folder = pickles[0].removesuffix("data.pkl") if pickles else ""
    if len(pickles) != 1 or f"{folder}constants.pkl" in entries:
        kind = "TorchScript, which is a program" if pickles else "a zip archive of another kind"
        raise file.wrong(
            "this is no file of torch.save", "one data.pkl", kind, "save the tensors themselves"
        )
    order = entries.get(f"{folder}byteorder")
    if order is not None and file.read(order.begin, min(order.size, 16)) != b"little":
        raise file.wrong("its tensors are in another byte order", "little")
    value = _load(file, entries, pickles[0], folder)
    tensors: dict[str, ForeignTensor] = {}
    values: dict[str, Plain] = {}
    for name, leaf in _leaves(file, value):
        if name in tensors or name in values:
            raise file.wrong(f"two values are named {name[:200]!r} once their dicts are flattened")
        if isinstance(leaf, _Tensor):
            tensors[name] = _foreign(file, name, leaf)
        else:
            values[name] = leaf
    total = sum(tensor.spec.nbytes for tensor in tensors.values())
    if total > _SHARING_MAX * file.size:
        raise file.wrong("its tensors are more than it can hold", f"{file.size} bytes", total)
    return Contents(
        file=file, kind="pt", tensors=tuple(tensors.values()), values=values,
        warnings=() if entries[pickles[0]].crc else (f"{file.path} {_UNCHECKED}",),
    )  # fmt: skip


def _load(file: ForeignFile, entries: dict[str, Entry], pickled: str, folder: str) -> Any:
    entry = entries[pickled]
    if entry.size > PICKLE_BYTES_MAX:
        raise file.wrong("its pickle is too long", f"{PICKLE_BYTES_MAX} bytes", entry.size)
    data = file.read(entry.begin, entry.size)
    if entry.crc and zlib.crc32(data) != entry.crc:
        raise file.wrong(f"{pickled!r} is damaged: its checksum is wrong")

    storages: dict[tuple[str, str], _Storage] = {}

    def storage(pid: Any) -> _Storage:
        found = _storage(file, entries, folder, pid)
        return storages.setdefault((found.entry.name, found.dtype), found)

    try:
        return load(data, _TABLE, storage)
    except PickleRefused as refusal:
        raise file.wrong(
            f"its pickle holds {refusal}" if str(refusal).startswith(("a ", "an ", "the ", "'"))
            else f"its pickle cannot be read: {refusal}",
            advice="nothing of it was executed; save plain tensors, or use safetensors",
        ) from None  # fmt: skip


def _storage(file: ForeignFile, entries: dict[str, Entry], folder: str, pid: Any) -> _Storage:
    if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage":
        raise PickleRefused("a reference to something that is no storage")
    _, kind, key, _, count = pid
    entry = entries.get(f"{folder}data/{key}") if isinstance(key, str) else None
    if not isinstance(kind, _Type) or type(count) is not int or entry is None:
        raise PickleRefused("a storage that the file does not have")
    size = count * DTYPE_SIZES.get(kind.dtype, 1)
    if size != entry.size:
        raise file.wrong(f"storage {entry.name!r} has the wrong length", size, entry.size)
    # Torch can be told to write no checksums; that of a pickle is not zero by chance.
    return _Storage(file, entry, kind.dtype, checked=not entries[f"{folder}data.pkl"].crc)


def _tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any, _hooks: Any, *rest: Any
) -> _Tensor:
    """As torch rebuilds one: `rest` is a dtype where the storage has none, then flags."""
    if not isinstance(storage, _Storage):
        raise PickleRefused("a tensor without a storage")
    dtype, flags = storage.dtype, list(rest)
    if flags and isinstance(flags[0], _Type):
        dtype = flags.pop(0).dtype
    numbers = (offset, *shape, *strides) if isinstance(shape, tuple | list) else ()
    if not dtype or any(type(n) is not int or not 0 <= n < 2**63 for n in numbers):
        raise PickleRefused("a tensor that is described wrongly")
    if len(shape) != len(strides) or len(shape) > 64 or any(flags):
        raise PickleRefused("a tensor of an unknown kind")
    return _Tensor(storage, dtype, offset, tuple(shape), tuple(strides))


def _foreign(file: ForeignFile, name: str, tensor: _Tensor) -> ForeignTensor:
    spec = TensorSpec(name=name, dtype=tensor.dtype, shape=tensor.shape)
    size, storage = DTYPE_SIZES[tensor.dtype], tensor.storage
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
    needed = (tensor.offset + reach + 1) * size if spec.nbytes else 0
    if needed > storage.entry.size or spec.nbytes > storage.entry.size:
        raise file.wrong(
            f"tensor {name[:200]!r} is larger than its storage", f"{storage.entry.size} bytes",
            max(needed, spec.nbytes), "save a contiguous copy of it",
        )  # fmt: skip

    def fill(view: memoryview, advance: Advance) -> None:
        if not spec.nbytes:
            return
        if _is_dense(tensor):
            storage.read(tensor.offset * size, view, advance)
            return
        memory = bytearray(storage.entry.size)
        storage.read(0, memoryview(memory), lambda count: None)
        gather(view, memory, size, tensor.offset, tensor.shape, tensor.strides)
        advance(len(view))

    return ForeignTensor(spec=spec, fill=fill)


def _is_dense(tensor: _Tensor) -> bool:
    """Whether its elements stand one behind the other."""
    step = 1
    for count, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if count != 1 and stride != step:
            return False
        step *= count
    return True


def _leaves(file: ForeignFile, root: Any) -> Iterator[tuple[str, Any]]:
    """Tensors and plain values by dotted name; bounded, whatever refers to what."""
    ahead: list[tuple[str, Any, int]] = [("", root, 0)]
    seen, characters = 1, 0
    while ahead:
        name, value, depth = ahead.pop()
        if isinstance(value, dict | list | tuple):
            prefix = f"{name}." if name else ""
            keys = [str(key) for key in (value if isinstance(value, dict) else range(len(value)))]
            seen += len(keys)
            characters += sum(map(len, keys)) + len(keys) * len(prefix)
            if depth == DEPTH_MAX or seen > LEAVES_MAX or characters > NAME_CHARACTERS_MAX:
                raise file.wrong(
                    "its dicts are nested too deep, or endless", f"depth below {DEPTH_MAX} and "
                    f"{LEAVES_MAX} values at most", f"{seen} at depth {depth}",
                )  # fmt: skip
            inside = value.values() if isinstance(value, dict) else value
            pairs = zip(keys, inside, strict=True)
            ahead += [(f"{prefix}{key}", inner, depth + 1) for key, inner in pairs][::-1]
        elif isinstance(value, _Tensor):
            yield name or _WHOLE, value
        elif isinstance(value, _Type):
            yield name or _WHOLE, f"dtype {value.dtype}"
        elif value is None or isinstance(value, str | int | float):
            yield name or _WHOLE, value
        elif isinstance(value, bytes):
            yield name or _WHOLE, value.decode("latin-1")
        else:
            raise file.wrong(f"{name[:200]!r} is no tensor", "a tensor", type(value).__name__)


def _encoded(text: Any, _encoding: Any) -> bytes:
    """Bytes, as pickles of protocol 2 write them."""
    if not isinstance(text, str):
        raise PickleRefused("bytes that are described wrongly")
    return text.encode("latin-1")


def _table() -> dict[str, Any]:
    """What a pickle of torch.save may name."""
    table: dict[str, Any] = {f"torch.{name}": _Type(dtype) for name, dtype in _DTYPES.items()}
    for module in ("torch", "torch.storage"):
        table |= {f"{module}.{name}": _Type(dtype) for name, dtype in _STORAGES.items()}
        table[f"{module}.UntypedStorage"] = _Type("")
    calls: dict[str, Callable[..., Any]] = {
        "collections.OrderedDict": lambda: Attributes(),
        "torch._utils._rebuild_tensor_v2": _tensor,
        "torch._utils._rebuild_tensor_v3": _tensor,
        "torch._utils._rebuild_parameter": lambda tensor, _grad, _hooks: tensor,
        "torch.Size": tuple,
        "torch.device": lambda kind, *_index: kind,
        "_codecs.encode": _encoded,
    }
    return table | {name: Rebuild(name, call) for name, call in calls.items()}


_TABLE = _table()
