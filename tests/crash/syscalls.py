"""Interrupts a real process at its system calls, one after the other: strace kills, fails or
shortens each write, sync, rename, unlink, open, truncation of an action in turn.

Contract: `count` gives how often an action makes each call (per thread, as strace counts), `jobs`
all that can be done to them, `Bench.interrupt` does one of it to a store and raises `Wrong` where
the store is not the state before or the one attempted, whole and going on. A call that the action
does not reach this time is told. The process is traced from the moment its action begins.

What each kind leaves behind: `kill` ends the process as it enters the call; `EIO` and `ENOSPC`
are returned instead of it; `nothing` says of a write that it wrote no byte; `short` makes the write
take its first bytes only (in the process, since strace cannot: a faked length would be a lie).
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from shardstore import Store
from shardstore.errors import PoisonedError, ShardStoreError, StorageError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.posix import PosixFileSystem
from tests.crash.real_child import EXIT_REFUSED
from tests.crash.real_process import Server
from tests.crash.real_store import SETTINGS, Seen, Wrong, commit, judge, look, sound
from tests.support.permitted import find

ACTIONS = ("commit", "snapshot", "publish", "open", "recover")
WRITE = "pwrite64"
CALLS = (
    *(WRITE, "pwritev", "fsync", "fdatasync", "rename", "renameat", "renameat2", "link", "linkat"),
    *("unlink", "unlinkat", "openat", "open", "ftruncate", "mkdir", "mkdirat", "fallocate"),
)
KINDS = {"kill": "signal=SIGKILL", "EIO": "error=EIO", "ENOSPC": "error=ENOSPC"}
WRITE_KINDS = {"nothing": "retval=0"}
SHORT = "short"
WRONG_MAX = 10
_FRESH_AFTER = 20
_LINE = re.compile(r"^(\d+)\s+(\w+)\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One interruption."""

    action: str
    call: str
    nth: int
    kind: str

    def __str__(self) -> str:
        return f"{self.action}: {self.kind} at {self.call} number {self.nth}"


class Strace:
    """Attached to a process; use it in a `with` block."""

    def __init__(self, pid: int, log: Path, inject: str = "") -> None:
        traced = ",".join(f"?{call}" for call in CALLS)
        words = [find("strace") or "strace", "-f", "-s", "0", "-o", str(log)]
        words += ["-e", "signal=none", "-e", f"trace={traced}"]
        words += ["-e", f"inject={inject}"] if inject else []
        self._process = subprocess.Popen(
            [*words, "-p", str(pid)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._await_attached(self._process.stderr)

    @staticmethod
    def _await_attached(errors: IO[str] | None) -> None:
        assert errors is not None
        said = []
        for line in errors:
            if "attached" in line:
                return
            said.append(line)
        raise AssertionError(f"strace did not attach: {''.join(said)}")

    def __enter__(self) -> Strace:
        return self

    def __exit__(self, *_: object) -> None:
        """It ends by itself with the process that it traces."""
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            if self._process.stderr is not None:
                self._process.stderr.close()


class Bench:
    """A store to interrupt, made anew now and then so that its history stays short."""

    def __init__(self, directory: Path, action: str, server: Server) -> None:
        self._directory, self._action, self._server = directory, action, server
        self._stores = self._uses = 0
        self._step = 1
        self._root = directory
        self._seen = self._published = Seen()

    def count(self) -> Counter[str]:
        """Call -> how often one thread of the action makes it, at most."""
        code, log = self._run(0, "")
        if code:
            raise Wrong(f"{self._action} without any interruption: {code}, {self._server.said()}")
        self._settle()
        threads = Counter(found.groups() for found in map(_LINE.match, _lines(log)) if found)
        counts: Counter[str] = Counter()
        for (_, call), number in threads.items():
            counts[call] = max(counts[call], number)
        return counts

    def interrupt(self, job: Job) -> bool:
        """Whether the call was reached."""
        what = (KINDS | WRITE_KINDS).get(job.kind, "")
        short = job.nth if job.kind == SHORT else 0
        code, log = self._run(short, f"{job.call}:{what}:when={job.nth}" if what else "")
        if code not in (0, EXIT_REFUSED, -signal.SIGKILL if job.kind == "kill" else 0):
            raise Wrong(f"{job}: the process ended with {code}: {self._server.said()}")
        try:
            self._settle()
        except (Wrong, ShardStoreError) as wrong:
            raise Wrong(f"{job}: it said {self._server.lines[1:]}; {wrong}") from wrong
        if job.kind == SHORT:
            return "shortened" in self._server.lines
        return code == -signal.SIGKILL if job.kind == "kill" else "(INJECTED)" in log.read_text()

    def _run(self, short: int, inject: str) -> tuple[int, Path]:
        """The action in a process of its own, under strace; its exit code and the trace."""
        root, server = self._prepare(), self._server
        log = root.with_name("calls.txt")
        pid = server.start(self._action, root, self._take_step(), short=short)
        if short:
            server.go()
            return server.wait(), log
        with Strace(pid, log, inject):
            server.go()
            return server.wait(), log

    def _take_step(self) -> int:
        self._step += 1
        return self._step

    def _prepare(self) -> Path:
        """A healthy store with something in it; for `recover` one with a torn end."""
        if self._uses % _FRESH_AFTER == 0:
            self._make()
        self._uses += 1
        if self._action == "recover":
            tear(str(self._root), self._take_step())
        return self._root

    def _make(self) -> None:
        self._stores += 1
        self._root = self._directory / f"{self._action}{self._stores}" / "run"
        self._root.parent.mkdir()
        with Store.open(self._root, "a", settings=SETTINGS) as store:
            for _ in range(3):
                commit(store, self._take_step())
            store.snapshot("kept")
            if self._action == "publish":
                store.publish(self._durable)
                self._published = look(store)
                commit(store, self._take_step())
            self._seen = look(store)

    @property
    def _durable(self) -> str:
        return f"{self._root}.durable"

    def _settle(self) -> None:
        """The store is one of the states that are allowed, and goes on."""
        step, done = self._step, "done" in self._server.lines
        after = {"commit": self._seen.committed(step), "snapshot": self._seen.named(f"s{step}")}
        attempted = after.get(self._action, self._seen)
        allowed = [attempted] if done else [self._seen, attempted]
        before = self._seen
        self._seen = judge(str(self._root), allowed, self._take_step())
        if self._action == "publish":
            self._settle_durable([before] if done else [self._published, before])

    def _settle_durable(self, allowed: list[Seen]) -> None:
        """The other tier is what it was or what was published; the next publication works."""
        sound(PosixFileSystem(), self._durable)
        with Store.open(self._durable, "r", settings=SETTINGS) as store:
            found = look(store)
        if found not in allowed:
            raise Wrong(f"the durable store is {found}; allowed: {' or '.join(map(str, allowed))}")
        with Store.open(self._root, "r+", settings=SETTINGS) as store:
            store.publish(self._durable)
            commit(store, self._take_step())
            self._published, self._seen = self._seen, look(store)


def tear(root: str, step: int) -> None:
    """Half of a record at the end of the log, as a process leaves it that dies in its append."""
    for nth in (1, 2, 3):
        faulty = FaultyFileSystem(PosixFileSystem())
        store = Store.open(root, "r+", fs=faulty, settings=SETTINGS)
        faulty.shorten("*/wal/*.wal", kept_bytes=8192, nth=nth)
        try:
            commit(store, step, text="x" * 20_000)
        except PoisonedError:
            return
        except StorageError:
            continue
        finally:
            store.close()
    raise AssertionError("no append was cut off")


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()


def jobs(action: str, counts: Counter[str]) -> Iterator[Job]:
    """Everything that can be done to the action's calls."""
    for call, number in sorted(counts.items()):
        kinds = [*KINDS, *([*WRITE_KINDS, SHORT] if call == WRITE else [])]
        for nth in range(1, number + 1):
            for kind in kinds:
                yield Job(action=action, call=call, nth=nth, kind=kind)


@dataclass(slots=True, kw_only=True)
class Result:
    """What was tried, and what was wrong."""

    tried: Counter[str] = field(default_factory=Counter)
    """"action kind" -> interruptions that hit."""
    missed: int = 0
    """The call was not reached: threads, or another way through the code."""
    wrong: list[str] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    """Action -> its system calls."""
    seconds: float = 0.0

    def line(self) -> str:
        hits = self.tried.total()
        kinds = Counter(key.split()[1] for key in self.tried.elements())
        shares = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
        return (
            f"{hits} interruptions ({shares}; {self.missed} not reached), {len(self.wrong)} wrong"
        )

    def to_json(self) -> str:
        return json.dumps({
            "tried": dict(self.tried), "missed": self.missed, "wrong": self.wrong,
            "calls": self.calls, "seconds": self.seconds,
        }, indent=1)  # fmt: skip


def interrupt_all(
    directory: Path, *, actions: Sequence[str] = ACTIONS, share: float = 1.0, seed: int = 4,
    until: float = float("inf"), progress: Callable[[int, int], None] | None = None,
) -> Result:  # fmt: skip
    """A seeded share of the interruptions of each action, as far as the time goes (`until` is of
    the monotonic clock)."""
    began, draw, result = time.monotonic(), random.Random(seed), Result()
    with Server(directory / "server.txt") as server:
        benches = {action: Bench(directory, action, server) for action in actions}
        planned: list[Job] = []
        for action, bench in benches.items():
            counts = bench.count()
            result.calls[action] = counts.total()
            every = list(jobs(action, counts))
            planned += draw.sample(every, max(1, round(share * len(every))))
        draw.shuffle(planned)
        for job in planned:
            if time.monotonic() > until:
                break
            try:
                hit = benches[job.action].interrupt(job)
            except (Wrong, AssertionError) as wrong:
                result.wrong.append(str(wrong))
                if len(result.wrong) == WRONG_MAX:
                    break
                fresh = directory / f"after{len(result.wrong)}"  # the old store may be wrong now
                fresh.mkdir()
                benches[job.action] = Bench(fresh, job.action, server)
                continue
            result.tried[f"{job.action} {job.kind}"] += hit
            result.missed += not hit
            if progress is not None:
                progress(result.tried.total(), len(planned))
    result.seconds = time.monotonic() - began
    return result
