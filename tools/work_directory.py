"""The directory in which a tool does its work: made empty of what an earlier call made, no more."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path


class UsageError(Exception):
    """The call is wrong; the message says what to do."""


def make_empty(
    directory: Path, option: str, *, overwrite: bool, made: Collection[str], below: Collection[str]
) -> None:
    """Make it with the directories `below`. With `overwrite` what is called as in `made` goes; all
    else stays. `option` is the flag that names the directory.

    UsageError where it is no directory, or is not empty and nothing may be removed.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{option} {directory} is not a directory: name another place")
    there = list(directory.iterdir()) if directory.exists() else []
    if there and not overwrite:
        raise UsageError(
            f"the work directory {directory} is not empty: give --overwrite to remove what an "
            f"earlier call made there, or {option} DIR for another place"
        )
    for path in there:
        if path.name in made:
            remove(path)
    for name in below:
        (directory / name).mkdir(parents=True)


def remove(path: Path) -> None:
    """A file, a link or a whole directory."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
