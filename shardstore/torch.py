"""Torch's side of the store: the only module that imports torch at its top.

Contract: bytes are little-endian, in C order, and bit for bit those of the tensor; views share the
memory they are made of and keep it alive. Numpy's counterpart is `codecs.numpy_side`.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from shardstore.buffers import Buffer, HostMemory
from shardstore.codecs import numpy_side, refusal

__all__ = ["DTYPES", "register_host_memory", "view"]

DTYPES = {
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
"""Torch's dtype by safetensors' name."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Bits are copied as integers: no conversion can touch them, and every one of these can be copied.
_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def describe(tensor: Any, where: str) -> tuple[str, tuple[int, ...]]:
    """Dtype name and shape of a tensor, or InvalidTensorError. `where` is for the message."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        kind = f"the tensor subclass {type(tensor).__module__}.{type(tensor).__qualname__}"
        raise refusal(where, kind, "what it adds would be lost: pass a plain torch.Tensor")
    if tensor.is_quantized:
        advice = "store .int_repr() and its scales, or .dequantize()"
        raise refusal(where, f"a quantized tensor ({tensor.dtype})", advice)
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        advice = "store .to_dense(), or indices and values as tensors of their own"
        raise refusal(where, f"a tensor without dense storage ({kind})", advice)
    if tensor.is_meta:
        raise refusal(where, "a meta tensor, which has no bytes", "materialize it first")
    name = _NAMES.get(tensor.dtype)
    if name is None:
        wide = tensor.dtype == torch.complex128
        advice = "store torch.view_as_real(...)" if wide else f"convert it to {', '.join(DTYPES)}"
        raise refusal(where, f"a tensor of dtype {tensor.dtype}", advice)
    return name, tuple(tensor.shape)


def begin_copy(tensor: torch.Tensor, memory: memoryview) -> Iterator[memoryview]:
    """Copy a tensor's bytes to `memory`; the iterator yields piece after piece when it is filled.

    A copy from an accelerator starts at once, on the current stream of its device; one within the
    host's memory is made as the iterator is advanced.
    """
    source = _bits(tensor)
    if source.numel() == 0:
        return iter(())
    if source.device.type == "cpu":
        # One thread: torch would share each small piece out to all of its threads.
        return numpy_side.begin_copy(source.numpy(), memory)
    target = _view_bits(memory, source.dtype).view(source.shape)
    target.copy_(source, non_blocking=source.is_cuda)
    copied = torch.cuda.current_stream(source.device).record_event() if source.is_cuda else None
    return _awaited(copied, memory)


def view(memory: memoryview, dtype: str, shape: tuple[int, ...], *, writable: bool) -> torch.Tensor:
    """A tensor over `memory`, which it keeps alive. Torch knows no read-only tensors: with
    `writable` false, not writing is a promise of the caller."""
    if writable and memory.readonly:
        raise ValueError("a writable tensor needs writable memory")
    if memory.nbytes == 0:
        return torch.empty(shape, dtype=DTYPES[dtype])
    return _view_bits(memory, DTYPES[dtype]).view(shape)


def _view_bits(memory: memoryview, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor over all of `memory`, which must not be empty."""
    if not memory.readonly:
        return torch.frombuffer(memory, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.frombuffer(memory, dtype=dtype)


def register_host_memory(buffer: Buffer) -> bool:
    """Page-lock a pool's buffer for CUDA, once; it stays so until the pool gives it back.

    False where there is no CUDA, where CUDA refuses, and for memory of the caller's own.
    """
    memory = buffer.memory
    if memory is None:
        return False
    if memory.registered is None:
        memory.registered = torch.cuda.is_available() and _register(memory)
    return memory.registered


def _register(memory: HostMemory) -> bool:
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(runtime.cudaHostRegister(memory.address, memory.capacity, 0)) != 0:
        return False
    unregister = weakref.finalize(memory, runtime.cudaHostUnregister, memory.address)
    unregister.atexit = False
    return True


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.view(_CARRIERS[plain.element_size()])


def _awaited(copied: Any, memory: memoryview) -> Iterator[memoryview]:
    if copied is not None:
        copied.synchronize()
    yield memory
