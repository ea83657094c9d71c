"""Pins of the in-memory file system; see `protocol.PinFile`.

Two open pin files are two processes as far as pins go. Pinning changes no file: it is no operation
that a crash could hit.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Protocol


class PinOwner(Protocol):
    """The part of the file system that pin files stand on."""

    def pins_of(self, holder: object) -> frozenset[int] | None:
        """What an open pin file holds; None once it is closed."""

    def set_pins(self, holder: object, slots: frozenset[int] | None) -> bool:
        """Replace it, None to close; False where no pin can be had."""

    def pins_beside(self, holder: object) -> set[int]:
        """What other pin files of the same file hold."""


class MemoryPinFile:
    """See the module's docstring."""

    def __init__(self, owner: PinOwner, path: str) -> None:
        self._owner = owner
        self._path = path

    def pin(self, slots: Iterable[int]) -> bool:
        return self._owner.set_pins(self, self._held() | set(slots))

    def unpin(self, slots: Iterable[int]) -> None:
        self._owner.set_pins(self, self._held() - set(slots))

    def pinned(self, slots: Iterable[int]) -> set[int]:
        self._held()
        return self._owner.pins_beside(self) & set(slots)

    def close(self) -> None:
        self._owner.set_pins(self, None)

    def _held(self) -> frozenset[int]:
        held = self._owner.pins_of(self)
        if held is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        return held
