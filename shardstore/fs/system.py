"""Which implementation of the seam this system gets, and the machine's memory.

Linux gets `posix`. Anything else gets `portable`, whatever of Linux's calls it may have under the
same names: they have been tried on Linux only.
"""

from __future__ import annotations

import os
import sys

from shardstore.fs.protocol import FileSystem

_MEMORY_UNKNOWN = 8 << 30


def local_file_system() -> FileSystem:
    """The file system that paths of this machine stand for."""
    system: str = sys.platform
    if system == "linux":
        from shardstore.fs.posix import PosixFileSystem

        return PosixFileSystem()
    from shardstore.fs.portable import PortableFileSystem

    return PortableFileSystem()


def memory_bytes() -> int:
    """The machine's memory; 8 GiB where it cannot be asked."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _MEMORY_UNKNOWN
