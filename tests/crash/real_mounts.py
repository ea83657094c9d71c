"""File systems for a test, mounted and always unmounted again: small tmpfs, ramfs, ext4 in a file.

Contract: each is a context manager that gives a directory; root is needed (`permitted` asks). An
`ImageDisk` can be stopped at an instant, as by a power cut: the kernel then sends nothing more to
its device, so that the image holds what had reached it by then, and no more. On a file system that
shares blocks the image can be cloned at an instant instead, while its writer goes on.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.permitted import find

_SHUTDOWN = 0x8004587D
_WITHOUT_JOURNAL = struct.pack("I", 2)
_CLONE = 0x40049409
_MIB = 1 << 20


def call(tool: str, *words: object) -> str:
    """Run a system tool; what it printed. Its complaint is the error's text."""
    command = [find(tool) or tool, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


@contextmanager
def mounted(kind: str, point: Path, options: str = "", source: str = "none") -> Iterator[Path]:
    """A file system at a directory, made where it is missing."""
    point.mkdir(exist_ok=True)
    call(
        "mount",
        *(["-t", kind] if kind else []),
        *(["-o", options] if options else []),
        source,
        point,
    )
    try:
        yield point
    finally:
        leave(point)


@contextmanager
def read_only(directory: Path, point: Path) -> Iterator[Path]:
    """The same files at another place, where nothing can be written."""
    point.mkdir(exist_ok=True)
    call("mount", "--bind", directory, point)
    try:
        call("mount", "-o", "remount,bind,ro", point)
        yield point
    finally:
        leave(point)


def leave(point: Path) -> None:
    """Unmount; where a file is still open, as soon as it is closed."""
    try:
        call("umount", point)
    except OSError:
        call("umount", "--lazy", point)


class ImageDisk:
    """An ext4 in a file, on a loop device; use it in a `with` block."""

    def __init__(self, directory: Path, *, mebibytes: int = 64, sector_bytes: int = 512) -> None:
        self.image, self.point = directory / "disk.img", directory / "disk"
        self._bytes, self._sector_bytes = mebibytes * _MIB, sector_bytes
        self._device = ""
        self._is_mounted = False

    def __enter__(self) -> Self:
        with self.image.open("wb") as file:
            file.truncate(self._bytes)
        self.point.mkdir(exist_ok=True)
        self._attach()
        try:
            call("mkfs.ext4", "-q", "-F", "-m", 0, "-E", "nodiscard", self._device)
            self.mount()
        except BaseException:
            self.close()
            raise
        return self

    @classmethod
    def of(cls, image: Path, point: Path) -> Self:
        """An image that is there already, mounted: its journal is replayed."""
        disk = cls(image.parent)
        disk.image, disk.point = image, point
        point.mkdir(exist_ok=True)
        disk._attach()
        try:
            disk.mount()
        except BaseException:
            disk.close()
            raise
        return disk

    def _attach(self) -> None:
        options = ["--sector-size", self._sector_bytes] if self._sector_bytes != 512 else []
        self._device = call("losetup", "--find", "--show", *options, self.image)

    def mount(self) -> None:
        call("mount", "-t", "ext4", self._device, self.point)
        self._is_mounted = True

    def unmount(self) -> None:
        call("umount", self.point)
        self._is_mounted = False

    def stop(self) -> None:
        """The power cut: the file system stops here and now, its journal as it stands."""
        descriptor = os.open(self.point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _WITHOUT_JOURNAL)
        finally:
            os.close(descriptor)

    def clone(self, target: Path) -> None:
        """The image at an instant, while its writer goes on."""
        clone_file(self.image, target)

    def close(self) -> None:
        if self._is_mounted:
            leave(self.point)
            self._is_mounted = False
        device, self._device = self._device, ""
        if device:
            call("losetup", "--detach", device)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def clone_file(source: Path, target: Path) -> None:
    """Another file of the same blocks, made at one instant; OSError where they cannot be shared."""
    with source.open("rb") as old, target.open("wb") as new:
        fcntl.ioctl(new.fileno(), _CLONE, old.fileno())


def shares_blocks(directory: Path) -> bool:
    """Whether files can be cloned here."""
    one, other = directory / "share.one", directory / "share.other"
    one.write_bytes(b"x" * 4096)
    try:
        clone_file(one, other)
    except OSError:
        return False
    finally:
        for path in (one, other):
            with suppress(FileNotFoundError):
                path.unlink()
    return True


@contextmanager
def block_sharing(directory: Path) -> Iterator[Path | None]:
    """A directory where images can be cloned: this one, or an XFS or btrfs in a file of it; None
    where neither can be made."""
    if shares_blocks(directory):
        yield directory
        return
    for kind in ("xfs", "btrfs"):
        if find(f"mkfs.{kind}") is None:
            continue
        image = directory / f"{kind}.img"
        with image.open("wb") as file:
            file.truncate(2048 * _MIB)
        point = directory / kind
        point.mkdir(exist_ok=True)
        try:
            call(f"mkfs.{kind}", "-q", image)
            call("mount", "-t", kind, "-o", "loop", image, point)
        except OSError:  # the tool is there, the kernel does not know it
            continue
        try:
            yield point if shares_blocks(point) else None
        finally:
            leave(point)
        return
    yield None
