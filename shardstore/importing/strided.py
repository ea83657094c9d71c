"""Elements of a strided view of memory, gathered in C order. Imports numpy when it is called."""

from __future__ import annotations


def gather(
    target: memoryview,
    memory: bytearray,
    element_bytes: int,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> None:
    """Fill `target`; offset and strides are in elements and inside of `memory`."""
    import numpy as np

    # Bits are copied as integers: no conversion can touch them.
    flat = np.frombuffer(memory, f"u{element_bytes}", len(memory) // element_bytes)
    steps = [stride * element_bytes for stride in strides]
    source = np.lib.stride_tricks.as_strided(flat[offset:], shape, steps, writeable=False)
    np.copyto(np.frombuffer(target, f"u{element_bytes}").reshape(shape), source)
