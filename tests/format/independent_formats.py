"""The storage formats of the second reader, written from shardstore/FORMAT.md 5.1 to 5.6 alone.

It imports nothing of shardstore. pt files are torch's, so torch loads them.
"""

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

import xxhash
import zstandard

from tests.format.independent_log import Damaged, Json, digest

PIECE_BYTES = 4_194_304
ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"), 1),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a loaded object, padding excluded."""

    name: str
    dtype: str
    shape: list[int]
    data: bytes
    digest: str


def check_label(path: Path, about: Json, reference: list[Json], uuid: str) -> None:
    """Section 5.1's table, as far as a reference can tell."""
    epoch, counter, storage_format = reference[1], reference[2], reference[6]
    if about["write"] != f"{epoch:016x}-{counter:016x}" or about["store"] != uuid:
        raise Damaged(path, 0, "write id or store is not that of the reference")
    keys = {"digests", "expect", "format", "parent", "part", "shard", "step", "store", "txn"}
    if about.keys() - {"header"} != keys | {"write"}:
        raise Damaged(path, 0, f"keys of the label: {sorted(about)}")
    if about["format"] != f"shardstore.{storage_format}.1" or len(about["step"]) != 20:
        raise Damaged(path, 0, "format or step of the label")


def safetensors_tensors(path: Path, data: bytes) -> tuple[Json, list[Tensor]]:
    """Section 5.2."""
    start = 8 + int.from_bytes(data[:8], "little")
    text = data[8:start].rstrip(b" ")
    header = json.loads(text)
    spelled = json.dumps(header, separators=(",", ":")).encode()
    if start % 8 or spelled != text or start - 8 - len(text) > 7:
        raise Damaged(path, 8, "the header is spelled differently")
    about = header.pop("__metadata__")
    if list(about) != sorted(about):
        raise Damaged(path, 8, "keys of the label are not sorted")
    own = about["header"].encode()
    if (
        data.count(own, 0, start) != 1
        or digest(data[:start].replace(own, b"0" * 32)) != own.decode()
    ):
        raise Damaged(path, 8, "digest of the header in itself")
    position = 0
    for name, row in sorted(header.items(), key=lambda item: -ITEM_BYTES[item[1]["dtype"]]):
        size = ITEM_BYTES[row["dtype"]]
        for extent in row["shape"]:
            size *= extent
        if row["data_offsets"] != [position, position + size]:
            raise Damaged(path, 8, f"{name}: its place")
        position += size
    if start + position != len(data):
        raise Damaged(path, len(data), "length")
    tensors = []
    for (name, row), expected in zip(header.items(), _digests(about), strict=True):
        begin, end = row["data_offsets"]
        raw = data[start + begin : start + end]
        tensors.append(_checked(path, Tensor(name, row["dtype"], row["shape"], raw, expected)))
    return about, tensors


def pt_tensors(path: Path, data: bytes) -> tuple[Json, list[Tensor]]:
    """Section 5.3."""
    import torch

    names = {
        **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16"},
        **{torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"},
        **{torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8"},
        **{torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8"},
        **{torch.bool: "BOOL", torch.complex64: "C64"},
    }
    loaded = torch.load(io.BytesIO(data), weights_only=True)
    if next(iter(loaded)) != "__metadata__":
        raise Damaged(path, 0, "the label is not first")
    about = loaded.pop("__metadata__")
    tensors = []
    for (name, tensor), expected in zip(loaded.items(), _digests(about), strict=True):
        storage = tensor.untyped_storage()
        if not tensor.is_contiguous() or storage.nbytes() != tensor.nbytes:
            raise Damaged(path, 0, f"{name} shares its storage")
        raw = bytes(storage)
        shape = list(tensor.shape)
        tensors.append(_checked(path, Tensor(name, names[tensor.dtype], shape, raw, expected)))
    return about, tensors


def archive_tensors(
    path: Path, data: bytes, base: Json, others: dict[str, Tensor]
) -> tuple[Json, list[Tensor]]:
    """Section 5.6; `others` are the tensors of the base."""
    start = 8 + int.from_bytes(data[:8], "little")
    text = data[8:start].rstrip(b" ")
    header = json.loads(text)
    spelled = json.dumps(header, separators=(",", ":")).encode()
    if start % 8 or spelled != text or start - 8 - len(text) > 7:
        raise Damaged(path, 8, "the header is spelled differently")
    about = header["__metadata__"]
    if list(header) != ["__metadata__", "base", "tensors", "pieces"] or list(about) != sorted(
        about
    ):
        raise Damaged(path, 8, "the header's members")
    own = about["header"].encode()
    if digest(data[:start].replace(own, b"0" * 32)) != own.decode():
        raise Damaged(path, 8, "digest of the header in itself")
    if header["base"] != base or (base is not None) != any(m == 2 for _, m, _ in header["pieces"]):
        raise Damaged(path, 8, "base")
    rows, tensors, at = iter(header["pieces"]), [], start
    for (name, dtype, shape), expected in zip(header["tensors"], _digests(about), strict=True):
        size, raw = ITEM_BYTES[dtype] * math.prod(shape), b""
        while len(raw) < size:
            length, method, check = next(rows)
            frame, at = data[at : at + length], at + length
            if xxhash.xxh3_64_hexdigest(frame) != check:
                raise Damaged(path, at - length, f"piece of {name}")
            piece = min(PIECE_BYTES, size - len(raw))
            other = b""
            if method == 2:
                near = others[name]
                assert (near.dtype, near.shape) == (dtype, shape)
                other = near.data[len(raw) : len(raw) + piece]
            raw += _unpacked(
                frame, method, 4 if dtype == "C64" else ITEM_BYTES[dtype], piece, other
            )
        tensors.append(_checked(path, Tensor(name, dtype, shape, raw, expected)))
    if at != len(data) or next(rows, None) is not None:
        raise Damaged(path, at, "frames and tensors do not end together")
    return about, tensors


def _unpacked(frame: bytes, method: int, width: int, size: int, other: bytes) -> bytes:
    if method == 0:
        assert len(frame) == size
        return frame
    assert zstandard.get_frame_parameters(frame).content_size == size
    content = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    planes = [content[i * size // width : (i + 1) * size // width] for i in range(width)]
    plain = bytes(byte for element in zip(*planes, strict=True) for byte in element)
    if method == 1:
        return plain
    return bytes(mine ^ theirs for mine, theirs in zip(plain, other, strict=True))


def _digests(about: Json) -> list[str]:
    return about["digests"].split(",") if about["digests"] else []


def _checked(path: Path, tensor: Tensor) -> Tensor:
    if digest(tensor.data) != tensor.digest:
        raise Damaged(path, 0, f"tensor {tensor.name}")
    return tensor
