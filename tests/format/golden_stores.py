"""The golden stores: how those of the newest version are made, and where those of all versions lie.

    python -m tests.format.golden_stores --version 1 [DIR]

DIR is `tests/format/golden/v1` where it is not given; it must not exist. Equal code makes equal
bytes, wherever it runs (`golden_fs`), as far as no other library has a say in them: `ENCODERS`
names those. Below DIR each store has a directory with `expected.json` and `store/`: the sha256 of
each file, and what the store has to show, which `golden_script` knows without reading it.

A golden store is never changed. CONTRIBUTING.md says when one of a new version is made, and how.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardstore import Best, Retention
from shardstore.format.names import FORMAT_VERSION
from shardstore.format.placement import DTYPE_SIZES
from shardstore.salvage import salvage
from tests.format.golden_fs import GoldenFileSystem
from tests.format.golden_script import Expected, Script, Tensors

GOLDEN = Path(__file__).with_name("golden")
PARAMS, OPTIM, LARGE = ("block", "params"), ("block", "optim"), ("large", "params")
SMALL: Tensors = {"w": ("F32", (3, 17)), "n": ("I64", ())}
SHAPES = ((), (0, 3), (7,), (3, 5), (2, 1, 4))
ALL: Tensors = {
    f"{number}.{dtype}": (dtype, SHAPES[number % len(SHAPES)])
    for number, dtype in enumerate(DTYPE_SIZES)
}
PIECES: Tensors = {"pieces": ("F32", (1_048_600,)), "half": ("F16", (9, 9))}
"""The first takes two pieces in an archived object."""
METADATA = {"loss": 2.5, "text": "naïve\n\u2028😀", "nested": {"b": [1, None, True], "a": {}}}
BLOBS = {"rng": bytes(range(256)), "empty": b"", "ключ": b"\0\0"}

Recipe = Callable[[GoldenFileSystem], dict[str, Expected]]
"""Makes stores; what each has to show, by the directory's name."""


def everyday(fs: GoldenFileSystem) -> dict[str, Expected]:
    """Every dtype, metadata, blobs, strange names, two storage formats, names, moves, retention."""
    made = Script(fs, "everyday")
    made.open()
    made.commit(1, {PARAMS: ALL, OPTIM: SMALL, ("a/../b", "ß\n"): {}, LARGE: {"x": ("U8", (9,))}})
    second = made.commit(2, {PARAMS: ALL, OPTIM: SMALL}, metadata=METADATA, blobs=BLOBS)
    made.snapshot("first")
    made.close()
    made.open("safetensors")
    made.commit(3, {OPTIM: SMALL}, remove=[("a/../b", "ß\n")])
    fourth = made.commit(4, {PARAMS: ALL, OPTIM: SMALL}, metadata={"loss": 1.5})
    made.branch("trial")
    made.switch("trial")
    fifth = made.commit(5, {OPTIM: SMALL}, metadata={"loss": float("nan")})
    made.switch("main")
    made.rewind("first")
    made.undo_rewind(fourth)
    made.snapshot("gone")
    made.delete("gone")
    made.close()
    made.open()
    made.retain(Retention(last=1, every=2, best=Best(metric="loss", mode="min")))
    sixth = made.commit(6, {OPTIM: SMALL}, metadata={"loss": 1.75})
    seventh = made.commit(7, {PARAMS: SMALL})
    expected = made.state(second, fourth, fifth, sixth, seventh)
    made.close()
    return {"everyday": expected}


def torch_files(fs: GoldenFileSystem) -> dict[str, Expected]:
    """Objects in files of torch."""
    made = Script(fs, "torch")
    made.open("pt")
    made.commit(1, {PARAMS: ALL, OPTIM: SMALL})
    made.snapshot("first")
    kept = [made.head, made.commit(2, {OPTIM: SMALL})]
    expected = made.state(*kept)
    made.close()
    return {"torch": expected}


def archived(fs: GoldenFileSystem) -> dict[str, Expected]:
    """Two archived snapshots, one as the difference to the other; several pieces; no spare file."""
    made = Script(fs, "archived")
    made.open()
    made.commit(1, {PARAMS: ALL, LARGE: PIECES})
    made.snapshot("one")
    made.archive("one", alone=True)
    made.commit(2, {PARAMS: ALL, LARGE: PIECES})
    made.snapshot("two")
    made.archive("two", against="one")
    for step in (3, 4):
        made.commit(step, {PARAMS: SMALL, LARGE: SMALL})
    made.retain(Retention(last=1))
    made.collect()
    expected = made.state(made.head)
    made.close()
    return {"archived": expected}


def long_log(fs: GoldenFileSystem) -> dict[str, Expected]:
    """A log whose old segments are compressed, and an index over them in the catalog."""
    made = Script(fs, "long")
    fs.real_paths = False  # nothing looks after the log while it is written: that has no fixed time
    made.open(commits_per_segment=20, durability="deferred")
    kept = [made.commit(step, {PARAMS: {"w": ("U8", (5,))}}, metadata={"at": step})
            for step in range(1, 281)]  # fmt: skip
    made.close()
    fs.real_paths = True
    made.open()
    expected = made.state(*kept[-2:])
    made.close()
    return {"long": expected}


def tiers(fs: GoldenFileSystem) -> dict[str, Expected]:
    """An active store, the durable one behind it, and a clone of one commit."""
    made = Script(fs, "active")
    made.open()
    first = made.commit(1, {PARAMS: ALL, OPTIM: SMALL}, metadata=METADATA)
    made.snapshot("first")
    made.publish("durable")
    made.commit(2, {OPTIM: SMALL})
    third = made.commit(3, {PARAMS: SMALL}, remove=[OPTIM])
    made.publish("durable")
    durable = made.state(first, third)
    fourth = made.commit(4, {PARAMS: SMALL})
    active = made.state(third, fourth)
    made.store.clone("/golden/cloned", ref="first")
    cloned = {**active, "heads": {"main": first["seq"]}, "snapshots": {}}
    cloned["kept"] = durable["kept"][:1]
    made.close()
    return {"active": active, "durable": durable, "cloned": cloned}


def interrupted(fs: GoldenFileSystem) -> dict[str, Expected]:
    """What a process that was killed leaves: commits that were not synced, and half an append.

    The machine that wrote it has all whole commits; a copy has those that were durable.
    """
    made = Script(fs, "interrupted")
    made.open(durability="deferred")
    kept = [made.commit(1, {PARAMS: SMALL, OPTIM: SMALL}), made.commit(2, {PARAMS: SMALL})]
    made.store.sync()
    durable = made.state(*kept)
    kept = [made.commit(step, {PARAMS: SMALL}) for step in (3, 4)]
    tail = made.state(*kept)
    made.commit(5, {PARAMS: SMALL})
    real = Path(fs.real(made.root))
    copy = real.with_name("copy")
    shutil.copytree(real, copy)
    made.close()
    shutil.rmtree(real)
    copy.rename(real)
    segment = max((real / "wal").iterdir())
    frames = segment.read_bytes().rstrip(b"\0")
    segment.write_bytes(frames[: -4096 + 1024] + bytes(3072 + 4096))
    return {"interrupted": {**durable, "tail": tail}}


def salvaged(fs: GoldenFileSystem) -> dict[str, Expected]:
    """A store whose newest object was damaged, salvaged, and used again."""
    made = Script(fs, "salvaged")
    made.open()
    made.commit(1, {PARAMS: SMALL, OPTIM: SMALL})
    second = made.commit(2, {PARAMS: SMALL})
    made.snapshot("second")
    made.commit(3, {PARAMS: SMALL})
    made.close()
    newest = max(Path(fs.real(made.root), "objects").iterdir())
    data = bytearray(newest.read_bytes())
    data[4096] ^= 1
    newest.write_bytes(data)
    salvage(fs, made.root)
    made.heads["main"] = second
    made.open()
    fourth = made.commit(4, {OPTIM: SMALL})
    expected = made.state(second, fourth)
    made.close()
    return {"salvaged": expected}


RECIPES: tuple[Recipe, ...] = (
    everyday, torch_files, archived, long_log, tiers, interrupted, salvaged,
)  # fmt: skip
ENCODERS = {"torch": ("torch",), "archived": ("zstandard",), "long": ("zstandard", "lmdb")}
"""Libraries whose own versions a store's bytes depend on."""


def encoder_versions(name: str) -> dict[str, str]:
    """What is installed of those that a store depends on."""
    return {library: _version(library) for library in ENCODERS.get(name, ())}


def _version(library: str) -> str:
    if library == "torch":
        import torch

        return str(torch.__version__)
    if library == "lmdb":
        import lmdb

        return ".".join(map(str, lmdb.version()))
    import zstandard

    return ".".join(map(str, zstandard.ZSTD_VERSION))


def file_digests(store: Path) -> dict[str, str]:
    """sha256 of every file of a store, by its path inside."""
    return {
        path.relative_to(store).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def make(directory: Path, recipes: tuple[Recipe, ...] = RECIPES) -> list[str]:
    """Make all stores of this version in a new directory; their names."""
    directory.mkdir(parents=True)
    try:
        return [name for recipe in recipes for name in _follow(recipe, directory)]
    except BaseException:
        shutil.rmtree(directory)
        raise


def _follow(recipe: Recipe, directory: Path) -> list[str]:
    work = directory / "work"
    work.mkdir()
    states = recipe(GoldenFileSystem(work, recipe.__name__))
    for name, state in states.items():
        store = directory / name / "store"
        store.parent.mkdir()
        (work / name).rename(store)
        _check_for_git(store)
        expected = {
            "version": FORMAT_VERSION,
            "encoders": encoder_versions(name),
            "files": file_digests(store),
            "state": state,
        }
        (store.parent / "expected.json").write_text(_spelled(expected), encoding="ascii")
    shutil.rmtree(work)
    return list(states)


def _spelled(expected: Expected) -> str:
    """JSON for people: what holds nothing nested stands on one line."""
    text = json.dumps(expected, indent=1, sort_keys=True)
    return re.sub(r"\[[^][{}]*\]", lambda row: re.sub(r"\s*\n\s*", " ", row[0]), text) + "\n"


def _check_for_git(store: Path) -> None:
    """git keeps no empty directory, and a store without one of its directories is another."""
    bare = [path for path in store.rglob("*") if path.is_dir() and not any(path.iterdir())]
    assert not bare, f"empty directories, which git does not keep: {bare}"


def read_expected(directory: Path) -> dict[str, Any]:
    """What stands beside a golden store."""
    expected: dict[str, Any] = json.loads((directory / "expected.json").read_text("ascii"))
    return expected


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.format.golden_stores")
    parser.add_argument("--version", type=int, required=True, help="of the format: the newest")
    parser.add_argument("directory", nargs="?", type=Path, help="a new one")
    given = parser.parse_args(arguments)
    if given.version != FORMAT_VERSION:
        parser.error(f"this source makes stores of version {FORMAT_VERSION}, none of another")
    directory = given.directory or GOLDEN / f"v{FORMAT_VERSION}"
    if directory.exists():
        parser.error(f"{directory} is there already; a golden store is never changed")
    print(f"{directory}: {', '.join(make(directory))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
