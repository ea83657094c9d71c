"""Objects for tests, made by the codec, and oracles that do not use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from shardstore.codecs import raw
from shardstore.format.digests import digest
from shardstore.format.layout import ObjectLabel, build_header, plan_layout

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
ARRANGEMENTS = (
    *("contiguous", "transposed", "expanded", "strided", "0-size", "0-dim", "shared storage"),
)


def make_label(shard: str = "block_000", part: str = "params", **changes: Any) -> ObjectLabel:
    fields = {"store": "5" * 32, "shard": shard, "part": part, "step": 12, "expect": "e" * 32}
    fields |= {"txn": f"{1:016x}-{7:016x}", "write": f"{1:016x}-{9:016x}", "parent": "a" * 32}
    return ObjectLabel(**{**fields, **changes})


def make_file(tensors: Mapping[str, Any], label: ObjectLabel | None = None) -> bytearray:
    """The bytes of an object's file. What the codec leaves unwritten stays 0xEE."""
    label = label or make_label()
    specs = raw.specs_of(tensors, shard=label.shard, part=label.part)
    layout = plan_layout(specs, label.shard, label.part)
    data = bytearray(b"\xee" * layout.total_bytes)
    digests = raw.fill(memoryview(data), layout, tensors)
    data[: layout.header_bytes] = build_header(layout, label, digests)
    return data


def tensor_of(dtype: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Random bits (NaNs with payloads too), except that a bool is 0 or 1."""
    size = torch.empty(0, dtype=DTYPES[dtype]).element_size()
    if 0 in shape:
        return torch.empty(shape, dtype=DTYPES[dtype])
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, size), dtype=np.uint8)
    if dtype == "BOOL":
        bits &= 1
    return torch.from_numpy(bits.reshape(-1)).view(DTYPES[dtype]).reshape(shape)


def arranged(dtype: str, arrangement: str, shape: tuple[int, int], seed: int) -> torch.Tensor:
    """A tensor whose memory is arranged as the name says; shape may be changed for that."""
    base = tensor_of(dtype, shape, seed)
    match arrangement:
        case "transposed":
            return base.t()
        case "expanded":
            return base[:, :1].expand(shape[0], 5)
        case "strided":
            return base[::2, 1:]
        case "0-size":
            return base[:0]
        case "0-dim":
            return tensor_of(dtype, (), seed)
        case "shared storage":
            return base.view(-1)[shape[0] // 2 :]
    return base


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The oracle: element by element through Python's lists of raw bytes, in C order."""
    size = tensor.element_size()
    if tensor.numel() == 0:
        return b""
    dense = tensor.detach().clone(memory_format=torch.contiguous_format)
    return dense.reshape(-1, 1).view(torch.uint8).reshape(-1, size).numpy().tobytes()


def reseal(region: bytes) -> bytes:
    """The region with its own digest made right: what a forger or a wrong writer leaves."""
    key = b'"header":"'
    begin = region.find(key) + len(key)
    if begin < len(key):
        return region
    own = digest(region[:begin], b"0" * 32, region[begin + 32 :]).encode()
    return region[:begin] + own + region[begin + 32 :]
