"""Directories that appear whole or not at all.

Contract: work goes into `.NAME.partial-HOST-PID` beside the wanted directory and is renamed
when everything is synced. An existing directory that is not empty is refused unless
`overwrite`, and even then only one that an earlier call made (`owned`) is replaced; the old one
goes when the new one is in place. What a killed call left is cleared by the next.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from trainer.data.errors import DataError
from trainer.data.npyfile import sync_directory


@contextlib.contextmanager
def staged_directory(
    out: Path, *, overwrite: bool, owned: Callable[[Path], bool]
) -> Iterator[Path]:
    """Yields an empty directory that becomes `out` when the block ends without an error."""
    out = Path(os.path.abspath(out))
    partial = out.with_name(f".{out.name}.partial-{_host()}-{os.getpid()}")
    old = out.with_name(f".{out.name}.replaced")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(out, old)
        check_target(out, overwrite, owned)
        partial.mkdir()
        try:
            yield partial
            _sync_tree(partial)
            _move_into_place(partial, out, old)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror or error}") from error


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", platform.node())


def _clear_leftovers(out: Path, old: Path) -> None:
    """Ends what a killed call began: partial work goes, a directory moved away comes back."""
    if old.exists():
        if out.exists():
            shutil.rmtree(old)
        else:
            os.rename(old, out)
    prefix = f".{out.name}.partial-{_host()}-"
    for path in out.parent.iterdir():
        pid = path.name.removeprefix(prefix)
        if path.name.startswith(prefix) and pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(path)


def _is_alive(pid: int) -> bool:
    if pid == os.getpid():
        return False
    if os.name != "posix":
        return True  # signal 0 would end the process there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def check_target(out: Path, overwrite: bool, owned: Callable[[Path], bool]) -> None:
    """Refuses what `staged_directory` would, before any work is done."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir() or out.is_symlink():
        raise DataError(f"{out}: exists and is no plain directory; choose another --out")
    if not overwrite:
        raise DataError(f"{out}: exists and is not empty; choose another, or give --overwrite")
    if not owned(out):
        raise DataError(
            f"{out}: holds things that `trainer data` did not write, so --overwrite leaves "
            "it alone; choose another directory"
        )


def _move_into_place(partial: Path, out: Path, old: Path) -> None:
    if out.exists():
        os.rename(out, old)
    os.rename(partial, out)
    sync_directory(out.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync_tree(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            _sync_tree(path)
    sync_directory(directory)
