"""Kinds of damage, and the table of what is said of each: `python -m tests.support.damages`.

Each kind spoils a clone of the store in `damaged_world` in many ways, here a seeded few, in the
long profile up to a thousand (tests/unit/test_damage.py reads with every byte flipped there). The
command writes docs/damage.md, which a test compares; what must hold whatever the damage is stands
in tests/unit/test_damage_table.py.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardstore import Ref, Store
from shardstore.format.frames import BLOCK
from shardstore.format.names import SNAPSHOT_SHARD
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fsck.wanted import wanted_objects
from shardstore.wal.reader import list_segments, read_bytes, read_log
from tests.support.damaged_world import SETTINGS, Said, World, another, ask, built
from tests.support.stores import ROOT, tree

DOCUMENT = Path(__file__).parents[2] / "docs" / "damage.md"
WAL = f"{ROOT}/wal"
FEW, MANY = 6, 1000
"""Ways of a kind that are tried in the short profile, and the document, and in the long one."""

Spoil = Callable[[MemoryFileSystem], str]
"""Damages the store; the path of the file that was hit."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table."""

    what: str
    how: str
    ways: Callable[[World], list[Spoil]]
    """Every way to do it, in a fixed order."""

    def chosen(self, world: World, *, long: bool) -> list[Spoil]:
        ways, count = self.ways(world), MANY if long else FEW
        if len(ways) <= count:
            return ways
        inner = random.Random(f"{self.what} {self.how}").sample(range(1, len(ways) - 1), count - 2)
        return [ways[at] for at in (0, *sorted(inner), len(ways) - 1)]


# ---------------------------------------------------------------------- means


def put(fs: MemoryFileSystem, path: str, content: bytes) -> str:
    file = fs.open(path, "replace")
    file.pwrite(0, content)
    file.datasync()
    file.close()
    return path


def flips(path: str, places: range | list[int]) -> list[Spoil]:
    """A byte at each place: all bits, one bit, or to zero, in turn."""

    def flip(fs: MemoryFileSystem, at: int) -> str:
        content = bytearray(read_bytes(fs, path))
        masks = (0xFF, 0x01, content[at] or 0x80)
        content[at] ^= masks[at % 3]
        return put(fs, path, bytes(content))

    return [functools.partial(flip, at=at) for at in places]


def replaced(path: str, contents: list[bytes]) -> list[Spoil]:
    return [functools.partial(_put_over, path=path, content=content) for content in contents]


def _put_over(fs: MemoryFileSystem, path: str, content: bytes) -> str:
    return put(fs, path, content)


def cut_and_longer(path: str, content: bytes) -> list[Spoil]:
    ends = (0, 7, len(content) // 2, len(content) - BLOCK, len(content) - 1)
    shorter = [content[:end] for end in ends if 0 <= end < len(content)]
    return replaced(path, [*shorter, content + b"\0", content + content])


def missing(path: str) -> list[Spoil]:
    def remove(fs: MemoryFileSystem) -> str:
        fs.unlink(path)
        fs.sync_directory(path.rpartition("/")[0])
        return path

    return [remove]


def zeroed(path: str, content: bytes, begin: int, end: int) -> list[Spoil]:
    """One stretch after the other, each of a block, then all."""
    single = [
        content[:at] + bytes(min(BLOCK, end - at)) + content[at + BLOCK :]
        for at in range(begin, end, BLOCK)
    ]
    return replaced(path, [*single, content[:begin] + bytes(end - begin) + content[end:]])


# ---------------------------------------------------------------------- the files


def segment(world: World, back: int = 0) -> tuple[str, bytes]:
    """The newest segment, or one of those before it."""
    index = list_segments(world.fs, ROOT)[-1 - back]
    path = f"{WAL}/{index:016x}.wal"
    return path, read_bytes(world.fs, path)


def frames(world: World) -> dict[str, tuple[int, int]]:
    """Places of the newest segment: header, copies and opening; records; the last; behind it."""
    view = read_log(world.fs, ROOT)
    records, count = view.segment.records, int(view.segment.header["copies"])
    opening, last = records[count].frame, records[-1].frame
    return {
        "header": (0, records[0].frame.offset),
        "opening": (records[0].frame.offset, opening.end),
        "middle": (opening.end, last.offset),
        "last": (last.offset, last.end),
        "behind": (last.end, view.segment.size),
    }


def objects(world: World, part: tuple[str, str], ref: str = "head") -> tuple[str, bytes]:
    """The file of a part of the head, or of what a snapshot's manifest object names."""
    with Store.open(ROOT, "r", fs=world.fs, settings=SETTINGS) as store:
        if part[0] == SNAPSHOT_SHARD:
            reference = store._session.state.snapshots[part[1]].reference
        else:
            target = store._find(Ref.head if ref == "head" else Ref.name(ref))
            reference = target.manifest[part]
    path = f"{ROOT}/{reference.file}"
    return path, read_bytes(world.fs, path)


def unneeded(world: World) -> list[str]:
    needed = {w.reference.file for w in wanted_objects(
        world.fs, ROOT, read_log(world.fs, ROOT).state).objects}  # fmt: skip
    paths = [f"{ROOT}/objects/{name}" for name in world.fs.list_directory(f"{ROOT}/objects")]
    return [path for path in paths if path.removeprefix(f"{ROOT}/") not in needed]


# ---------------------------------------------------------------------- the kinds


def _store_file() -> Iterator[Kind]:
    path = f"{ROOT}/STORE"

    def content(world: World) -> bytes:
        return read_bytes(world.fs, path)

    yield Kind("STORE", "a byte flipped", lambda w: flips(path, range(len(content(w)))))
    yield Kind("STORE", "cut off or longer", lambda w: cut_and_longer(path, content(w)))
    yield Kind("STORE", "zeroed", lambda w: replaced(path, [bytes(len(content(w)))]))
    yield Kind("STORE", "of another store", lambda w: replaced(path, [another()[path]]))
    yield Kind("STORE", "missing", lambda w: missing(path))


def _newest_segment() -> Iterator[Kind]:
    what = "newest segment"

    def within(name: str) -> Callable[[World], list[Spoil]]:
        return lambda w: flips(segment(w)[0], range(*frames(w)[name]))

    for name, words in (
        ("header", "a byte of the header flipped"),
        ("opening", "a byte of copies or opening flipped"),
        ("middle", "a byte of a record flipped"),
        ("last", "a byte of the last record flipped"),
        ("behind", "a byte of the space behind flipped"),
    ):
        yield Kind(what, words, within(name))
    yield Kind(what, "records zeroed", lambda w: zeroed(*segment(w), *frames(w)["middle"]))
    yield Kind(what, "the last record zeroed", lambda w: zeroed(*segment(w), *frames(w)["last"]))
    yield Kind(what, "zeroed", lambda w: replaced(segment(w)[0], [bytes(len(segment(w)[1]))]))
    yield Kind(what, "cut off", _cut_off)
    yield Kind(what, "a record twice", _record_twice)
    yield Kind(what, "two records swapped", _records_swapped)
    yield Kind(what, "an older copy of it", lambda w: replaced(
        segment(w)[0], sorted(w.older[segment(w)[0]])))  # fmt: skip
    yield Kind(what, "the segment before in its place", lambda w: replaced(
        segment(w)[0], [segment(w, 1)[1]]))  # fmt: skip
    yield Kind(what, "of another store", lambda w: replaced(segment(w)[0], [
        content for path, content in sorted(another().items()) if path.startswith(WAL)][-1:]
    ))  # fmt: skip
    yield Kind(what, "missing", lambda w: missing(segment(w)[0]))


def _cut_off(world: World) -> list[Spoil]:
    (path, content), places = segment(world), frames(world)
    ends = [places["header"][1] - 1, places["opening"][1] - 1, places["middle"][1], BLOCK // 2]
    return replaced(path, [content[:end] for end in (*ends, 0)])


def _record_twice(world: World) -> list[Spoil]:
    (path, content), places = segment(world), frames(world)
    begin, end = places["last"]
    record = content[begin:end]
    behind = content[:end] + record + content[end + len(record) :]
    first = places["middle"][0]
    over = content[:first] + record + content[first + len(record) :]
    return replaced(path, [behind, over])


def _records_swapped(world: World) -> list[Spoil]:
    (path, content), places = segment(world), frames(world)
    (begin, end), first = places["last"], places["middle"][0]
    size = end - begin
    pieces = content[:first], content[begin:end], content[first + size : begin]
    return replaced(path, [b"".join((*pieces, content[first : first + size], content[end:]))])


def _older_segments() -> Iterator[Kind]:
    def sealed(world: World) -> tuple[str, bytes]:
        path, content = segment(world, 1)
        cut = int(read_log(world.fs, ROOT).segment.header["predecessor"]["cut"])
        return path, content[:cut]

    def packed(world: World) -> tuple[str, bytes]:
        name = next(n for n in world.fs.list_directory(WAL) if n.endswith(".zst"))
        return f"{WAL}/{name}", read_bytes(world.fs, f"{WAL}/{name}")

    yield Kind("sealed segment", "a byte flipped",
               lambda w: flips(sealed(w)[0], range(len(sealed(w)[1]))))  # fmt: skip
    yield Kind("sealed segment", "missing", lambda w: missing(sealed(w)[0]))
    yield Kind("compressed segment", "a byte flipped",
               lambda w: flips(packed(w)[0], range(len(packed(w)[1]))))  # fmt: skip
    yield Kind("compressed segment", "cut off or longer", lambda w: cut_and_longer(*packed(w)))
    yield Kind("compressed segment", "missing", lambda w: missing(packed(w)[0]))
    yield Kind("the whole log", "zeroed", lambda w: [_log_zeroed])
    yield Kind("the whole log", "missing", lambda w: [_log_gone])


def _log_zeroed(fs: MemoryFileSystem) -> str:
    for name in fs.list_directory(WAL):
        put(fs, f"{WAL}/{name}", bytes(fs.stat(f"{WAL}/{name}").size))
    return WAL


def _log_gone(fs: MemoryFileSystem) -> str:
    for name in fs.list_directory(WAL):
        fs.unlink(f"{WAL}/{name}")
    return WAL


OBJECTS: dict[str, tuple[tuple[str, str], str]] = {
    "raw object of the head": (("a", "params"), "head"),
    "raw object that every step shares": (("still", "p"), "head"),
    "safetensors object": (("plain", "p"), "head"),
    "pt object": (("torch", "p"), "head"),
    "raw object of a snapshot": (("b", "params"), "kept"),
    "archived object": (("b", "params"), "packed"),
    "manifest of a snapshot": ((SNAPSHOT_SHARD, "kept"), "head"),
    "manifest of an archived snapshot": ((SNAPSHOT_SHARD, "packed"), "head"),
}


def _objects() -> Iterator[Kind]:
    for what, (part, ref) in OBJECTS.items():
        file = functools.partial(objects, part=part, ref=ref)
        yield from _kinds_of_object(what, file)


REUSED = ("raw object of the head", "raw object of a snapshot", "manifest of a snapshot")
"""Their files held other objects before."""


def _kinds_of_object(what: str, file: Callable[[World], tuple[str, bytes]]) -> Iterator[Kind]:
    def header(world: World) -> int:
        return min(BLOCK, len(file(world)[1]) // 2)

    def bytes_of_header(world: World) -> list[Spoil]:
        return flips(file(world)[0], range(header(world)))

    def bytes_behind(world: World) -> list[Spoil]:
        path, content = file(world)
        return flips(path, range(header(world), len(content), 7))

    yield Kind(what, "a byte of its beginning flipped", bytes_of_header)
    yield Kind(what, "a byte of its data flipped", bytes_behind)
    yield Kind(what, "zeroed", lambda w: zeroed(*file(w), 0, len(file(w)[1])))
    yield Kind(what, "cut off or longer", lambda w: cut_and_longer(*file(w)))
    yield Kind(what, "missing", lambda w: missing(file(w)[0]))
    if what in REUSED:
        yield Kind(what, "an older content of the file",
                   lambda w: replaced(file(w)[0], sorted(w.older[file(w)[0]])))  # fmt: skip
    yield Kind(what, "another object in its place", lambda w: replaced(file(w)[0], [
        content for path, content in sorted(tree(w.fs, f"{ROOT}/objects").items())
        if content != file(w)[1]]))  # fmt: skip


def _rest() -> Iterator[Kind]:
    def free(world: World) -> list[Spoil]:
        return [
            spoil
            for path in unneeded(world)
            for spoil in (*flips(path, [0, 5000]), *missing(path), *replaced(path, [b""]))
        ]

    yield Kind("object that nothing needs", "flipped, emptied, missing", free)
    yield Kind("LOCK, PINS", "missing or overwritten", _locks)
    strange = (f"{ROOT}/wal/strange", f"{ROOT}/objects/strange.raw", f"{ROOT}/strange")
    spoils = [spoil for path in strange for spoil in replaced(path, [b"?"])]
    yield Kind("files of no store", "in every directory", lambda w: spoils)


def _locks(_world: World) -> list[Spoil]:
    return [
        spoil
        for path in (f"{ROOT}/LOCK", f"{ROOT}/PINS")
        for spoil in (*missing(path), *replaced(path, [b"\xff" * 99]))
    ]


KINDS = (*_store_file(), *_newest_segment(), *_older_segments(), *_objects(), *_rest())


# ---------------------------------------------------------------------- the document


def outcomes(kind: Kind, *, long: bool) -> list[tuple[Said, str, MemoryFileSystem]]:
    """What is said of each way; with the file that was hit, and the store as it was damaged."""
    world, found = built(), []
    for spoil in kind.chosen(world, long=long):
        fs = world.clone()
        path = spoil(fs)
        found.append((ask(world, fs.kill()), path, fs))
    return found


@functools.cache
def said(at: int) -> tuple[tuple[Said, str, MemoryFileSystem], ...]:
    return tuple(outcomes(KINDS[at], long=False))


def render() -> str:
    lines = [
        "# What is said of damage",
        "",
        "Written by `python -m tests.support.damages`; a test keeps it true. Each line damages",
        f"one file of a small store in up to {FEW} seeded ways (in the long profile up to {MANY})",
        "and asks a deep `fsck`, every load, and `recover --salvage`. Step 12 of the store is the",
        "head, 11 is kept, 6 is the snapshot `kept` and where the branch `side` stands, 2 the",
        "archived snapshot `packed`. *right*: every load gives what was written. Where several",
        "things are said the place decides. Whatever the line, no load gives a wrong byte, a",
        "salvage leaves a store that a deep check finds clean (but for sealed segments, which are",
        "history only), and no content of a file is lost by it.",
        "",
        "A store on disk has a `catalog/` besides. Its mark refuses the lines where an older step",
        "is read. Damage of it is a note of fsck and changes no answer: its LMDB file is compared",
        "with its digest before anybody maps it (`tests/unit/test_catalog.py` flips every byte).",
        "",
        "| file | damage | fsck | load | `recover --salvage` |",
        "|---|---|---|---|---|",
    ]
    for at, kind in enumerate(KINDS):
        columns = zip(*(one.words for one, _, _ in said(at)), strict=True)
        cells = [" / ".join(dict.fromkeys(column)) for column in columns]
        lines.append(f"| {kind.what} | {kind.how} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(render())
