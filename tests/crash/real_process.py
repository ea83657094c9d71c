"""A `real_child` seen from outside: its lines, its end, and never left behind.

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

    def __init__(self, *words: object, errors: Path) -> None:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(TOP)}
        self._errors = errors
        with errors.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.real_child", *map(str, words)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, cwd=TOP,
                env=environment,
            )  # fmt: skip
        self.lines: list[str] = []
        self._rest = b""

    def await_line(self, wanted: str) -> str:
        """The first line that begins so; AssertionError where it ends before."""
        while True:
            for line in self.lines:
                if line.startswith(wanted):
                    return line
            if not self.read(HUNG_SECONDS):
                raise AssertionError(f"it says no {wanted!r}: {self.lines} {self.said()}")

    def read(self, seconds: float) -> bool:
        """Take what comes within this time; False when there was nothing, or it is at its end."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return False
        found = os.read(self._process.stdout.fileno(), 65536)
        *lines, self._rest = (self._rest + found).split(b"\n")
        self.lines += [line.decode() for line in lines]
        return bool(found)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and everything it had said."""
        self._process.kill()
        self._process.wait()
        while self.read(0):
            pass

    def said(self) -> str:
        """The end of what it wrote on its terminal."""
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


class Server(Process):
    """`real_child serve`: a short-lived process for each action, started in no time."""

    def __init__(self, errors: Path) -> None:
        super().__init__("serve", errors=errors)

    def start(self, action: str, root: Path, step: int, *, short: int = 0) -> int:
        """The process id; it waits for `go`."""
        self.lines.clear()
        self.tell(f"{action} {step} {short} {root.resolve()}")
        return int(self.await_line("ready ").split()[1])

    def go(self) -> None:
        self.tell("go")

    def wait(self) -> int:
        """The exit code, below 0 for a signal."""
        return int(self.await_line("ended ").split()[1])
