"""One `real_child` seen from outside: its lines, its end, and never left behind.

Nothing waits for time to pass, but for the child's next line; a child that hangs is killed.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

TOP = Path(__file__).resolve().parents[2]
HUNG_SECONDS = 120.0


class Process:
    """Use it in a `with` block; one thread."""

    def __init__(
        self, action: str, root: Path, step: int, *options: str, errors: Path | None = None
    ) -> None:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(TOP)}
        words = [sys.executable, "-m", "tests.crash.real_child", action, str(root), str(step)]
        self._errors = errors or root.with_name(root.name + ".errors")
        with self._errors.open("wb") as file:
            self._process = subprocess.Popen(
                [*words, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                cwd=TOP, env=environment,
            )  # fmt: skip
        self.lines: list[str] = []
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_line(self, wanted: str) -> None:
        """Until it says this; AssertionError where it ends before."""
        while wanted not in self.lines:
            assert self.read(HUNG_SECONDS), (
                f"it ended without {wanted!r}: {self.lines} {self.said()}"
            )

    def read(self, seconds: float) -> bool:
        """Take what comes within this time; False when there was nothing, or it is at its end."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return False
        found = os.read(self._process.stdout.fileno(), 65536)
        *lines, self._rest = (self._rest + found).split(b"\n")
        self.lines += [line.decode() for line in lines]
        return bool(found)

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and everything it had said."""
        self._process.kill()
        self._process.wait()
        while self.read(0):
            pass

    def wait(self) -> int:
        """The exit code, after everything it said."""
        while self.read(HUNG_SECONDS):
            pass
        return self._process.wait(HUNG_SECONDS)

    def said(self) -> str:
        return self._errors.read_text(errors="replace")[-2000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
