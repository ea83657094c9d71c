"""Checks what no log names: files that nothing needs, and the store's own small ones.

Contract: reads only. An odd entry is a finding, of damage if the disk does not give it out, and
keeps nothing else from being checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from shardstore.format.names import (
    CATALOG_DIRECTORY,
    LOCK_FILE,
    OBJECTS_DIRECTORY,
    PINS_FILE,
    QUARANTINE_DIRECTORY,
    slot_of,
)
from shardstore.fs.protocol import FileSystem
from shardstore.fsck.findings import Finding, note, unreadable

_ADVICE = "with no writer at work move it away: what needs it makes it anew"
_UNNEEDED = "look at the disk; nothing needs this, and the next opening for writing removes it"


def check_entries(fs: FileSystem, root: str, needed: Collection[int]) -> list[Finding]:
    """Of the directory of objects, those that nothing needs."""
    directory = f"{root}/{OBJECTS_DIRECTORY}"
    found: list[Finding] = []
    count, size = 0, 0
    try:
        names = fs.list_directory(directory)
    except OSError as error:
        return [unreadable(directory, error)]
    for name in names:
        place = slot_of(name)
        if place is None:
            found.append(note("not a file of the store", f"{directory}/{name}"))
        elif place[0] not in needed:
            try:
                size += fs.stat(f"{directory}/{name}").size
                count += 1
            except OSError as error:
                lost = unreadable(f"{directory}/{name}", error, advice=_UNNEEDED)
                if not isinstance(error, FileNotFoundError):  # a writer removes such files
                    found.append(lost)
    if count:
        what = f"{count} object files ({size} bytes) that nothing needs; they are written again"
        found.append(note(what, directory))
    return found


def check_own_files(fs: FileSystem, root: str, *, pins: bool = True) -> list[Finding]:
    """Lock, pins, catalog and quarantine, where they are there; without the pins for whoever asks
    them himself."""
    found: list[Finding] = []
    names = fs.list_directory(root)

    def look(name: str, at: Callable[[str], object]) -> None:
        try:
            at(f"{root}/{name}")
        except (FileNotFoundError, PermissionError):
            return  # before the first writer, or not for us: then nothing is known of it
        except OSError as error:
            found.append(unreadable(f"{root}/{name}", error, advice=_ADVICE))

    def quarantine(directory: str) -> None:
        what = "a salvage set files aside here, as {}/REASON tells; remove them when you like"
        for name in fs.list_directory(directory):
            found.append(note(what.format(name), f"{directory}/{name}"))

    look(LOCK_FILE, fs.lock_holder)
    if pins:
        look(PINS_FILE, lambda path: fs.open_pins(path).close())
    if CATALOG_DIRECTORY in names:
        look(CATALOG_DIRECTORY, fs.list_directory)
    if QUARANTINE_DIRECTORY in names:
        look(QUARANTINE_DIRECTORY, quarantine)
    return found
