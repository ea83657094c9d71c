"""The state of the in-memory file system: its crashes, copies and digests.

Contract: every mutating operation is logged and can be the one at which the process dies
(`crash_at`); `clone` copies everything cheaply, `kill` gives what the death of the process leaves
(all that was written, no locks or pins), `power_cuts` what a power cut may leave (`crash_states`
lists the rules). Clock, random bytes, process and boot ids are counters. `memory` adds the
operations.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, NoReturn, Self

import xxhash

from shardstore.fs.crash_states import PowerCuts, listing, observable, vectors
from shardstore.fs.memory_nodes import DirectoryNode, NameEffect, Node

ROOT = 1
_CLOCK_START = 1_700_000_000
_FIRST_PROCESS = 1000


class CrashPoint(BaseException):
    """The process is dead: derived from BaseException so that no handler goes on."""


class Operation(NamedTuple):
    """One mutating operation, as logged. `detail`: (offset, length) of a write, (target,) of a
    rename, (size,) of a truncation, else empty. Opens are `open_create` and `open_replace`."""

    op: str
    path: str
    detail: tuple[int | str, ...] = ()


class CrashableState:
    """Nodes, names, locks and counters. Operations of a crashed one raise `CrashPoint` again, but
    `kill` and `power_cuts` go on from it; closing files and releasing locks then do nothing."""

    def __init__(
        self,
        *,
        capacity_bytes: int = 1 << 30,
        direct: bool = True,
        pins: bool = True,
        seed: int = 0,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.supports_direct = direct
        self.supports_pins = pins
        self.volatile = False
        """Whether it says that it lives in memory; it stands for a disk unless a test says so."""
        self._seed = seed
        self._nodes: dict[int, Node] = {ROOT: DirectoryNode({}, {})}
        self._names: tuple[NameEffect, ...] = ()
        self._next_inode = ROOT + 1
        self._sequence = self._ticks = self._draws = self._boot = 0
        self._boot_unused = True
        self._process_id = _FIRST_PROCESS
        self._locks: dict[int, object] = {}
        self._pins: dict[object, tuple[int, frozenset[int]]] = {}
        """Open pin file -> inode and slots."""
        self._start()

    def _start(self) -> None:
        self._mutex = threading.RLock()
        self.log: list[Operation] = []
        """Mutating operations since creation, clone, kill or power cut, the one that crashed
        included."""
        self.crash_at: int | None = None
        """Number of the operation (from 1) at which to die."""
        self.crash_when: Literal["before", "during", "after"] = "before"
        """"during" writes the first half of a pwrite; other operations as "after"."""
        self.crashed = False
        self.before: Callable[[Operation], None] | None = None
        """Called before each mutating operation, which it may stop by raising."""

    # Crashes and copies

    def clone(self) -> Self:
        """An independent copy, locks and pins included; log, crash point and hook start afresh."""
        with self._mutex:
            twin = copy.copy(self)
            twin._nodes = dict(self._nodes)
            twin._locks = dict(self._locks)
            twin._pins = dict(self._pins)
        twin._start()
        return twin

    def kill(self) -> Self:
        """What the death of the process leaves: everything written, synced or not; no locks."""
        twin = self.clone()
        twin._locks = {}
        twin._pins = {}
        twin._process_id += 1
        known = {effect.inode for effect in twin._names}
        for node in self._nodes.values():
            if isinstance(node, DirectoryNode):
                known.update(node.entries.values(), node.durable.values())
        twin._nodes = {
            inode: node
            for inode, node in twin._nodes.items()
            if inode in known or isinstance(node, DirectoryNode)
        }
        return twin

    def power_cuts(
        self,
        *,
        subsets_max: int = 10,
        samples: int = 32,
        seed: int = 0,
        limit: int | None = None,
    ) -> Iterator[Self]:
        """Distinct disks that a power cut may leave now, started again with a new boot id; at
        most `limit`. The file system itself is not changed and may go on meanwhile."""
        with self._mutex:
            frozen = self.kill()
        cuts = PowerCuts(frozen._nodes, frozen._names, ROOT)
        seen: set[bytes] = set()
        for vector in vectors(cuts.units, subsets_max=subsets_max, samples=samples, seed=seed):
            if limit is not None and len(seen) >= limit:
                return
            nodes, digest = cuts.disk(vector)
            if digest not in seen:
                seen.add(digest)
                yield frozen._restarted(nodes)

    def _restarted(self, nodes: dict[int, Node]) -> Self:
        image = copy.copy(self)
        image._nodes = nodes
        image._names = ()
        image._locks = {}
        image._pins = {}
        image._boot += 1
        image._boot_unused = True
        image._start()
        return image

    def unsynced_count(self) -> int:
        """How many independent effects a power cut could keep or lose now."""
        with self._mutex:
            return len(PowerCuts(self._nodes, self._names, ROOT).units)

    def image_digest(self, *, unsynced: bool = False) -> bytes:
        """Digest of what an opening can observe: names, sizes, contents (not the text in lock
        files), and the boot id as far as a file can know it. With `unsynced` also of what a later
        power cut could leave: two killed images are the same only then."""
        with self._mutex:
            entries = {
                inode: node.entries
                for inode, node in self._nodes.items()
                if isinstance(node, DirectoryNode)
            }
            digest = observable(listing(entries, ROOT), self._nodes)
            boot = "unused" if self._boot_unused else self.boot_id()
            state = xxhash.xxh3_128(digest + boot.encode())
            if unsynced:
                cuts = PowerCuts(self._nodes, self._names, ROOT)
                state.update(cuts.fingerprint())
        return state.digest()

    # The operating machinery

    def check_alive(self) -> None:
        if self.crashed:
            raise CrashPoint

    @contextmanager
    def _mutation(self, op: str, path: str, *detail: int | str) -> Iterator[bool]:
        """Logs, and dies where asked; yields whether to do only half of it."""
        self.check_alive()
        operation = Operation(op, path, detail)
        if self.before is not None:
            self.before(operation)
        self.log.append(operation)
        dies = self.crash_at == len(self.log)
        if dies and self.crash_when == "before":
            self.crash()
        self._boot_unused = False
        yield dies and self.crash_when == "during"
        if dies:
            self.crash()

    def crash(self) -> NoReturn:
        """The process dies here."""
        self.crashed = True
        raise CrashPoint

    def _tick(self) -> int:
        self._sequence += 1
        return self._sequence

    # Pins

    def pins_of(self, holder: object) -> frozenset[int] | None:
        with self._mutex:
            self.check_alive()
            return self._pins.get(holder, (0, None))[1]

    def set_pins(self, holder: object, slots: frozenset[int] | None) -> bool:
        with self._mutex:
            if self.crashed or slots is None:
                self._pins.pop(holder, None)
                return False
            allowed = slots if self.supports_pins else frozenset()
            self._pins[holder] = (self._pins[holder][0], allowed)
            return self.supports_pins

    def pins_beside(self, holder: object) -> set[int]:
        with self._mutex:
            inode = self._pins[holder][0]
            others = [held for file, held in self._pins.items() if file is not holder]
            return {slot for at, slots in others if at == inode for slot in slots}

    # Facts about the host

    def boot_id(self) -> str:
        return f"boot-{self._boot:08d}"

    def now(self) -> float:
        with self._mutex:
            self._ticks += 1
            return _CLOCK_START + self._ticks / 1000

    def random_bytes(self, count: int) -> bytes:
        with self._mutex:
            self._draws += 1
            return random.Random(f"{self._seed}:{self._draws}").randbytes(count)

    def process(self) -> tuple[int, str]:
        return self._process_id, "memory"
