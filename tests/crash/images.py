"""Images that a crash leaves: which power cuts are tried, and how one differs from a kill."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from shardstore.fs.memory import Operation
from tests.crash.world import CrashFileSystem

SECTOR = 512


def cuts_of(
    killed: CrashFileSystem,
    count: int | None,
    *,
    subsets_max: int = 6,
    samples: int = 16,
    seed: int = 0,
) -> Iterator[CrashFileSystem]:
    """Disks that a power cut may leave. All that the rules of `crash_states` list where `count` is
    None; else that many, the plainest ones and others spread over the rest."""
    if count is None:
        yield from killed.power_cuts(subsets_max=subsets_max, samples=samples, seed=seed)
        return
    if not count:
        return
    plain = -(-count // 2)
    images = killed.power_cuts(subsets_max=subsets_max, samples=min(count, samples), seed=seed)
    yield from islice(images, plain)
    rest = list(images)
    wanted = count - plain
    stride = max(1, len(rest) // wanted) if wanted else 1
    # An odd start keeps the torn variants, which come in fours, from being picked in step.
    yield from islice(rest[stride // 2 :: stride], wanted)


def half_done(
    killed: CrashFileSystem, after: CrashFileSystem, operation: Operation
) -> CrashFileSystem | None:
    """`killed`, as taken before a write, with the first half of the write, whole sectors."""
    offset, length = (int(value) for value in operation.detail)
    half = length // 2 // SECTOR * SECTOR
    if not half:
        return None
    data = bytearray(half)
    source = after.open(operation.path, "read")
    source.pread(offset, data)
    twin = killed.clone()
    twin.open(operation.path, "write").pwrite(offset, data)
    return twin.kill()


def describe(killed: CrashFileSystem, image: CrashFileSystem) -> str:
    """What a power cut lost, in words."""
    before, after = _files(killed), _files(image)
    parts = [f"lost {path}" for path in sorted(before.keys() - after.keys())]
    parts += [f"still {path}" for path in sorted(after.keys() - before.keys())]
    for path in sorted(before.keys() & after.keys()):
        if before[path] != after[path]:
            parts.append(f"{path} {_difference(before[path], after[path])}")
    return "; ".join(part.replace("/run/", "") for part in parts) or "everything kept"


def _difference(before: bytes, after: bytes) -> str:
    words = []
    if len(before) != len(after):
        words.append(f"has {len(after)} bytes of {len(before)}")
    end = min(len(before), len(after))
    places = [
        at for at in range(0, end, SECTOR) if before[at : at + SECTOR] != after[at : at + SECTOR]
    ]
    if places:
        zero = all(not after[at : at + SECTOR].strip(b"\0") for at in places)
        sectors = ",".join(str(at // SECTOR) for at in places[:12])
        words.append(f"{'lacks' if zero else 'has old'} sectors {sectors}")
    return " and ".join(words)


def _files(fs: CrashFileSystem) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        for name in fs.list_directory(directory or "/"):
            path = f"{directory}/{name}"
            if fs.stat(path).is_directory:
                waiting.append(path)
                found[path + "/"] = b""
            elif name != "LOCK":
                data = bytearray(fs.stat(path).size)
                fs.open(path, "read").pread(0, data)
                found[path] = bytes(data)
    return found
