"""The state of the disk around a sample: nothing left to write, nothing cached, what was read.

None of it needs a privilege: a file's clean pages leave the cache by advice, and whether they did
is seen from the bytes that the next read takes from the disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path


def settle() -> None:
    """Let earlier samples finish their writing: nobody pays for another's."""
    os.sync()


def drop_cache(paths: Iterable[Path]) -> None:
    """Put files out of the page cache. What somebody has mapped stays."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def bytes_read_from_disk() -> int:
    """By this process so far, direct reads and page faults included."""
    with open("/proc/self/io", encoding="ascii") as file:
        counters = dict(line.split(": ") for line in file.read().splitlines())
    return int(counters["read_bytes"])


def files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Every file, then every directory and the one that it stands in."""
    for path in files_below(directory):
        sync_file(path)
    sync_directories(directory)


def sync_directories(directory: Path) -> None:
    for path in [p for p in directory.rglob("*") if p.is_dir()]:
        sync_file(path)
    sync_file(directory)
    sync_file(directory.parent)


def fresh_directory(path: Path) -> None:
    """An empty directory, durable."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    sync_directories(path)
