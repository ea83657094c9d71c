"""Damage to the files of a closed store, drawn at random: what is read is right, or refused.

Where a reader refuses, fsck must find damage; fsck itself never fails. A damage that kills the
process ends this part, which the laboratory tells as a finding.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from shardstore.errors import ShardStoreError
from shardstore.fs.posix import PosixFileSystem
from shardstore.fsck import fsck
from tests.support.damaged_store import HealthyStore
from tools.lab.part import Lab, Outcome, guarded

LONG_TRIALS = 20_000
_CATALOG_SHARE = 0.1
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
    outcome, draw = Outcome(unit="damages"), random.Random(lab.seed)
    store = HealthyStore.make(lab.directory / "run")
    verdicts: Counter[str] = Counter()
    while not lab.over and (not lab.long or outcome.tried < LONG_TRIALS):
        path, name, damage = _draw(store, draw)
        what = f"{name}: {path.relative_to(store.root)}"
        guarded(outcome, what, _try, store, path, damage, draw, verdicts)
        store.restore()
        if outcome.tried % 50 == 0:
            lab.tell(outcome.tried, LONG_TRIALS if lab.long else 0)
    outcome.detail.append(
        f"{verdicts['refused']} were refused, {verdicts['harmless']} touched nothing that is read"
    )
    return outcome


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
