"""What checks of all storage formats have in common: the length of the file, and how it ends.

Contract: `pieces.FileCheck`. Findings reach the common list at the end of each object, so that they
stand in the order of the objects; what the disk does not give out is the only finding of its
object. What the system refuses ends the check: `fail` raises it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardstore.fsck.findings import Finding, Wanted, damage, unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How objects are checked."""

    uuid: str | None
    """The store's, where it is known."""
    deep: bool
    against_itself: bool = False
    """Because nothing can be said about which object should be there."""


class ObjectCheck:
    """One object. Subclasses say what they want, and look at it."""

    def __init__(
        self,
        wanted: Wanted,
        path: str,
        rules: Rules,
        advance: Callable[[int], None],
        found: list[tuple[Wanted, Finding]],
    ) -> None:
        self.wanted = wanted
        self.path = path
        self.rules = rules
        self.is_whole = rules.deep or wanted.whole
        """Every byte is looked at."""
        self.wants = 0
        self.size = 0
        self._advance = advance
        self._found = found
        self._own: list[Finding] = []
        self._at = 0
        self._lost: Finding | None = None

    def begin(self, size: int) -> None:
        expected, self.size = self.wanted.reference.size, size
        if size != expected and not self.rules.against_itself:
            self.add(damage("the file's length is wrong", self.path, min(size, expected),
                            expected=f"{expected} bytes", found=f"{size} bytes"))  # fmt: skip
        self._begin()

    def take(self, piece: memoryview) -> None:
        at, self._at = self._at, self._at + len(piece)
        if self.is_whole:
            self._advance(len(piece))
        self._take(at, piece)

    def cut_off(self, at: int) -> None:
        self.stop(damage("the file was cut off while it was read", self.path, at,
                         expected=f"{self.size} bytes", found=f"{at} bytes"))  # fmt: skip

    def fail(self, error: OSError) -> None:
        self._lost = self._lost or unreadable(self.path, error)
        self.wants = 0

    def end(self) -> None:
        if self._lost is None:
            self._end()
        else:
            self._own = [self._lost]
        self._found += [(self.wanted, self.wanted.about(finding)) for finding in self._own]

    def add(self, *findings: Finding) -> None:
        self._own += findings

    def stop(self, finding: Finding) -> None:
        """The last that can be said about this object."""
        self.add(finding)
        self.wants = 0

    def _begin(self) -> None:
        """Say in `wants` what is wanted first; `size` is known."""
        raise NotImplementedError

    def _take(self, at: int, piece: memoryview) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        """What can be said only when everything was taken."""
