"""How long loading the whole state takes: cold, from memory, and one object at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.compare.ours import forget_cached, has_host_cache, open_store
from benchmarks.compare.peer import Loader, Peer, missing, peers
from benchmarks.frame.disk import drop_cache, files_below, fresh_directory
from benchmarks.frame.physical import Physical, touched_memory
from benchmarks.frame.question import Bench, Question
from benchmarks.frame.result import Claim, Result, Table
from benchmarks.frame.rounds import Variant
from benchmarks.frame.state import ModelState, make_state
from shardstore import Store

BUDGET_SETTING = "host_budget_bytes"
OBJECT_MS_MAX = 0.3


class LoadedStore:
    """A store that holds one commit of the state, and memory of the caller's to load it into."""

    def __init__(self, bench: Bench, state: ModelState) -> None:
        self._path = bench.scratch / "run"
        self._parts = list(state.parts)
        with open_store(self._path, "a", bench.settings) as store, store.begin(1) as transaction:
            for (shard, part), tensors in state.parts.items():
                transaction.stage(shard, part, tensors)
            transaction.commit()
        self.store = open_store(
            self._path, "r", {BUDGET_SETTING: 2 * state.bytes, **bench.settings}
        )
        sizes = [self.store.size_of(*key) for key in self._parts]
        self._memory = [touched_memory(size) for size in sizes]
        self.bytes = sum(sizes)
        self._pool = ThreadPoolExecutor(2)

    def variants(self) -> list[Variant]:
        """Cold loads. Slots leave the page cache before each, in case something reads buffered."""
        acts: list[tuple[str, str, Callable[[], object]]] = [
            ("store, into", "load(into=) the caller's memory, verified, one after the other",
             self._into),
            ("store, two callers", "as above, from two threads of the caller", self._by_two),
            ("store, pooled", "load of each object into the store's buffers, verified, then closed",
             self._pooled),
        ]  # fmt: skip
        if hasattr(Store, "prefetch"):
            note = "prefetch of all parts, then load of each, verified, then closed"
            acts.append(("store, prefetched", note, self._prefetched))
        return [
            Variant(name=name, note=note, act=_silent(act), bytes=self.bytes,
                    cold_bytes=self.bytes, before=self.forget)
            for name, note, act in acts
        ]  # fmt: skip

    def forget(self) -> None:
        forget_cached(self.store)
        drop_cache(files_below(self._path / "objects"))

    def warm(self) -> Variant | None:
        """Every object out of the host cache; None where the store has none."""
        if not has_host_cache():
            return None
        note = "load of each object out of the host cache, not copied"
        return Variant(name="store, host cache", note=note, act=self._pooled,
                       before=self._pooled, bytes=self.bytes)  # fmt: skip

    @property
    def object_count(self) -> int:
        return len(self._parts)

    def _load_into(self, index: int) -> None:
        self.store.load(*self._parts[index], into=self._memory[index]).close()

    def _into(self) -> None:
        for index in range(len(self._parts)):
            self._load_into(index)

    def _by_two(self) -> None:
        list(self._pool.map(self._load_into, range(len(self._parts))))

    def _pooled(self) -> None:
        for key in self._parts:
            self.store.load(*key).close()

    def _prefetched(self) -> None:
        store: Any = self.store
        store.prefetch(self._parts)
        self._pooled()


def ask(bench: Bench) -> Result:
    state = make_state(bench.model)
    ours = LoadedStore(bench, state)
    saved = [_saved(bench, state, peer) for peer in peers()]
    into = state.empty_like()
    loaders = [(peer, directory, loader) for peer, directory in saved for loader in peer.loaders()]
    for _, directory, loader in loaders:
        _check(state, into, directory, loader)
    nbytes, sizes = state.bytes, state.object_sizes()
    del state  # memory for the loads
    physical = Physical(bench.scratch / "probe", sizes, quick=bench.quick)
    cold = [physical.read_probe(), physical.memcpy(), *ours.variants()]
    cold += [_peer(peer, directory, loader, into, cold=True) for peer, directory, loader in loaders]
    size = f"{nbytes / 1e9:.2f} GB"
    tables = [bench.measure(f"Cold load of {size}", cold)]
    warm = [physical.memcpy()]
    warm += [
        _peer(peer, directory, loader, into, cold=False) for peer, directory, loader in loaders
    ]
    if (cached := ours.warm()) is not None:
        warm.append(cached)
    tables.append(bench.measure(f"Load of {size} that memory holds", warm))
    ours.store.close()
    return _result(tables, ours.object_count if cached else 0)


def _saved(bench: Bench, state: ModelState, peer: Peer) -> tuple[Peer, Path]:
    """A peer's directory with the state in it; peers that offer no loader save nothing."""
    directory = bench.scratch / "peers" / peer.name.replace(" ", "-").replace(",", "")
    fresh_directory(directory)
    if peer.loaders():
        peer.save(state, directory)
        peer.close()
    return peer, directory


def _check(state: ModelState, into: ModelState, directory: Path, loader: Loader) -> None:
    """What is loaded has to be what was saved, or its time means nothing."""
    loader.load(directory, into)
    for (name, saved), target in zip(state.flat().items(), into.flat().values(), strict=True):
        if not torch.equal(saved, target):
            raise AssertionError(f"{loader.name} did not give back {name}")
        target.zero_()


def _peer(peer: Peer, directory: Path, loader: Loader, into: ModelState, *, cold: bool) -> Variant:
    def before() -> None:
        peer.close()  # what is mapped does not leave the cache
        if cold:
            drop_cache(files_below(directory))
        else:
            loader.load(directory, into)

    on_disk = sum(path.stat().st_size for path in files_below(directory))  # some compress
    return Variant(
        name=loader.name,
        kind="peer",
        note=loader.note,
        bytes=into.bytes,
        act=_silent(partial(loader.load, directory, into)),
        before=before,
        cold_bytes=min(into.bytes, on_disk) if cold else 0,
    )


def _result(tables: list[Table], cached_objects: int) -> Result:
    result = Result(tables=tables)
    cold = tables[0]
    ours = [row.name for row in cold.rows if row.kind == "ours"]
    best = min(ours, key=lambda name: cold.row(name).seconds)
    text = f"cold load, verified, of the read probe ({best})"
    result.claim_ratio(text, cold, best, "read probe", 0.88)
    for peer, factor in (("safetensors + copy", 1.7), ("DCP load", 2.0)):
        text = f"cold load, verified, times faster than {peer} ({best})"
        result.claim_ratio(text, cold, best, peer, factor)
    if cached_objects:
        row = tables[1].row("store, host cache")
        each = 1000 * row.seconds / cached_objects
        text = "an object that the host cache holds"
        result.claims.append(
            Claim(text=text, value=each, unit="ms", at_most=OBJECT_MS_MAX, noisy=row.noisy)
        )
    else:
        result.notes.append("this version of the store has no host cache")
    if absent := missing():
        result.notes.append(f"not installed here: {', '.join(absent)}")
    return result


def _silent(act: Callable[[], object]) -> Callable[[], None]:
    def call() -> None:
        act()

    return call


QUESTION = Question(
    title="Loading the whole state",
    about="""A cold load is one whose bytes came from the disk: files are put out of the page cache
    before, and a sample counts only if the process read that much. The store verifies every byte;
    peers do not. Peers copy into resident tensors that one may write to; the store's objects lie in
    memory that was used before, the caller's or its own, and tensors are views of it.""",
    ask=ask,
    needs_model=True,
)
