"""Which disks a power cut may leave: enumerates the legal states of a memory file system.

Legal, each independently of every other:
- an unsynced write: lost, kept, or torn at 512 bytes (a prefix, a suffix, a sector missing). Where
  writes overlap, a sector has any of the versions it had since the last sync. Lost and beyond the
  durable size is zero once the size is kept.
- the size: any it had since the last sync, apart from data: without data there are zeros, data
  without size is cut. A shrinking that is lost leaves the old bytes.
- a name: any of the states it had since the directory's last sync. A rename: the old name, the new
  one, or both; never neither, since every file system the store runs on keeps a rename whole or
  adds the new name first. What is reachable from no name is gone, synced or not.

Not modelled: old contents of other files in newly allocated blocks, and damage to what is durable.
All these are units with a few variants (0 lost, 1 kept, others torn or between); a vector has one
variant a unit. Prefixes in time come first; up to `subsets_max` units every subset follows, beyond
that one unit out or in, then two, the nearest in time first. Then torn variants, among the others
kept, lost, earlier or later, and samples.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

import xxhash

from shardstore.fs.memory_nodes import (
    Content,
    DirectoryNode,
    FileEffect,
    FileNode,
    NameEffect,
    Node,
    Ranges,
    SectorWrite,
    SizeChange,
    replay,
)

LOST, KEPT = 0, 1
NAMES = 0
"""Owner of the units of directory entries; files are owned by their inode, which is never 0."""
_SHORT_SECTORS = 16

Vector: TypeAlias = tuple[int, ...]
Listing: TypeAlias = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Unit:
    """One thing that reaches the disk or does not."""

    owner: int
    sequences: tuple[int, ...]
    """When it happened; for the sizes of a file, when each of them did."""
    variants: int
    tears: tuple[Ranges, ...] = ()
    effect: SectorWrite | None = None

    def at(self, sequence: int) -> int:
        """Its variant when everything up to `sequence` and nothing later was kept."""
        level = sum(own <= sequence for own in self.sequences)
        if level == len(self.sequences):
            return KEPT
        return LOST if level == 0 else level + 1

    def level(self, variant: int) -> int:
        """How many of its sizes were kept."""
        return {LOST: 0, KEPT: len(self.sequences)}.get(variant, variant - 1)

    def ranges(self, variant: int) -> Ranges:
        """Which sectors of its write were kept."""
        assert self.effect is not None
        if variant > KEPT:
            return self.tears[variant - 2]
        return ((0, self.effect.count),) if variant == KEPT else ()


def tears(count: int) -> tuple[Ranges, ...]:
    """How a write of `count` sectors may tear; all of these for a short one, else a selection."""
    inner = range(1, count)
    places = list(inner) if count <= _SHORT_SECTORS else [1, count // 2, count - 1]
    found: dict[Ranges, None] = {}
    for place in places:
        found[((0, place),)] = None
        found[((place, count),)] = None
    for place in [place for place in places if place < count - 1]:
        found[((0, place), (place + 1, count))] = None
    return tuple(found)


def _matters(write: SectorWrite, node: FileNode) -> bool:
    """False for a write that changes nothing whatever else is kept (zeros over nothing)."""
    start, end = write.offset, write.end
    for other in node.effects:
        if isinstance(other, SizeChange):
            if other.shrinks:
                return True
        elif other is not write and max(start, other.offset) < min(end, other.end):
            return True
    return node.durable.sectors(write.offset, len(write.data)) != write.data


def file_units(inode: int, node: FileNode) -> list[Unit]:
    units: list[Unit] = []
    sizes = tuple(effect.sequence for effect in node.effects if isinstance(effect, SizeChange))
    if sizes:
        units.append(Unit(inode, sizes, len(sizes) + 1))
    for effect in node.effects:
        if isinstance(effect, SectorWrite) and _matters(effect, node):
            torn = tears(effect.count)
            units.append(Unit(inode, (effect.sequence,), 2 + len(torn), torn, effect))
    return units


def _name_unit(effect: NameEffect, node: Node) -> Unit:
    """A directory has one name at any time; a file may be left with both."""
    both = effect.kind == "move" and isinstance(node, FileNode)
    return Unit(NAMES, (effect.sequence,), 3 if both else 2)


def listing(entries: Mapping[int, Mapping[str, int]], root: int) -> Listing:
    """Every reachable path with its inode, sorted; `entries` has the directories only."""
    found: Listing = []
    waiting = [("", root)]
    while waiting:
        prefix, directory = waiting.pop()
        for name, inode in entries[directory].items():
            path = f"{prefix}/{name}"
            found.append((path, inode))
            if inode in entries:
                waiting.append((path, inode))
    found.sort()
    return found


def observable(found: Listing, nodes: Mapping[int, Node]) -> bytes:
    """Digest of names, kinds, sizes and contents."""
    parts: list[bytes] = []
    for path, inode in found:
        node = nodes[inode]
        parts.append(path.encode("utf-8", "surrogateescape"))
        if isinstance(node, DirectoryNode):
            parts.append(b"\0d")
        else:
            parts.append(b"\0l" if node.is_lock else b"\0f" + node.content.digest)
    return xxhash.xxh3_128_digest(b"".join(parts))


class PowerCuts:
    """Builds the disks for one state of the file system; pieces are shared between them."""

    def __init__(self, nodes: Mapping[int, Node], names: Sequence[NameEffect], root: int) -> None:
        self._nodes = nodes
        self._names = names
        self._root = root
        self._built: dict[tuple[int, Vector], FileNode] = {}
        self._trees: dict[Vector, tuple[Listing, dict[int, Node]]] = {}
        reachable = {root, *(effect.inode for effect in names)}
        for node in nodes.values():
            if isinstance(node, DirectoryNode):
                reachable.update(node.durable.values())
        self._reachable = reachable
        units = [_name_unit(effect, nodes[effect.inode]) for effect in names]
        for inode in sorted(reachable):
            node = nodes[inode]
            if isinstance(node, FileNode):
                units += file_units(inode, node)
        self.units = sorted(units, key=lambda unit: unit.sequences)
        self._positions: dict[int, list[int]] = {NAMES: []}
        for position, unit in enumerate(self.units):
            self._positions.setdefault(unit.owner, []).append(position)

    def disk(self, vector: Vector) -> tuple[dict[int, Node], bytes]:
        """The nodes left by one vector, and the digest of what can be observed."""
        found, directories = self._tree(tuple(vector[at] for at in self._positions[NAMES]))
        nodes = dict(directories)
        for _, inode in found:
            if inode not in nodes:
                nodes[inode] = self._file(inode, vector)
        return nodes, observable(found, nodes)

    def fingerprint(self) -> bytes:
        """Digest of the durable state and of everything unsynced."""
        state = xxhash.xxh3_128()
        for effect in self._names:
            state.update(repr(replace(effect, sequence=0)).encode())
        for inode in sorted(self._reachable):
            node = self._nodes[inode]
            if isinstance(node, DirectoryNode):
                state.update(f"{inode}{sorted(node.durable.items())}".encode())
            else:
                state.update(f"{inode}".encode() + node.durable.digest)
                for change in node.effects:
                    state.update(change.identity())
        return state.digest()

    def _tree(self, choices: Vector) -> tuple[Listing, dict[int, Node]]:
        tree = self._trees.get(choices)
        if tree is None:
            entries = {
                inode: dict(node.durable)
                for inode, node in self._nodes.items()
                if isinstance(node, DirectoryNode)
            }
            for effect, variant in zip(self._names, choices, strict=True):
                if variant != LOST:
                    effect.apply(entries, leave_source=variant > KEPT)
            found = listing(entries, self._root)
            kept = {inode for _, inode in found if inode in entries} | {self._root}
            directories: dict[int, Node] = {
                inode: DirectoryNode(entries[inode], entries[inode]) for inode in kept
            }
            tree = self._trees[choices] = (found, directories)
        return tree

    def _file(self, inode: int, vector: Vector) -> FileNode:
        positions = self._positions.get(inode, [])
        key = (inode, tuple(vector[at] for at in positions))
        node = self._built.get(key)
        if node is None:
            before = self._nodes[inode]
            assert isinstance(before, FileNode)
            content = self._content(before, positions, vector) if positions else before.durable
            node = FileNode(content, content, is_lock=before.is_lock)
            self._built[key] = node
        return node

    def _content(self, node: FileNode, positions: list[int], vector: Vector) -> Content:
        writes: dict[int, Ranges] = {}
        level = 0
        for position in positions:
            unit, variant = self.units[position], vector[position]
            if unit.effect is None:
                level = unit.level(variant)
            else:
                writes[unit.effect.sequence] = unit.ranges(variant)
        chosen: list[tuple[FileEffect, Ranges]] = []
        for effect in node.effects:
            if isinstance(effect, SectorWrite):
                chosen.append((effect, writes.get(effect.sequence, ())))
            else:
                chosen.append((effect, ((0, 0),) if level > 0 else ()))
                level -= 1
        return replay(node.durable, chosen)


def vectors(
    units: Sequence[Unit], *, subsets_max: int, samples: int, seed: int
) -> Iterator[Vector]:
    """Choices to try, the plainest first; some may repeat."""
    count = len(units)
    yield (LOST,) * count
    yield (KEPT,) * count
    for sequence in sorted({own for unit in units for own in unit.sequences}):
        yield tuple(unit.at(sequence) for unit in units)
    if count <= subsets_max:
        yield from product((LOST, KEPT), repeat=count)
    else:
        yield from _few(count)
    yield from _torn(units)
    draw = random.Random(seed)
    for _ in range(samples if count else 0):
        yield tuple(
            draw.randrange(unit.variants) if draw.random() < 0.25 else draw.randrange(2)
            for unit in units
        )


def _few(count: int) -> Iterator[Vector]:
    """One or two units kept or lost among all others; one first, then pairs near in time."""
    for distance in range(count):
        for first in range(count - distance):
            for most in (KEPT, LOST):
                vector = [most] * count
                vector[first] = vector[first + distance] = 1 - most
                yield tuple(vector)


def _torn(units: Sequence[Unit]) -> Iterator[Vector]:
    count = len(units)
    for at, unit in enumerate(units):
        for variant in range(2, unit.variants):
            for before, after in ((KEPT, LOST), (KEPT, KEPT), (LOST, LOST), (LOST, KEPT)):
                yield (before,) * at + (variant,) + (after,) * (count - at - 1)
