"""How long it takes to bring a durable store to an active one, beside the disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.compare.ours import open_store
from benchmarks.frame.physical import Physical
from benchmarks.frame.question import Bench, Question
from benchmarks.frame.result import Result
from benchmarks.frame.rounds import Variant
from benchmarks.frame.state import ModelState, make_state

MEMORY = Path("/dev/shm")
FROM_CACHE = "publish, out of the host cache"
FROM_DISK = "publish, read from the same disk"
FROM_MEMORY = "publish, read from a RAM disk"
SHARE_MIN = 0.85
ROOM_FACTOR = 5
"""The kept commits, their spare slots, and one more while others write."""


class Tiers:
    """An active store whose every step changes everything, and the durable one behind it."""

    def __init__(self, active: Path, bench: Bench, state: ModelState) -> None:
        self._state = state
        self._durable = bench.scratch / f"durable-{active.name}"
        budget = {"host_budget_bytes": 2 * state.bytes}
        self.store = open_store(active, "a", {**budget, **bench.settings})
        self._step = 0
        for _ in range(4):  # until both write into slots that exist
            self.train()
            self.publish()

    def train(self) -> None:
        self._step += 1
        self._state.change()
        with self.store.begin(self._step) as transaction:
            for (shard, part), tensors in self._state.parts.items():
                transaction.stage(shard, part, tensors)
            transaction.commit()

    def train_and_forget(self) -> None:
        self.train()
        self.store.clear_cache()

    def publish(self) -> None:
        done = self.store.publish(self._durable)
        assert done.objects == len(self._state.parts), done


def ask(bench: Bench) -> Result:
    state = make_state(bench.model)
    sizes = state.object_sizes()
    result = Result(tables=[])
    with _memory(state.bytes) as memory, ExitStack() as stores:

        def tiers(path: Path) -> Tiers:
            made = Tiers(path, bench, state)
            stores.callback(made.store.close)
            return made

        physical = Physical(bench.scratch / "probe", sizes, quick=bench.quick)
        variants = [physical.write_probe(), physical.read_probe()]
        on_disk = tiers(bench.scratch / "active")
        variants.append(_variant(FROM_CACHE, on_disk, on_disk.train, sum(sizes)))
        variants.append(_variant(FROM_DISK, on_disk, on_disk.train_and_forget, sum(sizes)))
        if memory is not None:
            active = tiers(memory / "active-in-memory")
            variants.append(_variant(FROM_MEMORY, active, active.train_and_forget, sum(sizes)))
        table = bench.measure(f"Publishing {sum(sizes) / 1e9:.2f} GB", variants)
    result.tables.append(table)
    for name in (FROM_CACHE, FROM_MEMORY):
        if any(row.name == name for row in table.rows):
            result.claim_ratio(f"{name}, of the write probe", table, name, "probe", SHARE_MIN)
    if memory is None:
        result.notes.append(f"{FROM_MEMORY} was not measured: {MEMORY} has no room for it.")
    both = table.row("probe").seconds + table.row("read probe").seconds
    share = both / table.row(FROM_DISK).seconds
    result.notes.append(
        f"{FROM_DISK}: its reads and its writes share one disk; {share:.2f} of the speed of both "
        "probes one after the other."
    )
    return result


def _variant(name: str, tiers: Tiers, before: Callable[[], None], size: int) -> Variant:
    note = "verified, written, synced and noted in both logs; every part of a step changed"
    return Variant(name=name, note=note, bytes=size, act=tiers.publish, before=before)


@contextmanager
def _memory(state_bytes: int) -> Iterator[Path | None]:
    """A directory in memory, gone afterwards; None where there is no room for an active store."""
    need = ROOM_FACTOR * state_bytes
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < 2 * need:
        yield None
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        yield Path(path)


QUESTION = Question(
    title="Publishing to the durable store",
    about="""An active store commits a step in which every part changed; `publish` then brings the
    durable store on the disk to it. What the active store's host cache holds is not read; all else
    is read from the same disk, or from a RAM disk.""",
    ask=ask,
    needs_model=True,
)
