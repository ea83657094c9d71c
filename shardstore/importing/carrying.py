"""Carrying out a plan: one transaction a step, into a store that exists or is made.

Contract: a step is a commit or nothing; what fails half-way leaves the steps before it, whole, and
the same import goes on after them. Memory is that of the largest part and `MEMORY_BYTES`. What the
head has is not replaced unless that was asked for.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardstore.context import Settings
from shardstore.errors import NameTakenError
from shardstore.fs.calls import storage_error
from shardstore.importing.files import Advance
from shardstore.importing.plan import IMPORTED, Plan, PlannedPart, PlannedStep, facts_of
from shardstore.opening import place
from shardstore.store import Store
from shardstore.transaction import Transaction
from shardstore.views import Commit

MEMORY_BYTES = 256 << 20
SETTINGS = Settings(host_budget_bytes=MEMORY_BYTES)
"""Of stores that are imported into or exported from: nothing is read twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedStep:
    """One commit that an import made."""

    step: int | None
    seq: int | None
    """None where nothing was committed yet."""
    snapshot: str | None
    parts: int
    tensors: int
    bytes: int


def carry_out(store: Store, plan: Plan, *, replace: bool, advance: Advance) -> list[ImportedStep]:
    """Import; gives what was committed, which leaves out what an earlier try had committed."""
    done = 0 if replace else _done_before(store, plan)
    if done:
        _snapshot(store, plan.steps[done - 1])
        for step in plan.steps[:done]:
            advance(step.bytes)
    elif not replace:
        _check_free(store, plan)
    made = []
    for number in range(done, len(plan.steps)):
        step = plan.steps[number]
        commit = _commit(store, plan, number, advance)
        _snapshot(store, step)
        made.append(
            ImportedStep(
                step=commit.step,
                seq=commit.seq,
                snapshot=step.snapshot,
                parts=len(step.parts),
                tensors=sum(len(part.tensors) for part in step.parts),
                bytes=step.bytes,
            )
        )
    return made


def check_room(path: str, plan: Plan) -> None:
    """StorageError where the first commit of a new store cannot find room on its disk."""
    fs, root = place(path, None)
    needed = max(step.bytes for step in plan.steps)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), root)
    while True:
        try:
            free = fs.free_bytes(root)
        except (FileNotFoundError, NotADirectoryError):
            root = posixpath.dirname(root)
            continue
        if needed > free:
            raise storage_error(fs, root, "importing", full, needed=needed)
        return


def _done_before(store: Store, plan: Plan) -> int:
    """How many of the plan's steps the store has, as the last thing that happened to it."""
    head = store.head
    facts = head.metadata.get(IMPORTED) if head is not None else None
    if head is None or not isinstance(facts, Mapping):
        return 0
    number = facts.get("number")
    for at in range(len(plan.steps) - 1):  # after the last there is nothing to go on with
        if number == at + 1 and facts == facts_of(plan, at) and head.step == plan.steps[at].step:
            return at + 1
    return 0


def _check_free(store: Store, plan: Plan) -> None:
    """Nothing of the head may be in the way."""
    head = store.head
    if head is None:
        return
    if plan.whole:
        raise NameTakenError(
            f"store {store.path} has commits (step {head.step}), and {plan.source} is a whole "
            "state: import it into a new store, or give --replace to put it on top of them"
        )
    taken = [f"{p.shard}/{p.part}" for p in plan.steps[0].parts if (p.shard, p.part) in head.parts]
    if taken:
        raise NameTakenError(
            f"the head of store {store.path} has {', '.join(taken[:10])} already; choose other "
            "names (--shard, --part), or give --replace"
        )


def _commit(store: Store, plan: Plan, number: int, advance: Advance) -> Commit:
    planned = plan.steps[number]
    head = store.head
    step = planned.step
    if step is None:
        step = 0 if head is None else head.step
    with store.begin(step) as txn:
        for part in planned.parts:
            _stage(txn, part, advance)
        if plan.whole:
            staged = {(part.shard, part.part) for part in planned.parts}
            for key in sorted((head.parts if head is not None else frozenset()) - staged):
                txn.remove(*key)
        else:
            txn.keep_rest()
        metadata: dict[str, Any] = {**planned.metadata, IMPORTED: facts_of(plan, number)}
        return txn.commit(metadata=metadata, blobs=planned.blobs)


def _stage(txn: Transaction, part: PlannedPart, advance: Advance) -> None:
    """The part's bytes go from its files into the buffer that is written."""
    checkout = txn.blank(part.shard, part.part, [tensor.spec for tensor in part.tensors])
    try:
        for tensor in part.tensors:
            tensor.fill(checkout.raw(tensor.name), advance)
        txn.stage(part.shard, part.part, checkout, donate=True)
    finally:
        checkout.close()
        for file in part.files:
            file.close()


def _snapshot(store: Store, step: PlannedStep) -> None:
    if step.snapshot is not None and all(s.name != step.snapshot for s in store.snapshots):
        store.snapshot(step.snapshot)
