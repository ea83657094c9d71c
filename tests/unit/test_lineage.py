"""Rule 11: which of two tiers goes on; the pure function, in every short history of two stores.

Method: two logs as lists, with what really happened beside them: which work each state contains.
Work, publications (noted or not), lost RAM disks, and work on the durable store itself are put
together in every order; the choice has to be what the truth asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from shardstore.lineage import ACTIVE, DURABLE, Choice, Link, Side, choose

pytestmark = pytest.mark.req("S16")


@dataclass(frozen=True)
class Tiers:
    """Both logs, oldest first; None is a lost RAM disk."""

    active: tuple[Link, ...] | None
    durable: tuple[Link, ...]
    base: str | None
    count: int = 100
    """Names chain hashes."""

    def choice(self) -> Choice:
        assert self.active is not None
        return choose(Side(links=self.active[::-1], base=self.base), Side(links=self.durable[::-1]))


def link(seq: int, name: int, *, work: bool = True, origin: Link | None = None) -> Link:
    told = None if origin is None else (origin.seq, origin.chain)
    return Link(seq=seq, chain=str(name), is_work=work, origin=told)


def start() -> Tiers:
    first = (link(1, 1), link(2, 2))
    return remade(Tiers(None, first, None))


def remade(t: Tiers) -> Tiers:
    """An active store made of the durable one: its log, and an opening."""
    end = t.durable[-1]
    active = (*t.durable, link(end.seq + 1, t.count, work=False))
    return replace(t, active=active, base=end.chain, count=t.count + 1)


def moves(t: Tiers) -> Iterator[tuple[str, Tiers]]:
    n = t.count
    own = (*t.durable, link(t.durable[-1].seq + 1, n))
    opened = (*t.durable, link(t.durable[-1].seq + 1, n, work=False))
    yield "work on the durable store", replace(t, durable=own, count=n + 1)
    yield "the durable store is opened", replace(t, durable=opened, count=n + 1)
    if t.active is None:
        yield "made anew", remade(t)
        return
    end = t.active[-1]
    trained = (*t.active, link(end.seq + 1, n))
    yield "work", replace(t, active=trained, count=n + 1)
    yield "RAM disk lost", replace(t, active=None, base=None)
    if t.choice().winner == ACTIVE:  # else it is refused
        seq = max(end.seq, t.durable[-1].seq) + 1
        publication = link(seq, n, work=False, origin=end)
        published = replace(t, durable=(*t.durable, publication), count=n + 1)
        yield "published, not noted", published
        noted = (*t.active, link(end.seq + 1, n + 1, work=False))
        yield "published", replace(published, active=noted, base=str(n), count=n + 2)


def wanted(t: Tiers) -> str | None:
    """By what each log contains, looking at all of both."""
    assert t.active is not None
    mine = {x.chain for x in t.active}
    reached = [x.origin for x in t.durable if x.origin and x.origin[1] in mine]
    shared = [(x.seq, x.chain) for x in t.durable if x.chain in mine]
    common = max(seq for seq, _ in [*reached, *shared])
    own = any(x.is_work and x.seq > common for x in t.active)
    foreign = any(x.is_work and x.chain not in mine for x in t.durable)
    if not foreign:
        return ACTIVE
    return None if own else DURABLE


def test_every_history_of_six_events_is_judged_rightly() -> None:
    ahead: list[tuple[list[str], Tiers]] = [([], start())]
    seen = {ACTIVE: 0, DURABLE: 0, None: 0}
    while ahead:
        trace, tiers = ahead.pop()
        if tiers.active is not None:
            found = tiers.choice().winner
            assert found == wanted(tiers), trace
            seen[found] += 1
        if len(trace) < 6:
            ahead += [([*trace, name], after) for name, after in moves(tiers)]
    assert all(count > 500 for count in seen.values()), seen


def test_the_step_and_the_length_of_a_log_do_not_matter() -> None:
    """A durable store that is behind by everything but its own work wins over an idle active."""
    idle = start()
    ahead = replace(idle, durable=(*idle.durable, link(3, 50)))
    assert ahead.choice() == Choice(winner=DURABLE, active_work=(), durable_work=(3,))
    assert idle.active is not None
    long = tuple(link(idle.active[-1].seq + 1 + i, 200 + i) for i in range(9))
    both = replace(ahead, active=(*idle.active, *long))
    assert both.choice() == Choice(winner=None, active_work=tuple(range(4, 13)), durable_work=(3,))


def test_it_reads_no_further_than_it_has_to() -> None:
    """Two long logs that agree at their ends are not walked."""
    read = 0

    def links(*newest: Link) -> Iterator[Link]:
        nonlocal read
        for each in (*newest, *(link(seq, seq) for seq in range(100_000, 0, -1))):
            read += 1
            yield each

    old = link(100_001, 100_001, work=False)
    made = choose(Side(links=links(link(100_002, 7), old), base=old.chain), Side(links=links(old)))
    assert made.winner == ACTIVE and read < 20


def test_an_unknown_publication_is_foreign_work() -> None:
    """Another active store of the lineage published into it."""
    tiers = start()
    other = link(9, 77)
    published = replace(tiers, durable=(*tiers.durable, link(10, 51, work=False, origin=other)))
    assert published.choice().winner == DURABLE
