"""Where and when a result was taken: machine, file system, versions, commit of the repository.

Nothing that names a person or a directory.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("torch", "numpy", "safetensors", "lmdb", "xxhash", "zstandard"),
    *("orbax-checkpoint", "torchsnapshot", "tensorstore"),
)


def describe(directory: Path) -> dict[str, Any]:
    kind, options = mount_of(directory.resolve(), Path("/proc/mounts").read_text())
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--", "shardstore", "trainer", "benchmarks")),
        "processor": _line("/proc/cpuinfo", "model name"),
        "processors": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "file_system": kind,
        "mount_options": options,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": _versions(),
        "load_at_start": os.getloadavg()[0],
        "variables": {
            name: os.environ[name]
            for name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "MALLOC_MMAP_THRESHOLD_")
            if name in os.environ
        },
    }


def mount_of(directory: Path, mounts: str) -> tuple[str, str]:
    """Type and options of the file system that holds a directory."""
    best, found = -1, ("unknown", "")
    for line in mounts.splitlines():
        _, point, kind, options = line.split()[:4]
        inside = directory == Path(point) or Path(point) in directory.parents
        if inside and len(point) >= best:
            best, found = len(point), (kind, options)
    return found


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _line(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return "unknown"
