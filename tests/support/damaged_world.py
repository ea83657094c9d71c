"""A small store in memory that has one of everything, to be damaged; and what is right about it.

`built` makes it once; a test takes a clone, damages that, and asks `Oracle` whatever it likes:
nothing here decides what should come out. All files are durable, so damage is damage and never an
append that was cut off.

Steps 1 to 12. Seven openings and rolls, old segments compressed. Snapshot `packed` of step 2 is
archived, `kept` is step 6; branch `side` stands on step 6; head and the step before it share no
object but `still`, which is as step 1 wrote it. Parts are raw, but for `plain` and `torch`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

from shardstore import Ref, Store
from shardstore.context import Settings
from shardstore.errors import CorruptionError, NotAStoreError, ShardStoreError
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fsck import Finding, fsck
from shardstore.salvage import Decision, look, salvage
from shardstore.wal.compress import compress_segments
from tests.support.damaged_store import Bytes, everything, tensors
from tests.support.stores import ROOT, tree

SETTINGS = Settings(prewrite_bytes=16384, host_budget_bytes=0, commits_per_segment=4)
RAW_PARTS = (("a", "params"), ("a", "optim"), ("b", "params"))
FOREIGN = (("plain", "p", "safetensors"), ("torch", "p", "pt"))
HEAD = 12


@dataclass(slots=True)
class World:
    """The store, and what each commit holds."""

    fs: MemoryFileSystem
    commits: dict[int, Bytes] = field(default_factory=dict)
    """By step."""
    older: dict[str, set[bytes]] = field(default_factory=dict)
    """Contents that each slot's file, and each segment, had before the last."""

    def clone(self) -> MemoryFileSystem:
        return self.fs.kill()


@functools.cache
def built() -> World:
    world = World(MemoryFileSystem())
    _steps(world, 1, 2, foreign=True)
    with _open(world) as store:
        store.snapshot("packed", "head")
        store.archive("packed")
    _steps(world, 3, 4, 5, 6)
    with _open(world) as store:
        store.snapshot("kept")
        store.branch("side")
    _steps(world, 7, 8)
    _steps(world, 9, 10, 11, 12)
    compress_segments(world.fs, ROOT, bytes_min=0)
    settle(world.fs)
    files = tree(world.fs)
    for path, contents in world.older.items():
        contents.discard(files.get(path, b""))
    return world


@functools.cache
def another() -> dict[str, bytes]:
    """The files of another store, made in the same way."""
    world = World(MemoryFileSystem())
    world.fs.random_bytes(1)
    _steps(world, 1, 2, 3, foreign=True)
    return tree(world.fs)


def _open(world: World, **options: object) -> Store:
    return Store.open(ROOT, "a", fs=world.fs, settings=SETTINGS, **options)  # type: ignore[arg-type]


def _steps(world: World, *steps: int, foreign: bool = False) -> None:
    if foreign:  # in the first step of each format, and kept from then on
        for shard, part, storage_format in FOREIGN:
            with _open(world, format=storage_format) as store, store.begin(0) as txn:
                txn.stage(shard, part, tensors(50))
                txn.keep_rest()
                txn.commit()
    with _open(world) as store:
        for step in steps:
            with store.begin(step) as txn:
                for index, part in enumerate(RAW_PARTS):
                    txn.stage(*part, tensors(1000 * index + step))
                if step == 1:
                    txn.stage("still", "p", tensors(0))
                txn.keep_rest()
                txn.commit({"step": step})
            world.commits[step] = everything(store, Ref.head)
            for path, content in tree(world.fs).items():
                world.older.setdefault(path, set()).add(content)


def settle(fs: MemoryFileSystem) -> None:
    """All files durable."""
    for directory in ("", "/wal", "/objects"):
        for name in fs.list_directory(ROOT + directory):
            path = f"{ROOT}{directory}/{name}"
            if not fs.stat(path).is_directory:
                file = fs.open(path, "write")
                file.datasync()
                file.close()
        fs.sync_directory(ROOT + directory)
    fs.sync_directory("")


# ---------------------------------------------------------------------- what it says


@dataclass(slots=True, kw_only=True)
class Said:
    """What was said of one damaged store, in a few words each."""

    fsck: str
    load: str
    salvage: str
    findings: list[Finding]
    error: ShardStoreError | None
    """The first refusal of opening and loading."""
    decision: Decision | None

    @property
    def words(self) -> tuple[str, str, str]:
        return self.fsck, self.load, self.salvage


def ask(world: World, fs: MemoryFileSystem) -> Said:
    """fsck, loads of everything, and a salvage with its proof; wrong bytes fail the test."""
    checked, found = check(fs)
    load, error = read_all(world, fs)
    repair, decision = repaired(world, fs)
    return Said(
        fsck=checked, load=load, salvage=repair, findings=found, error=error, decision=decision
    )


def check(fs: MemoryFileSystem) -> tuple[str, list[Finding]]:
    """What a deep check finds."""
    try:
        findings = fsck(fs, ROOT, deep=True).findings
    except NotAStoreError:
        return "no store", []
    found = [finding for finding in findings if finding.is_damage]
    if found:
        return "damage", found
    is_torn = any("interrupted append" in finding.what for finding in findings)
    return "interrupted append" if is_torn else "nothing", []


def read_all(world: World, fs: MemoryFileSystem) -> tuple[str, ShardStoreError | None]:
    """Opening for reading and for writing say the same, and so does every load."""
    try:
        with Store.open(ROOT, "r", fs=fs, settings=SETTINGS) as store:
            refused = dict(_refusals(world, store))
            head = store.head.step if store.head else None
    except ShardStoreError as error:
        try:
            Store.open(ROOT, "r+", fs=fs.kill(), settings=SETTINGS).close()
        except ShardStoreError as again:
            assert type(again) is type(error), (again, error)
            return "opening refused", error
        raise AssertionError(f"refused for reading, opened for writing: {error}") from error
    if refused:
        return f"refused: {', '.join(refused)}", next(iter(refused.values()))
    return "right" if head == HEAD else f"step {head}, whole", None


def _refusals(world: World, store: Store) -> Iterator[tuple[str, CorruptionError]]:
    for ref in ("head", "side", "kept", "packed"):
        try:
            there = ref == "head" or ref in {s.name for s in store.snapshots} | set(names(store))
            if there:
                step = store.commit_of(ref).step
                assert everything(store, _ref(ref)) == world.commits[step], f"WRONG BYTES: {ref}"
        except CorruptionError as error:
            yield ref, error


def names(store: Store) -> list[str]:
    return [info.name for info in store.branches]


def _ref(text: str) -> Ref:
    return Ref.head if text == "head" else Ref.name(text)


def repaired(world: World, fs: MemoryFileSystem) -> tuple[str, Decision | None]:
    """What a salvage does, checked: nothing lost, everything whole, the store at work again."""
    before = {content.rstrip(b"\0") for content in _pieces(fs)}
    try:
        promised = look(fs, ROOT)
        decision = salvage(fs, ROOT)
    except ShardStoreError as error:
        return f"refused ({type(error).__name__})", None
    assert promised.to_json() == decision.to_json()
    assert before <= {content.rstrip(b"\0") for content in _pieces(fs)}, "salvage lost something"
    if not decision.needed:
        return "nothing to do", decision
    assert not salvage(fs, ROOT).needed
    left = [f.line() for f in fsck(fs, ROOT, deep=True).findings if f.is_damage]
    old = [line for line in left if not _of_history(line)]
    assert not old, f"damage is left: {old}"
    with Store.open(ROOT, "r+", fs=fs.kill(), settings=SETTINGS) as store:
        assert dict(_refusals(world, store)) == {}
        with store.begin(HEAD + 1) as txn:
            txn.keep_rest()
            txn.commit()
    return _words(decision), decision


def _of_history(line: str) -> bool:
    return f"{ROOT}/wal/" in line


def _pieces(fs: MemoryFileSystem) -> list[bytes]:
    kept = tuple(f"{ROOT}/{name}" for name in ("objects", "wal", "STORE", "quarantine"))
    return [content for path, content in tree(fs).items() if path.startswith(kept)]


def _words(decision: Decision) -> str:
    head = decision.state.head
    words = [f"step {head.step}" if head else "empty"]
    words += ["unproven"] * decision.unproven
    words += ["STORE anew"] * bool(decision.evidence.store)
    lost = {"kept", "packed"} - decision.state.snapshots.keys()
    words += [f"without {name}" for name in sorted(lost)]
    words += ["without side"] * ("side" not in decision.state.branches and not decision.unproven)
    return ", ".join(words)
