"""How long it takes to bring a durable store to an active one, beside the disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.compare.ours import open_store
from benchmarks.frame.physical import Physical
from benchmarks.frame.question import Bench, Question
from benchmarks.frame.result import Result
from benchmarks.frame.rounds import Variant
from benchmarks.frame.state import ModelState, make_state

MEMORY = Path("/dev/shm")
ROOM_FACTOR = 5
"""The kept commits, their spare slots, and one more while others write."""


class Tiers:
    """An active store whose every step changes everything, and the durable one behind it."""

    def __init__(self, name: str, active: Path, bench: Bench, state: ModelState) -> None:
        self.name = name
        self._state = state
        self._durable = bench.scratch / f"durable-{active.name}"
        self.store = open_store(active, "a", {"host_budget_bytes": state.bytes, **bench.settings})
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
        self.store.clear_cache()

    def publish(self) -> None:
        done = self.store.publish(self._durable)
        assert done.objects == len(self._state.parts), done


def ask(bench: Bench) -> Result:
    state = make_state(bench.model)
    sizes = state.object_sizes()
    with _memory(state.bytes) as memory:
        places = {"publish, on one disk": bench.scratch / "active"}
        if memory is not None:
            places["publish, from memory"] = memory / "active-in-memory"
        tiers = [Tiers(name, path, bench, state) for name, path in places.items()]
        try:
            physical = Physical(bench.scratch / "probe", sizes, quick=bench.quick)
            variants = [physical.write_probe(), physical.read_probe()]
            variants += [_variant(tier, sum(sizes)) for tier in tiers]
            table = bench.measure(f"Publishing {sum(sizes) / 1e9:.2f} GB", variants)
        finally:
            for tier in tiers:
                tier.store.close()
    result = Result(tables=[table])
    result.notes.append("On one disk the reads and the writes of a publication share it.")
    if memory is None:
        result.notes.append(f"From memory not measured: {MEMORY} has no room for it.")
    else:
        name = "publish, from memory"
        result.claim_ratio(f"{name}, of the write probe", table, name, "probe", 0.85)
    return result


def _variant(tiers: Tiers, size: int) -> Variant:
    note = "read, verified, written, synced and noted in both logs; every part of a step changed"
    return Variant(name=tiers.name, note=note, bytes=size, act=tiers.publish, before=tiers.train)


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
    durable store on the disk to it. The active store is on the same disk, or in memory; there the
    disk's writes alone are the limit.""",
    ask=ask,
    needs_model=True,
)
