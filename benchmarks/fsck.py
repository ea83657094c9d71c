"""How fast every byte of a store is checked, beside plain reading."""

from __future__ import annotations

from pathlib import Path

from benchmarks.compare.ours import open_store
from benchmarks.frame.disk import drop_cache, files_below
from benchmarks.frame.physical import Physical
from benchmarks.frame.question import Bench, Question
from benchmarks.frame.result import Result
from benchmarks.frame.rounds import Variant
from benchmarks.frame.state import make_state
from shardstore.fs.posix import PosixFileSystem
from shardstore.fsck import fsck


def ask(bench: Bench) -> Result:
    state = make_state(bench.model)
    path = bench.scratch / "run"
    with open_store(path, "a", bench.settings) as store, store.begin(1) as transaction:
        for (shard, part), tensors in state.parts.items():
            transaction.stage(shard, part, tensors)
        transaction.commit()
    sizes = state.object_sizes()
    physical = Physical(bench.scratch / "probe", sizes, quick=bench.quick)
    variants = [
        physical.read_probe(),
        Variant(
            name="fsck --deep",
            note="the log, every frame, every byte of every object",
            act=lambda: _check(path, deep=True),
            before=lambda: drop_cache(files_below(path)),
            bytes=sum(sizes),
            cold_bytes=sum(sizes),
        ),
    ]
    table = bench.measure(f"Checking {sum(sizes) / 1e9:.2f} GB", variants)
    quick = Variant(name="fsck", note="log and headers", act=lambda: _check(path, deep=False))
    result = Result(tables=[table, bench.measure("Without the objects' data", [quick])])
    result.claim_ratio("fsck --deep, of the read probe", table, "fsck --deep", "read probe", 0.85)
    return result


def _check(path: Path, *, deep: bool) -> None:
    report = fsck(PosixFileSystem(), str(path), deep=deep)
    assert report.clean, report.findings


QUESTION = Question(
    title="Checking every byte",
    about="""`fsck --deep` in this process over a store of one commit, its files out of the page
    cache, beside direct reads of files of the same sizes.""",
    ask=ask,
    needs_model=True,
)
