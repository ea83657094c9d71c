"""Every rule of the ordering table is left out once: the oracle must notice; so must the damage
suites for every check of a digest (`checks`), and readers for the rules of pins (`turns`).

`python -m tests.crash.mutations` writes docs/ordering.md, which a test compares. A mutation is a
rule of the faulty file system (a sync that reports success and does nothing) or a patch of the real
code. The explorer walks a scenario with it and stops at the first, shortest, wrong state; without
the mutation the same walk must find none.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from shardstore.fs.faulty import FaultyFileSystem
from tests.crash import patches
from tests.crash.checks import caught as checks_caught
from tests.crash.checks import render_checks
from tests.crash.crashes import Depth, Profile
from tests.crash.scenarios import SCENARIOS
from tests.crash.turns import PIN_MUTATIONS, render_pins
from tests.crash.turns import caught as pin_caught
from tests.crash.walk import Explorer
from tests.crash.world import Mutate

DOCUMENT = Path(__file__).parents[2] / "docs" / "ordering.md"

ONCE: Profile = (Depth(states=300, parents=1, points=1000, cuts=10),)
"""One crash, of every kind."""
TWICE: Profile = (
    Depth(states=300, parents=1, points=1000, cuts=0),
    Depth(states=300, parents=1, points=1000, cuts=3),
)
"""A kill, then a crash of any kind in the opening or in the work after it."""

Patch = Callable[[], AbstractContextManager[object]]


def _skip(phase: str, op: str, path: str, *, nth: int = 1, times: int | None = None) -> Mutate:
    """Leave operations out: while creating, opening, working, salvaging, or copying one store to
    another."""

    def mutate(faulty: FaultyFileSystem, now: str) -> None:
        if now == phase:
            faulty.skip(op, path, nth=nth, times=times)

    return mutate


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    rule: str
    """The line of the table."""
    name: str
    """What is left out or done wrongly."""
    scenario: str
    profile: Profile = ONCE
    mutate: Mutate | None = None
    patch: Patch = nullcontext


COMMIT = "slots' fdatasync before a durable append; log fdatasync before acknowledgement"
FLAG = "the slot's directory flag"
FREE = "freeing only after the log sync returned"
REF = "object sync before a ref record; its log sync"
OPENING = (
    "at opening: directory sync; slot sync; segment sync before rename; directory sync after; "
    "copies of unproven frames"
)
ROLL = "at a roll: each sync"
CREATE = "create: each sync and order"
COMPRESS = "compress: each sync and order"
TIERS = "clone and publish: each sync and order"
SALVAGE = "salvage: each sync and order"
BESIDE = "beside the table"

MUTATIONS = (
    Mutation(
        rule=COMMIT,
        name="slots are not synced before the append",
        scenario="commit",
        mutate=_skip("work", "datasync", "*/objects/*"),
    ),
    Mutation(
        rule=COMMIT,
        name="the log is not synced before the call returns",
        scenario="commit",
        mutate=_skip("work", "datasync", "*/wal/*.wal"),
    ),
    Mutation(
        rule=COMMIT,
        name="the directory of a new slot is not synced",
        scenario="commit",
        mutate=_skip("work", "sync_directory", "*/objects"),
    ),
    Mutation(
        rule=FLAG,
        name="an abort forgets that its slots are new",
        scenario="abort",
        patch=patches.abort_clears_flag,
    ),
    Mutation(
        rule=FREE,
        name="what a commit will free is free when it begins",
        scenario="commit",
        patch=patches.free_at_begin,
    ),
    Mutation(
        rule=FREE,
        name="what a commit in flight will free is free when it is prepared",
        scenario="in flight",
        patch=patches.free_when_prepared,
    ),
    Mutation(
        rule=FREE,
        name="durability deferred: what only the durable state needs is free",
        scenario="deferred",
        patch=patches.free_by_the_tail,
    ),
    Mutation(
        rule=REF,
        name="objects of deferred commits are not synced before a durable record",
        scenario="deferred",
        patch=patches.ref_without_older_objects,
    ),
    Mutation(
        rule=REF,
        name="a snapshot's manifest object is not synced",
        scenario="snapshot",
        patch=patches.ref_without_object_sync,
    ),
    Mutation(
        rule=REF,
        name="a snapshot's record is not synced",
        scenario="snapshot",
        patch=patches.ref_without_log_sync,
    ),
    Mutation(
        rule=REF,
        name="a deletion's record is not synced, then its slots are staged into",
        scenario="delete",
        patch=patches.ref_without_log_sync,
    ),
    Mutation(
        rule=REF,
        name="gc's record is not synced before its files go",
        scenario="gc",
        patch=patches.gc_without_log_sync,
    ),
    Mutation(
        rule=OPENING,
        name="objects/ is not synced",
        scenario="stage",
        profile=TWICE,
        mutate=_skip("open", "sync_directory", "*/objects"),
    ),
    Mutation(
        rule=OPENING,
        name="the root is not synced",
        scenario="create",
        profile=TWICE,
        mutate=_skip("open", "sync_directory", "/run"),
    ),
    Mutation(
        rule=OPENING,
        name="the directory above the root is not synced",
        scenario="create",
        profile=TWICE,
        mutate=_skip("open", "sync_directory", "/"),
    ),
    Mutation(
        rule=OPENING,
        name="the segment is not synced before its rename",
        scenario="opening",
        mutate=_skip("open", "datasync", "*/wal/tmp"),
    ),
    Mutation(
        rule=OPENING,
        name="wal/ is not synced after the rename",
        scenario="opening",
        mutate=_skip("open", "sync_directory", "*/wal", nth=2),
    ),
    Mutation(
        rule=OPENING,
        name="unproven frames are not copied",
        scenario="failed log sync",
        patch=patches.no_copies,
    ),
    Mutation(
        rule=OPENING,
        name="slots of a copied store are not synced",
        scenario="copy",
        mutate=_skip("open", "datasync", "*/objects/*"),
    ),
    Mutation(
        rule=OPENING,
        name="the log of a copied store is not synced",
        scenario="copy",
        mutate=_skip("open", "datasync", "*/wal/*.wal"),
    ),
    Mutation(
        rule=OPENING,
        name="STORE of a copied store is not synced",
        scenario="copy",
        mutate=_skip("open", "datasync", "*/STORE"),
    ),
    Mutation(
        rule=OPENING,
        name="slots of the state that is chosen are not synced",
        scenario="deferred",
        profile=TWICE,
        mutate=_skip("open", "datasync", "*/objects/*"),
    ),
    Mutation(
        rule=ROLL,
        name="durability deferred: objects are not synced",
        scenario="deferred roll",
        patch=patches.roll_without_object_sync,
    ),
    Mutation(
        rule=ROLL,
        name="durability deferred: the old segment is not synced",
        scenario="deferred roll",
        patch=patches.roll_without_log_sync,
    ),
    Mutation(
        rule=ROLL,
        name="durability deferred: slots are free before the new segment is there",
        scenario="deferred roll without room",
        patch=patches.roll_frees_early,
    ),
    Mutation(
        rule=ROLL,
        name="the segment is not synced before its rename",
        scenario="roll",
        mutate=_skip("work", "datasync", "*/wal/tmp"),
    ),
    Mutation(
        rule=ROLL,
        name="wal/ is not synced after the rename",
        scenario="roll",
        mutate=_skip("work", "sync_directory", "*/wal"),
    ),
    Mutation(
        rule=CREATE,
        name="STORE is not synced before its rename",
        scenario="create",
        mutate=_skip("create", "datasync", "*/STORE.tmp"),
    ),
    Mutation(
        rule=CREATE,
        name="the first segment is not synced",
        scenario="create",
        mutate=_skip("create", "datasync", "*/wal/tmp", times=1),
    ),
    Mutation(
        rule=CREATE,
        name="wal/ is not synced before STORE is there",
        scenario="create",
        mutate=_skip("create", "sync_directory", "*/wal", times=1),
    ),
    Mutation(
        rule=CREATE,
        name="the root is not synced before STORE is there",
        scenario="create",
        mutate=_skip("create", "sync_directory", "/run", times=1),
    ),
    Mutation(
        rule=CREATE,
        name="the root is not synced after STORE is there",
        scenario="create",
        mutate=_skip("create", "sync_directory", "/run", nth=2),
    ),
    Mutation(
        rule=CREATE,
        name="the directory above the root is not synced",
        scenario="create",
        mutate=_skip("create", "sync_directory", "/"),
    ),
    Mutation(
        rule=CREATE,
        name="STORE comes before the first segment",
        scenario="create",
        patch=patches.store_first,
    ),
    Mutation(
        rule=COMPRESS,
        name="the compressed file is not synced before its rename",
        scenario="compress",
        mutate=_skip("work", "datasync", "*/wal/tmp.zst"),
    ),
    Mutation(
        rule=COMPRESS,
        name="wal/ is not synced before the plain segment is unlinked",
        scenario="compress",
        patch=patches.unlink_unsynced,
    ),
    Mutation(
        rule=COMPRESS,
        name="the plain segment is unlinked before the rename",
        scenario="compress",
        patch=patches.unlink_before_rename,
    ),
    Mutation(
        rule=BESIDE,
        name="an opening goes on in the segment that it found",
        scenario="failed append",
        profile=TWICE,
        patch=patches.append_to_found_segment,
    ),
    Mutation(
        rule=BESIDE,
        name="a failed sync of the log does not poison",
        scenario="failed log sync",
        patch=patches.no_poison,
    ),
    Mutation(
        rule=BESIDE,
        name="an archived object does not hold its base",
        scenario="base",
        patch=patches.bases_are_free,
    ),
    Mutation(
        rule=TIERS,
        name="published objects are not synced before they are named",
        scenario="publish",
        mutate=_skip("copy", "datasync", "/run/objects/*"),
    ),
    Mutation(
        rule=TIERS,
        name="the directory of new slots is not synced before a publication",
        scenario="first publication",
        mutate=_skip("copy", "sync_directory", "/run/objects"),
    ),
    Mutation(
        rule=TIERS,
        name="a publication is visible before it is synced",
        scenario="publish",
        mutate=_skip("copy", "datasync", "/run/wal/tmp"),
    ),
    Mutation(
        rule=TIERS,
        name="a publication returns before its name is durable",
        scenario="publish",
        mutate=_skip("copy", "sync_directory", "/run/wal"),
    ),
    Mutation(
        rule=TIERS,
        name="cloned objects are not synced before STORE",
        scenario="clone",
        mutate=_skip("copy", "datasync", "/run/objects/*"),
    ),
    Mutation(
        rule=TIERS,
        name="the cloned log is not synced before STORE",
        scenario="clone",
        mutate=_skip("copy", "datasync", "/run/wal/*.wal"),
    ),
    Mutation(
        rule=TIERS,
        name="the names in a clone are not synced before STORE",
        scenario="clone",
        mutate=_skip("copy", "sync_directory", "/run", nth=2, times=1),
    ),
    Mutation(
        rule=TIERS,
        name="what a clone is of is not durable before anything else",
        scenario="clone",
        mutate=_skip("copy", "datasync", "/run/STORE.tmp"),
    ),
    Mutation(
        rule=SALVAGE,
        name="the segment is not synced before its rename",
        scenario="salvage of objects",
        mutate=_skip("salvage", "datasync", "*/wal/tmp"),
    ),
    Mutation(
        rule=SALVAGE,
        name="wal/ is not synced before files are moved",
        scenario="salvage of objects",
        mutate=_skip("salvage", "sync_directory", "*/wal", nth=2),
    ),
    Mutation(
        rule=SALVAGE,
        name="what goes into quarantine as a copy is not synced",
        scenario="salvage of the log",
        mutate=_skip("salvage", "datasync", "*/quarantine/*/tmp"),
    ),
    Mutation(
        rule=SALVAGE,
        name="the new directory in quarantine/ is not synced before STORE is written anew",
        scenario="salvage of the log",
        mutate=_skip("salvage", "sync_directory", "*/quarantine/*"),
    ),
    Mutation(
        rule=SALVAGE,
        name="a snapshot's new manifest object is not synced",
        scenario="salvage of objects",
        mutate=_skip("salvage", "datasync", "*/objects/*"),
    ),
    Mutation(
        rule=SALVAGE,
        name="STORE, written anew, is not synced",
        scenario="salvage of the log",
        mutate=_skip("salvage", "datasync", "*/STORE"),
    ),
)

NOT_YET = (
    ("create: sync of objects/", "the directory is empty then, and every opening syncs it"),
    (
        "at opening: sync of wal/ before the new segment is made",
        "the sync after its rename covers the same names before anything depends on them",
    ),
    (
        "compress: sync of wal/ after the unlink",
        "without it both forms may be there after a power cut, and the plain one counts",
    ),
    (
        "salvage: sync of objects/ before its record",
        "a new manifest object that a power cut takes is made again by the next salvage",
    ),
)


def find(mutation: Mutation) -> list[str] | None:
    """The shortest trace to a wrong state, None where nothing is found."""
    scenario = SCENARIOS[mutation.scenario]
    with mutation.patch():
        explorer = Explorer(scenario, mutation.profile, mutate=mutation.mutate, findings_max=1)
        findings = explorer.run().findings
    return findings[0] if findings else None


@functools.cache
def caught(index: int) -> list[str] | None:
    return find(MUTATIONS[index])


@functools.cache
def sound(scenario: str, profile: Profile) -> list[list[str]]:
    """Findings of the same walk without a mutation."""
    return Explorer(SCENARIOS[scenario], profile).run().findings


def score() -> list[str]:
    """How many of the mutations are caught, by kind."""
    kinds = {
        "syncs and orderings, by the crash explorer": [
            caught(at) is not None for at in range(len(MUTATIONS))
        ],
        "rules of pins, by stopping a reader and a writer": [
            pin_caught(at) is not None for at in range(len(PIN_MUTATIONS))
        ],
        "checks of digests and manifests, by the damage suites": list(checks_caught().values()),
    }
    every = [one for kind in kinds.values() for one in kind]
    return [
        f"Mutation score: {100 * sum(every) / len(every):.4g} % ({sum(every)} of {len(every)}).",
        *(f"{sum(found)} of {len(found)} {kind}." for kind, found in kinds.items()),
    ]


def render() -> str:
    """The document."""
    lines = [
        "# What catches the loss of each ordering rule",
        "",
        "Written by `python -m tests.crash.mutations`; a test keeps it true. Each line leaves one",
        "rule of the protocol (`docs/design.md`) out of the real code; the crash explorer must",
        "find a wrong state, and finds none with the rule in place.",
        "",
        *(f"{line}  " for line in score()),
        "",
        "| rule | left out or done wrongly | scenario | shortest trace |",
        "|---|---|---|---|",
    ]
    for index, mutation in enumerate(MUTATIONS):
        trace = caught(index)
        shown = "**NOT CAUGHT**" if trace is None else "; ".join(map(_plain, trace[1:-1]))
        lines.append(
            f"| {mutation.rule} | {mutation.name} | {mutation.scenario} | {shown or 'no crash'} |"
        )
    lines += ["", *render_pins(), "", *render_checks()]
    lines += ["", "Lines that do not apply yet:", "", "| line | why |", "|---|---|"]
    lines += [f"| {line} | {reason} |" for line, reason in NOT_YET]
    return "\n".join(lines) + "\n"


def _plain(step: str) -> str:
    """Without offsets and sectors, which move with every change of a record."""
    return re.sub(r" \d+( \d+)?$", "", step.split(" (")[0])


if __name__ == "__main__":
    DOCUMENT.write_text(render())
    print("\n".join(score()))
