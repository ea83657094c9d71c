"""Numbers from a tensor's bytes in plain Python: a command that looks should not load numpy.

Contract: bytes are little-endian, dtypes have safetensors' names. Small floats are widened exactly:
BF16 is the upper half of an F32, F8_E5M2 the upper half of an F16; F8_E4M3 (no infinities, one NaN
of each sign) has a table.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence

Number = int | float | bool | complex

_CODES = {
    "F64": "d",
    "F32": "f",
    "F16": "e",
    "I64": "q",
    "I32": "i",
    "I16": "h",
    "I8": "b",
    "U64": "Q",
    "U32": "I",
    "U16": "H",
    "U8": "B",
    "BOOL": "?",
}


def decode(data: bytes | memoryview, dtype: str) -> Sequence[Number]:
    """All values of a tensor, in C order."""
    raw = bytes(data)
    match dtype:
        case "BF16":
            return decode(_upper_halves(raw, 2), "F32")
        case "F8_E5M2":
            return decode(_upper_halves(raw, 1), "F16")
        case "F8_E4M3":
            values = _e4m3_values()
            return [values[byte] for byte in raw]
        case "C64":
            pairs = iter(decode(raw, "F32"))
            return [complex(real, imaginary) for real, imaginary in zip(pairs, pairs, strict=True)]
    code = _CODES[dtype]
    return struct.unpack(f"<{len(raw) // struct.calcsize('<' + code)}{code}", raw)


def _upper_halves(raw: bytes, width: int) -> bytes:
    """Each value of `width` bytes with as many zero bytes below it."""
    wide = bytearray(2 * len(raw))
    for at in range(width):
        wide[width + at :: 2 * width] = raw[at::width]
    return bytes(wide)


@functools.cache
def _e4m3_values() -> list[float]:
    return [_e4m3(byte) for byte in range(256)]


def _e4m3(byte: int) -> float:
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = byte >> 3 & 0xF, byte & 0x7
    if exponent == 0xF and mantissa == 0x7:
        return math.nan
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def shown_number(value: Number) -> str:
    """A value for people."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def statistics(values: Sequence[Number]) -> dict[str, Number] | None:
    """Least, greatest and mean of the finite values; None for complex numbers or none at all."""
    finite = [v for v in values if not isinstance(v, complex) and math.isfinite(v)]
    if not finite:
        return None
    # Summed exactly; a mean of very large values is still one of them at most.
    mean = math.fsum(v / len(finite) for v in finite)
    return {
        "min": min(finite),
        "max": max(finite),
        "mean": mean,
        "not_finite": len(values) - len(finite),
    }
