"""Power cuts on a real ext4: a writer at work, its disk stopped at an instant, another boot.

Contract: `cut_often` raises nothing for what it finds, it tells: after each cut the image is
mounted, which replays the journal, and judged under another boot id. Legal are the states from the
last that was acknowledged to the last that was begun. Two ways to cut: where blocks can be shared
the image is cloned under the writer, which goes on and is cut again; else the file system is shut
down under it, and the next writer goes on with what was left, through cut after cut.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shardstore import Store
from tests.crash.real_mounts import ImageDisk, block_sharing
from tests.crash.real_process import HUNG_SECONDS, Process
from tests.crash.real_store import SETTINGS, OtherBoot, Seen, Wrong, commit, judge, look

_CUTS_OF_A_WRITER = 8
_CUTS_OF_A_DISK = 40
"""A writer that is cut seldom makes a long history: a new disk now and then keeps it small."""
_DELAY_SECONDS = (1e-5, 2e-2)
_STEP_GAP = 10_000
"""Between the steps of two writers: what one leaves behind is never mistaken for another's."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What the cuts came to."""

    how: str = ""
    cuts: int = 0
    behind: int = 0
    """Cuts after which the state was the last acknowledged one, and not a later one."""
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> str:
        return (
            f"{self.cuts} power cuts ({self.how}); {self.behind} left the last acknowledged state, "
            f"{self.cuts - self.behind} a later one; {len(self.wrong)} wrong"
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


@dataclass(slots=True)
class History:
    """What one writer said: the states that it went through, and how many are acknowledged."""

    states: list[Seen]
    acknowledged: int = 0
    read: int = 0

    def follow(self, lines: list[str]) -> None:
        for line in lines[self.read :]:
            match line.split():
                case ["began", "commit", step]:
                    self.states.append(self.states[-1].committed(int(step)))
                case ["began", "snapshot", name]:
                    self.states.append(self.states[-1].named(name))
                case ["began", "delete", name]:
                    self.states.append(self.states[-1].without(name))
                case ["done"]:
                    self.acknowledged = len(self.states) - 1
        self.read = len(lines)

    def allowed(self, acknowledged: int) -> list[Seen]:
        return self.states[acknowledged:]


class Cutter:
    """One disk, one store on it, one cut after the other."""

    def __init__(self, disk: ImageDisk, draw: random.Random, result: Result) -> None:
        self._disk, self._draw, self._result = disk, draw, result
        self._boot, self._step = 0, 1
        self._root = disk.point / "run"
        with Store.open(self._root, "a", fs=self._system, settings=SETTINGS) as store:
            commit(store, self._step)
            self._seen = look(store)

    @property
    def _system(self) -> OtherBoot:
        return OtherBoot(f"boot-{self._boot}")

    def by_stopping(self) -> None:
        """The writer's disk stops; its next writer goes on with what is left."""
        with self._writer() as (child, history):
            self._await_moment(child)
            self._disk.stop()
            child.kill()
            history.follow(child.lines)
        self._disk.unmount()
        self._disk.mount()
        self._boot += 1
        self._seen = self._judge(str(self._root), history, history.acknowledged)

    def by_cloning(self, cuts: int) -> None:
        """The image is cloned under the writer, again and again; each clone is judged."""
        with self._writer() as (child, history):
            for _ in range(cuts):
                self._await_moment(child)
                history.follow(child.lines)
                acknowledged = history.acknowledged
                clone = self._disk.image.with_name("clone.img")
                self._disk.clone(clone)
                while child.read(0):
                    pass
                history.follow(child.lines)
                self._judge_clone(clone, history, acknowledged)
            child.kill()
            history.follow(child.lines)
        allowed = history.allowed(history.acknowledged)
        self._seen = judge(str(self._root), allowed, self._next_step(), self._system)

    def _judge_clone(self, clone: Path, history: History, acknowledged: int) -> None:
        self._boot += 1
        disk = ImageDisk.of(clone, clone.with_name("clone"))
        try:
            self._judge(str(disk.point / "run"), history, acknowledged)
        finally:
            disk.close()
            self._boot -= 1
            clone.unlink()

    @contextmanager
    def _writer(self) -> Iterator[tuple[Process, History]]:
        self._step += _STEP_GAP + self._draw.randrange(2)
        errors, boot = self._disk.image.with_name("writer"), self._system.boot_id()
        with Process("write", self._root, self._step, boot, errors=errors) as child:
            child.await_line("ready")
            yield child, History([self._seen])

    def _await_moment(self, child: Process) -> None:
        """Somewhere in the next commits: after some lines, and a moment that is not a line's."""
        wanted = len(child.lines) + self._draw.randrange(1, 12)
        while len(child.lines) < wanted:
            if not child.read(HUNG_SECONDS):
                raise Wrong(f"the writer ended by itself: {child.said()}")
        low, high = map(math.log, _DELAY_SECONDS)
        moment = time.monotonic() + math.exp(self._draw.uniform(low, high))
        while (left := moment - time.monotonic()) > 0:
            child.read(left)

    def _judge(self, root: str, history: History, acknowledged: int) -> Seen:
        allowed = history.allowed(acknowledged)
        with Store.open(root, "r", fs=self._system, settings=SETTINGS) as store:
            self._result.behind += store.head is not None and look(store) == allowed[0]
        self._result.cuts += 1
        return judge(root, allowed, self._next_step(), self._system)

    def _next_step(self) -> int:
        self._step += _STEP_GAP
        return self._step


def cut_often(
    directory: Path, *, cuts: int, seed: int = 4, until: float = math.inf,
    progress: Callable[[int, int], None] | None = None,
) -> Result:  # fmt: skip
    """So many power cuts, until a moment of the monotonic clock; at the first wrong one it ends."""
    began, result, draw = time.monotonic(), Result(), random.Random(seed)
    with block_sharing(directory) as sharing:
        result.how = "the image cloned under its writer" if sharing else "the file system stopped"
        try:
            while result.cuts < cuts and time.monotonic() < until:
                end = min(cuts, result.cuts + _CUTS_OF_A_DISK)
                with ImageDisk(sharing or directory) as disk:
                    cutter = Cutter(disk, draw, result)
                    while result.cuts < end and time.monotonic() < until:
                        if sharing and draw.randrange(4):
                            cutter.by_cloning(min(_CUTS_OF_A_WRITER, end - result.cuts))
                        else:
                            cutter.by_stopping()
                        if progress is not None:
                            progress(result.cuts, cuts)
        except Exception as error:
            result.wrong.append(f"power cut {result.cuts}: {type(error).__name__}: {error}")
    result.seconds = time.monotonic() - began
    return result
