"""Files that are there as they were or as they are now, whenever process or machine die."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Whole and on the disk, or not at all; what it stands beside may be `*.tmp` after a death."""
    half = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with half.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
