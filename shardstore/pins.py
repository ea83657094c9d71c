"""Pins: slots that readers, here or in other processes, are reading; see rule 10 of docs/design.md.

Invariants: each pinned view has an open pin file of its own, so that the writer's process sees the
views that it made itself. A reader locks first and looks at the log afterwards (`pinned_view`); the
writer un-keeps first and asks `pinned` afterwards (`slots`): whichever comes second sees the other.
A test that fails counts as a pin: a slot too many costs space, one too few costs a reader its data.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable

from shardstore.format.names import OBJECTS_DIRECTORY, PINS_FILE, slot_of
from shardstore.fs.calls import close_quietly, storage_error
from shardstore.fs.protocol import FileSystem, PinFile


def make_pins(fs: FileSystem, root: str) -> None:
    """Create the file where it is missing. Only a writer may, before it writes to any slot."""
    try:
        fs.open(f"{root}/{PINS_FILE}", "create").close()
    except FileExistsError:
        return


class Pins:
    """The pins of one session: those that it holds, and those that others hold. Any thread."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._path = f"{root}/{PINS_FILE}"
        self._mutex = threading.Lock()
        self._held: weakref.WeakSet[PinFile] = weakref.WeakSet()
        """Those of views that are gone unclosed (an interrupt came first) let go by themselves."""
        self._tester: PinFile | None = None

    def hold(self, slots: Iterable[int]) -> PinFile | None:
        """Pin slots until `let_go`; None where no lock can be had."""
        try:
            file = self._fs.open_pins(self._path)
        except (FileNotFoundError, PermissionError):  # no writer made it, or not for us
            return None
        try:
            if not file.pin(slots):
                close_quietly(file)
                return None
        except BaseException:
            close_quietly(file)
            raise
        with self._mutex:
            self._held.add(file)
        return file

    def let_go(self, file: PinFile) -> None:
        with self._mutex:
            self._held.discard(file)
        close_quietly(file)

    def pinned(self, slots: Iterable[int]) -> set[int]:
        """Those of the slots that must not be written or unlinked yet."""
        asked = set(slots)
        try:
            with self._mutex:
                if self._tester is None:
                    self._tester = self._fs.open_pins(self._path)
                return self._tester.pinned(asked)
        except FileNotFoundError:  # then nobody can have pinned anything
            return set()
        except OSError:
            return asked

    def all_pinned(self) -> set[int]:
        """Every slot that a reader pins now."""
        try:
            names = self._fs.list_directory(f"{self._root}/{OBJECTS_DIRECTORY}")
        except OSError as error:
            raise storage_error(self._fs, self._root, "listing slots", error) from error
        return self.pinned(place[0] for name in names if (place := slot_of(name)) is not None)

    def close(self) -> None:
        """Let go of everything; views that are still open can no longer be read."""
        with self._mutex:
            files = [*self._held, *([self._tester] if self._tester is not None else [])]
            self._held, self._tester = weakref.WeakSet(), None
        for file in files:
            close_quietly(file)
