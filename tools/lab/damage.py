"""Damage to the files of a closed store: what is read is right, or refused.

Where a reader refuses, fsck must find damage; fsck itself never fails. A damage that kills the
process ends this part, which the laboratory tells as a finding. What is damaged is drawn; the long
profile first flips each byte of metadata, of the log, STORE, marks and every object's header, and
ends with the long forms of the damage suites: every kind of damage, and the index byte by byte.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from shardstore.errors import ShardStoreError
from shardstore.fs.posix import PosixFileSystem
from shardstore.fsck import fsck
from tests.support.damaged_store import HealthyStore
from tools.lab.batches import Batch, in_batches
from tools.lab.part import Lab, Outcome, guarded
from tools.lab.suites import run_suite

LONG_DRAWN = 20_000
_FLIPS_A_BATCH, _DRAWN_A_BATCH = 10_000, 5_000
_HEADER_LENGTH_BYTES = 8
UNIT = "damages"
SUITES = [f"tests/unit/test_{name}.py" for name in ("damage", "damage_table", "catalog")]
Damage = Callable[[HealthyStore, Path, random.Random], None]


def flip(store: HealthyStore, path: Path, draw: random.Random) -> None:
    content = bytearray(store.files[path])
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cut_short(store: HealthyStore, path: Path, draw: random.Random) -> None:
    content = store.files[path]
    path.write_bytes(content[: draw.randrange(len(content))])


def lengthen(store: HealthyStore, path: Path, draw: random.Random) -> None:
    path.write_bytes(store.files[path] + draw.randbytes(draw.randrange(1, 5000)))


def lose(_store: HealthyStore, path: Path, _draw: random.Random) -> None:
    path.unlink()


def outdate(store: HealthyStore, path: Path, draw: random.Random) -> None:
    older = sorted(store.older_slots.get(path, ()))
    path.write_bytes(draw.choice(older) if older else store.files[path])


def swap(store: HealthyStore, path: Path, draw: random.Random) -> None:
    other = draw.choice([p for p in sorted(store.files) if p.parent == path.parent])
    path.write_bytes(store.files[other])
    other.write_bytes(store.files[path])


ANYWHERE: dict[str, Damage] = {"flipped bit": flip}
OBJECTS: dict[str, Damage] = {
    "cut short": cut_short,
    "lengthened": lengthen,
    "lost": lose,
    "outdated": outdate,
    "swapped": swap,
}


def run(lab: Lab) -> Outcome:
    return _long(lab) if lab.long else _timed(lab)


def _timed(lab: Lab) -> Outcome:
    outcome, verdicts = Outcome(unit=UNIT), Counter[str]()
    _drawn(lab, HealthyStore.make(lab.directory / "run"), outcome, verdicts)
    outcome.detail.append(_words(verdicts))
    return outcome


def _long(lab: Lab) -> Outcome:
    store = HealthyStore.make(lab.directory / "plan")
    flips = [(str(path.relative_to(store.root)), places)
             for path in sorted(store.files) for places in _metadata(store, path)]  # fmt: skip
    drawn = LONG_DRAWN // _DRAWN_A_BATCH
    names = [f"{path}, bytes {places[0]} to {places[-1]}" for path, places in flips]
    names += [f"drawn damages {number + 1} of {drawn}" for number in range(drawn)]
    names += [f"{Path(suite).name}, long form" for suite in SUITES]

    def batch(number: int, place: Lab) -> Batch:
        if number >= len(flips) + drawn:
            words = ["--long", SUITES[number - len(flips) - drawn]]
            suite = run_suite(words, place.directory / "suite")
            return Batch(tried=suite.passed, wrong=suite.wrong, data={"suite": suite.line})
        outcome, verdicts = Outcome(), Counter[str]()
        store = HealthyStore.make(place.directory / "run")
        if number < len(flips):
            path, places = flips[number]
            _each_byte(place, store, store.root / path, places, outcome, verdicts)
        else:
            _drawn(replace(place, seed=place.seed + number), store, outcome, verdicts)
        return Batch(tried=outcome.tried, wrong=outcome.wrong, data=dict(verdicts))

    goal = sum(len(places) for _, places in flips)
    outcome, data = in_batches(lab, UNIT, goal + LONG_DRAWN, names, batch)
    flipped = sum((Counter(one) for one in data[: len(flips)]), Counter[str]())
    others = sum((Counter(one) for one in data[len(flips) : len(flips) + drawn]), Counter[str]())
    suites = zip(SUITES, data[len(flips) + drawn :], strict=False)
    files = len({path for path, _ in flips})
    outcome.detail += [
        f"each of {goal:,} bytes of metadata in {files} files flipped: {_words(flipped)}",
        f"{others.total():,} drawn damages: {_words(others)}",
        *(f"{suite}: {values['suite']}" for suite, values in suites),
    ]
    return outcome


def _words(verdicts: Counter[str]) -> str:
    return (
        f"{verdicts['refused']:,} refused and found by fsck, {verdicts['harmless']:,} touched "
        "nothing that is read"
    )


def _metadata(store: HealthyStore, path: Path) -> Iterator[range]:
    """The bytes of a file that are no tensor's, in batches."""
    content = store.files[path]
    end = len(content)
    if path.parent.name == "objects":
        end = _HEADER_LENGTH_BYTES + int.from_bytes(content[:_HEADER_LENGTH_BYTES], "little")
    for begin in range(0, end, _FLIPS_A_BATCH):
        yield range(begin, min(end, begin + _FLIPS_A_BATCH))


def _each_byte(
    lab: Lab, store: HealthyStore, path: Path, places: range, outcome: Outcome,
    verdicts: Counter[str],
) -> None:  # fmt: skip
    """One bit of each, another one from byte to byte."""
    draw = random.Random(lab.seed)
    for at in places:
        damage = functools.partial(_flip_at, at=at, bit=(at + lab.seed) % 8)
        what = f"flipped bit: {path.relative_to(store.root)}, byte {at}"
        guarded(outcome, what, _try, store, path, damage, draw, verdicts)
        store.restore()
        if outcome.tried % 50 == 0:
            lab.tell(outcome.tried)


def _flip_at(store: HealthyStore, path: Path, _draw: random.Random, *, at: int, bit: int) -> None:
    content = bytearray(store.files[path])
    content[at] ^= 1 << bit
    path.write_bytes(content)


def _drawn(lab: Lab, store: HealthyStore, outcome: Outcome, verdicts: Counter[str]) -> None:
    """Of any kind, anywhere, until the time or the batch is over."""
    draw = random.Random(lab.seed)
    while not lab.over and (not lab.long or outcome.tried < _DRAWN_A_BATCH):
        path, name, damage = _draw(store, draw)
        what = f"{name}: {path.relative_to(store.root)}"
        guarded(outcome, what, _try, store, path, damage, draw, verdicts)
        store.restore()
        if outcome.tried % 50 == 0:
            lab.tell(outcome.tried)


def _draw(store: HealthyStore, draw: random.Random) -> tuple[Path, str, Damage]:
    """Metadata and data alike: a file of each directory is as likely as one of another."""
    by_directory: dict[Path, list[Path]] = {}
    for path, content in sorted(store.files.items()):
        if content:
            by_directory.setdefault(path.parent, []).append(path)
    directory = draw.choice(sorted(by_directory))
    path = draw.choice(by_directory[directory])
    kinds = ANYWHERE | (OBJECTS if directory.name == "objects" else {})
    name = draw.choice(sorted(kinds))
    return path, name, kinds[name]


def _try(
    store: HealthyStore, path: Path, damage: Damage, draw: random.Random, verdicts: Counter[str]
) -> None:
    damage(store, path, draw)
    try:
        found = store.read("r")  # AssertionError where anything wrong is handed out
    except ShardStoreError as error:
        refusal: Exception | None = error
    else:
        refusal = found if isinstance(found, Exception) else None
        assert refusal is not None or found == store.head, f"another head: {found}"
    clean = True
    try:
        clean = fsck(PosixFileSystem(), str(store.root), deep=True).clean
    except ShardStoreError:
        clean = False
    assert refusal is None or not clean, f"fsck finds nothing, the reader says {refusal}"
    verdicts["refused" if refusal else "harmless"] += 1
