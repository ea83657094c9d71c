"""Which of two tiers goes on: rule 11 of docs/design.md, by lineage and sequence, never by step.

Contract: `choose` is pure and looks at the two logs only, from their newest records backwards and
no further than it has to. A chain hash covers all records before it, so one record in common means
everything below in common. Work is what somebody did: commits, names and moves; opening, syncing,
publishing, collecting and the rule of retention are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardstore.format.manifest import Publication
from shardstore.fs.protocol import FileSystem
from shardstore.records import Record, all_records
from shardstore.wal.reader import LogView

ACTIVE, DURABLE = "active", "durable"
_NO_WORK = frozenset({"open", "sync", "base", "unkeep", "retention"})
PUBLISH = "publish"
"""The reason of an opening record by which a durable store took over another state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What matters of one record."""

    seq: int
    chain: str
    is_work: bool = False
    origin: tuple[int, str] | None = None
    """Of a publication: sequence number and chain hash of the active store's record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One tier's log."""

    links: Iterable[Link]
    """Newest first."""
    base: str | None = None
    """Chain hash of the durable store's record that the active one knows it had in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What rule 11 says."""

    winner: str | None
    """`active`, `durable`, or None where neither follows from the other."""
    active_work: tuple[int, ...]
    """Newest records of the active store's own work that the durable one does not have."""
    durable_work: tuple[int, ...]
    """Records of the durable store's work that the active one knows nothing of."""


def choose(active: Side, durable: Side) -> Choice:
    """All work of the durable store that came after `base` has its origin in the active store's
    log: the active one. Else, no own work in the active store since the last publication: the
    durable one. Else nobody."""
    known = _Known(active.links)
    unknown: list[int] = []
    common = 0
    for link in durable.links:
        published = link.origin is not None and known.has(*link.origin)
        if link.origin is not None and published:
            common = max(common, link.origin[0])
        if known.has(link.seq, link.chain):
            common = max(common, link.seq)
            break
        if link.chain == active.base:
            break
        if link.is_work or (link.origin is not None and not published):
            unknown.append(link.seq)
    own = known.work_since(common)
    winner: str | None = DURABLE if not own else None
    if not unknown:
        winner = ACTIVE
    return Choice(winner=winner, active_work=own, durable_work=tuple(unknown))


def side(fs: FileSystem, root: str, view: LogView) -> Side:
    """A store's log for `choose`."""
    base = view.state.base
    links = (_link(r.seq, r.chain, r.body) for r in _own(all_records(fs, root, view)))
    return Side(links=links, base=None if base is None else base.chain)


def _own(records: Iterable[Record]) -> Iterator[Record]:
    """As far back as the store has all that it came from: a clone of one commit does not stand for
    the names and commits that were left behind, so what was before it is another store's."""
    for record in records:
        yield record
        if _begins_with_a_part(record.body):
            return


def _begins_with_a_part(body: Mapping[str, Any]) -> bool:
    return body["type"] == "open" and bool(body.get("part"))


def _link(seq: int, chain: str, body: Mapping[str, Any]) -> Link:
    kind = body["type"]
    origin = None
    if kind == "open" and body["reason"] == PUBLISH:
        told = Publication.from_json(body["origin"])
        assert told is not None
        origin = (told.seq, told.chain)
    is_work = kind not in _NO_WORK or _begins_with_a_part(body)
    return Link(seq=seq, chain=chain, is_work=is_work, origin=origin)


class _Known:
    """A log, read backwards as far as was asked for."""

    def __init__(self, links: Iterable[Link]) -> None:
        self._rest: Iterator[Link] = iter(links)
        self._chains: dict[int, str] = {}
        self._work: list[int] = []
        self._lowest: int | None = None

    def has(self, seq: int, chain: str) -> bool:
        self._read_to(seq)
        return self._chains.get(seq) == chain

    def work_since(self, seq: int) -> tuple[int, ...]:
        """Records of work above that number, oldest first."""
        self._read_to(seq + 1)
        return tuple(sorted(found for found in self._work if found > seq))

    def _read_to(self, seq: int) -> None:
        while self._lowest is None or self._lowest > seq:
            link = next(self._rest, None)
            if link is None:
                self._lowest = 0
                return
            self._lowest = link.seq
            self._chains[link.seq] = link.chain
            if link.is_work:
                self._work.append(link.seq)
