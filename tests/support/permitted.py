"""What this machine allows: mounting and tracing need permissions that not every place gives.

Contract: each question is answered once, by trying; the answer is the reason of the refusal, or an
empty string. Nothing stays mounted or running.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NOT_INSTALLED = "not installed"
TOOLS = {"tmpfs": ("mount", "umount"), "ext4": ("mount", "umount", "losetup", "mkfs.ext4")}


def find(tool: str) -> str | None:
    """System tools are not on everybody's path."""
    places = [os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]
    return shutil.which(tool, path=os.pathsep.join(places))


def refusal(name: str) -> str:
    """The reason why "trace", "tmpfs" or "ext4" is not to be had, but for a tool that is missing:
    installing it is somebody's job, so the test itself complains."""
    reason = trace_refusal() if name == "trace" else mount_refusal(name)
    return "" if NOT_INSTALLED in reason else reason


@functools.cache
def trace_refusal() -> str:
    """Why system calls cannot be tampered with here."""
    if sys.platform != "linux":
        return "system calls can be traced on Linux only"
    strace = find("strace")
    if strace is None:
        return f"strace is {NOT_INSTALLED}"
    words = [strace, "-f", "-qq", "-e", "trace=none", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"tracing is not permitted here: {_last_line(done.stderr)}"
    return ""


@functools.cache
def mount_refusal(kind: str = "tmpfs") -> str:
    """Why no tmpfs, or no ext4 in a file ("ext4"), can be mounted here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "mounting needs root on Linux"
    missing = [tool for tool in TOOLS[kind] if find(tool) is None]
    if missing:
        return f"{NOT_INSTALLED}: {', '.join(missing)}"
    with tempfile.TemporaryDirectory() as directory:
        if kind == "tmpfs":
            return _try_tmpfs(directory)
        return _try_loop(Path(directory))


def _try_tmpfs(directory: str) -> str:
    words = [find("mount") or "", "-t", "tmpfs", "-o", "size=64k", "none", directory]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"mounting is not permitted here: {_last_line(done.stderr)}"
    subprocess.run([find("umount") or "", directory], check=True)
    return ""


def _try_loop(directory: Path) -> str:
    image, point = directory / "image", directory / "point"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(4 << 20)
    make = [find("mkfs.ext4") or "", "-q", "-F", str(image)]
    mount = [find("mount") or "", "-o", "loop", str(image), str(point)]
    for words in (make, mount):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"an image cannot be mounted here: {_last_line(done.stderr)}"
    subprocess.run([find("umount") or "", str(point)], check=True)
    return ""


def _last_line(text: str) -> str:
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"])[-1]
