"""What a foreign file holds, before any tensor's bytes are read.

A `ForeignTensor` knows its name, type and shape and fills memory when it is asked; where the bytes
come from (a stretch of a file, a strided view, a constant) is the business of whoever made it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from shardstore.format.placement import TensorSpec
from shardstore.importing.files import Advance, ForeignFile

Fill = Callable[[memoryview, Advance], None]
Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTensor:
    """One tensor to be imported; `fill` writes its bytes, little-endian and in C order."""

    spec: TensorSpec
    fill: Fill

    @property
    def name(self) -> str:
        return self.spec.name

    def renamed(self, name: str) -> ForeignTensor:
        return replace(self, spec=replace(self.spec, name=name))

    def bytes(self) -> bytes:
        """All of a small tensor."""
        data = bytearray(self.spec.nbytes)
        self.fill(memoryview(data), lambda count: None)
        return bytes(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A file of tensors that was looked at and found sound in its structure."""

    file: ForeignFile
    kind: str
    tensors: tuple[ForeignTensor, ...]
    values: Mapping[str, Plain] = field(default_factory=dict)
    """What stands beside the tensors: numbers and words, by dotted name."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """A safetensors file's own."""
    warnings: tuple[str, ...] = ()


def stretch(file: ForeignFile, spec: TensorSpec, begin: int) -> ForeignTensor:
    """A tensor that stands in a file as it will stand in the store."""

    def fill(view: memoryview, advance: Advance) -> None:
        file.read_into(begin, view, advance)

    return ForeignTensor(spec=spec, fill=fill)


def constant(spec: TensorSpec, data: bytes) -> ForeignTensor:
    """A tensor of known bytes; one byte stands for all of them."""

    def fill(view: memoryview, advance: Advance) -> None:
        if len(data) == spec.nbytes:
            view[:] = data
        else:
            for at in range(0, len(view), _FILL_BYTES):
                piece = view[at : at + _FILL_BYTES]
                piece[:] = data * len(piece)
        advance(len(view))

    assert len(data) in (1, spec.nbytes)
    return ForeignTensor(spec=spec, fill=fill)


_FILL_BYTES = 1 << 20
