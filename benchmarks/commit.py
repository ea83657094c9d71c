"""How long a durable commit of the whole state takes, beside the disk's limit and the peers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.compare.ours import Committer, Staging
from benchmarks.compare.peer import Peer, missing, peers
from benchmarks.frame.disk import fresh_directory
from benchmarks.frame.physical import Physical
from benchmarks.frame.question import Bench, Question
from benchmarks.frame.result import Result, Table
from benchmarks.frame.rounds import Variant
from benchmarks.frame.state import ModelState, make_state

NOTES: dict[Staging, str] = {
    "donated": "stage of checked-out buffers, then commit: digests, log, syncs",
    "copied": "stage of torch tensors, then commit: copy, digests, log, syncs",
}
FLOORS: dict[Staging, float] = {"donated": 0.88, "copied": 0.75}
FASTER = {
    "v2.9": {"safetensors": 3.0, "torch.save": 3.0, "DCP": 2.7, "LMDB": 1.8},
    "v2.1": {"safetensors": 3.5, "torch.save": 3.5, "DCP": 3.5},
}


def ask(bench: Bench) -> Result:
    state = make_state(bench.model)
    physical = Physical(bench.scratch / "probe", state.object_sizes(), quick=bench.quick)
    variants = [physical.write_probe(), physical.memcpy()]
    committer = Committer(bench.scratch / "run", state, bench.settings)
    variants += store_variants(committer, state.bytes)
    variants += [_peer(bench, state, peer) for peer in peers()]
    title = (
        f"Durable save of {state.bytes / 1e9:.2f} GB (weights, m, v; {len(state.shards)} shards)"
    )
    table = bench.measure(title, variants)
    committer.store.close()
    return _result(bench, table)


def store_variants(committer: Committer, nbytes: int) -> list[Variant]:
    """Waiting commits, and where there are such, commits in the background."""
    found = []
    for staging, note in NOTES.items():
        act = partial(committer.commit, staging)
        found.append(_ours(committer, staging, f"store, {staging}", note, act, nbytes))
        if committer.has_async:
            waiting = partial(committer.commit_async_and_wait, staging)
            note = "as above by commit_async, until durable"
            found.append(
                _ours(committer, staging, f"store, {staging}, async", note, waiting, nbytes)
            )
    return found


def _ours(
    committer: Committer,
    staging: Staging,
    name: str,
    note: str,
    act: Callable[[], dict[str, float] | None],
    nbytes: int,
) -> Variant:
    before = partial(committer.prepare, staging)
    return Variant(name=name, act=act, before=before, note=note, bytes=nbytes)


def _peer(bench: Bench, state: ModelState, peer: Peer) -> Variant:
    directory = bench.scratch / "peers" / peer.name.replace(" ", "-").replace(",", "")
    fresh_directory(directory)
    peer.save(state, directory)  # chooses its settings, fills what it reuses

    def before() -> None:
        state.change()
        if not peer.in_place:
            fresh_directory(directory)

    def after() -> None:
        if not peer.in_place:
            fresh_directory(directory)

    return Variant(
        name=peer.name,
        kind="peer",
        note=peer.note,
        bytes=state.bytes,
        act=lambda: peer.save(state, directory),
        before=before,
        after=after,
    )


def _result(bench: Bench, table: Table) -> Result:
    result = Result(tables=[table])
    for staging, floor in FLOORS.items():
        text = f"durable commit, {staging}, of the probe"
        result.claim_ratio(text, table, f"store, {staging}", "probe", floor)
    for family, factor in FASTER.get(bench.model, {}).items():
        rivals = [row for row in table.rows if row.kind == "peer" and row.name.startswith(family)]
        if rivals:
            best = min(rivals, key=lambda row: row.seconds)
            text = f"durable commit, donated, times faster than {best.name}"
            result.claim_ratio(text, table, "store, donated", best.name, factor)
    if absent := missing():
        result.notes.append(f"not installed here: {', '.join(absent)}")
    return result


QUESTION = Question(
    title="Durable commit of the whole state",
    about="""Weights and both moments in fp32, changed in every tensor before each save. A commit of
    the store goes over slots that earlier steps freed, its steady state; only what a step pays
    beyond computing is timed. Peers write to new files (LMDB over its free pages) from tensors that
    one may write to afterwards; files and directories are synced, deleting old files is not
    timed.""",
    ask=ask,
    needs_model=True,
)
