"""What processes do before and after they crash.

A scenario prepares a store (no crashes there), runs a program in which every operation may be the
last, and then, whatever was found after each crash, goes on with its work, in which it may crash
again. Segments hold three commits, so that most programs roll.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from shardstore.context import Settings
from shardstore.errors import PoisonedError, StorageError
from shardstore.format.names import RAW, SAFETENSORS
from shardstore.wal.compress import compress_segments
from shardstore.wal.reader import read_bytes
from tests.crash import repairs, tiers
from tests.crash.oracle import ROOT, Violation
from tests.crash.world import SETTINGS, MakeSettings, World
from tests.support.workers import HeldWorkers

Act = Callable[[World], None]


def nothing(world: World) -> None:
    """No preparation: not even a store."""


def start(world: World) -> None:
    world.open()
    world.commit("a", "b")


def start_with_spare(world: World) -> None:
    """Steady state: a third commit reuses the slots of the first."""
    start(world)
    world.commit("a", "b")


def start_with_snapshot(world: World) -> None:
    start(world)
    world.snapshot("s1")
    world.commit("a", "b")
    world.commit("a", "b")


def start_branched(world: World) -> None:
    """Two branches, one of them ahead; a third commit reuses slots."""
    start(world)
    world.branch("b1")
    world.commit("a", "b")
    world.commit("a")


def start_hoarding(world: World) -> None:
    """More commits are kept than the default asks for."""
    start(world)
    world.keep_last(4)
    for _ in range(4):
        world.commit("a", "b")


def start_copied(world: World) -> None:
    """The directory was copied and nothing of the copy is synced; its first opening is through."""
    start(world)
    world.snapshot("s1")
    world.commit("a")
    world.close()
    fs = world.fs
    fs.rename(ROOT, "/original")
    for directory in ("", "/wal", "/objects"):
        fs.make_directory(ROOT + directory)
        for name in fs.list_directory("/original" + directory):
            path = f"{directory}/{name}"
            if name != "LOCK" and not fs.stat("/original" + path).is_directory:
                data = read_bytes(fs, "/original" + path)
                fs.open(ROOT + path, "create").pwrite(0, data)
    world.open()


def start_with_old_segments(world: World) -> None:
    start_with_spare(world)
    for _ in range(7):
        world.commit("a")


def work(world: World) -> None:
    """After a crash: one commit of everything, one that keeps a part. Slots are reused."""
    world.commit("a", "b")
    world.commit("a")
    world.check()


def one_commit(world: World) -> None:
    """After a crash: as little as can be acknowledged."""
    world.commit("a", "b")
    world.check()


def work_with_refs(world: World) -> None:
    """After a crash: commits around a snapshot."""
    world.commit("a", "b")
    names = {name for name, _ in world.state.snapshots}
    name = next(name for name in ("w1", "w2", "w3", "w4") if name not in names)
    world.snapshot(name)
    world.commit("a")
    world.check()


# ---------------------------------------------------------------------------- programs


def create(world: World) -> None:
    world.open()
    world.commit("a", "b")


def create_by_name(world: World) -> None:
    """What a crash left of it is finished by the next opening."""
    world.create()
    world.commit("a", "b")


def commit(world: World) -> None:
    world.commit("a", "b")
    world.commit("a", "b")
    world.commit("a", "b")


def abort(world: World) -> None:
    """The aborted transactions create slots, which the next commit fills."""
    world.abort("a", "b", flavour="x")
    world.commit("a", "b")
    world.abort("a", flavour="y")
    world.commit("a")


def stage(world: World) -> None:
    world.abort("a", "b")


def copy(world: World) -> None:
    world.commit("a")
    world.commit("a", "b")


def keep_and_remove(world: World) -> None:
    world.commit("a", "c")
    world.commit("b", remove=("c",))
    world.commit("c", remove=("a",))
    world.commit("a", "b", remove=("c",))


def donate(world: World) -> None:
    """Buffers that were checked out go out as they stand; a part that did not change is no new
    object."""
    world.donate("a")
    world.stage_again("b")
    world.donate("b", blank=True)
    world.commit("a", "b")


def snapshot(world: World) -> None:
    world.snapshot("s1")
    world.commit("a")
    world.snapshot("s2")
    world.commit("a", "b")


def delete(world: World) -> None:
    """The fourth change that can be undone forgets the first: its slots are written again."""
    world.delete("s1")
    for name in ("s2", "s3", "s4"):
        world.snapshot(name)
        world.delete(name)
    world.commit("a", "b")
    world.commit("a", "b")


def rewind(world: World) -> None:
    world.rewind("s1")
    world.commit("a", "b", flavour="r")
    world.commit("a", flavour="r")


def undo(world: World) -> None:
    world.rewind("s1")
    world.undo()
    world.commit("a", "b")
    world.delete("s1")
    world.undo()
    world.rewind("s1")
    world.commit("a", flavour="u")
    world.undo()
    world.commit("b")


def branch(world: World) -> None:
    """Both branches go on from one commit; its slots are shared, the others change hands."""
    world.branch("b1")
    world.commit("a", "b")
    world.switch("b1")
    world.commit("a", flavour="b")
    world.branch("b2")
    world.commit("b", flavour="b")


def switch(world: World) -> None:
    """The head that the oldest switch left is kept until a fourth change forgets it."""
    world.switch("b1")
    world.switch("main")
    world.commit("a", "b")
    world.commit("a", "b")
    world.undo()
    world.commit("a", flavour="b")
    world.switch("main")
    world.switch("b1")
    world.commit("a", "b", flavour="b")


def delete_branch(world: World) -> None:
    """Back once, then forgotten: its slots are written again."""
    world.delete_branch("b1")
    world.commit("a", "b")
    world.undo()
    world.delete_branch("b1")
    for name in ("s1", "s2", "s3"):
        world.snapshot(name)
        world.delete(name)
    world.commit("a", "b")
    world.commit("a", "b")


def gc(world: World) -> None:
    """A stricter rule, what it gives up, and files that go; new ones take their place."""
    world.keep_last(1)
    world.gc()
    world.commit("a", "b")
    world.gc(everything=True)
    world.commit("a", "b")
    world.keep_last(2)
    world.commit("a")


def reuse(world: World) -> None:
    """Slots change hands between parts, aborted transactions and manifest objects."""
    world.abort("b", flavour="x")
    world.commit("b")
    world.snapshot("s1")
    world.commit("a")
    world.delete("s1")
    world.commit("a", "b")


def convert(world: World) -> None:
    """Files of two storage formats; after a crash the work goes on in raw."""
    world.convert(SAFETENSORS)
    world.commit("a")
    world.convert(RAW)
    world.commit("a", "b")


def archive(world: World) -> None:
    """Two snapshots share a packed object, which outlives one of them; what was packed is free."""
    world.rewind("s1")
    world.commit("a")
    world.snapshot("s2")
    world.archive("s1")
    if not world.archive("s2", against="s1").shared:
        raise Violation("the part that both snapshots have is packed twice")
    world.commit("a", "b")
    _forget(world, "s1")
    world.commit("a", "b")
    world.rewind("s2")
    world.commit("a")


def base(world: World) -> None:
    """A raw object is a base, and after a while nothing else."""
    world.rewind("s1")
    world.commit("a")
    world.snapshot("s2")
    if not world.archive("s2", against="s1").deltas:
        raise Violation("the part that both snapshots have is no difference")
    world.commit("a", "b")
    world.commit("a", "b")
    _forget(world, "s1")
    world.commit("a", "b")
    world.gc(everything=True)
    world.commit("a", "b")


def _forget(world: World, name: str) -> None:
    """Delete a snapshot, and three more: undo cannot bring it back."""
    world.delete(name)
    for other in ("s3", "s4", "s5"):
        world.snapshot(other)
        world.delete(other)


def roll(world: World) -> None:
    for _ in range(4):
        world.commit("a")


def opening(world: World) -> None:
    world.reopen()
    world.reopen()
    world.commit("a", "b")
    world.reopen()


def deferred(world: World) -> None:
    """Slots change hands between commits that a power cut may take."""
    for _ in range(3):
        world.commit("a", "b")
    world.sync()
    world.commit("a")
    world.snapshot("s1")
    world.commit("a", "b")
    world.commit("b")
    world.delete("s1")
    world.abort("a", flavour="x")
    for _ in range(4):
        world.commit("a", "b")


def deferred_roll(world: World) -> None:
    """The old segment says of no commit that it is durable; the new one says it of all."""
    for _ in range(5):
        world.commit("a", "b")
    world.sync()
    for _ in range(3):
        world.commit("a")


def deferred_no_room(world: World) -> None:
    """The segment cannot be succeeded for a while: the old one, which goes on, says of no commit
    that it is durable."""
    for _ in range(3):
        world.commit("a", "b")
    world.faulty.fail("open_create", "*/wal/tmp", error=errno.ENOSPC, times=3)
    for _ in range(4):
        world.commit("a", "b")


def in_flight(world: World) -> None:
    """Each commit is begun while the one before it is still to be completed."""
    for _ in range(3):
        world.commit("a", "b")
    world.sync()
    world.commit("a")
    world.commit("b")
    world.snapshot("s1")
    for _ in range(3):
        world.commit("a", "b")


def work_and_sync(world: World) -> None:
    """After a crash: commits that nothing makes durable, and a sync. One part stays as it was."""
    for _ in range(3):
        world.commit("a")
    world.check()
    world.sync()
    world.commit("a")
    world.check()


def failed_log_sync(world: World) -> None:
    world.faulty.fail_datasync("*/wal/*.wal")
    with suppress(PoisonedError):
        world.commit("a", "b")
    _check_poisoned(world)
    world.reopen()
    world.commit("a")


def failed_append(world: World) -> None:
    """Half a frame stays behind."""
    world.faulty.shorten("*/wal/*.wal", kept_bytes=1536)
    with suppress(PoisonedError):
        world.commit("a", "b")
    _check_poisoned(world)
    world.reopen()
    world.commit("a")


def failed_slot_sync(world: World) -> None:
    world.faulty.fail_datasync("*/objects/*", nth=2)
    with suppress(StorageError):
        world.commit("a", "b")
    world.check()
    world.commit("a", "b")
    world.faulty.fail_datasync("*/objects/*")
    with suppress(StorageError):
        world.commit("a")
    world.reopen()
    world.commit("a", "b")


def failed_directory_sync(world: World) -> None:
    world.faulty.fail("sync_directory", "*/objects")
    with suppress(StorageError):
        world.commit("a", "b")
    world.commit("a", "b")


def failed_roll(world: World) -> None:
    """The segment that cannot be made: before it is visible, and when it may be."""
    world.commit("a")
    world.faulty.fail_datasync("*/wal/tmp")
    with suppress(StorageError):
        world.commit("b")
    world.commit("a", "b")
    world.commit("a")
    world.commit("b")
    world.faulty.fail("sync_directory", "*/wal")
    with suppress(StorageError):
        world.commit("a")
    world.reopen()
    world.commit("b")


def failed_snapshot(world: World) -> None:
    """Its object cannot be synced; then nobody knows whether its record was."""
    world.faulty.fail_datasync("*/objects/*")
    with suppress(StorageError):
        world.snapshot("s1")
    world.check()
    world.snapshot("s1")
    world.commit("a", "b")
    world.faulty.fail_datasync("*/wal/*.wal")
    with suppress(PoisonedError):
        world.snapshot("s2")
    _check_poisoned(world)
    world.reopen()
    world.commit("a", "b")


def failed_archive(world: World) -> None:
    """What was packed by then goes; the objects that it stood for are needed again."""
    world.faulty.fail_datasync("*/objects/*", nth=2)
    with suppress(StorageError):
        world.archive("s1")
    world.commit("a", "b")
    world.archive("s1")
    world.commit("a", "b")


def failed_opening(world: World) -> None:
    """The disk refuses at each place in turn, before the new segment is visible and after."""
    world.fail_to_open(lambda fs: fs.fail("sync_directory", "*/objects"))
    world.fail_to_open(lambda fs: fs.fail_datasync("*/wal/tmp"))
    world.fail_to_open(lambda fs: fs.fail("rename", "*/wal/tmp"))
    world.fail_to_open(lambda fs: fs.fail("sync_directory", "*/wal", nth=2))
    world.open()
    world.commit("a", "b")


def compress(world: World) -> None:
    """Three segments are old enough; work goes on between the two runs."""
    compress_segments(world.faulty, ROOT, bytes_min=0)
    world.commit("a", "b")
    for _ in range(3):
        world.commit("a")
    compress_segments(world.faulty, ROOT, bytes_min=0)


def _check_poisoned(world: World) -> None:
    try:
        world.store.begin(1000)
    except PoisonedError:
        return
    raise Violation("work goes on after an append or its sync failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    prepare: Act
    program: Act
    work: Act = work
    world: type[World] = World
    settings: MakeSettings = lambda: SETTINGS


def _deferred() -> Settings:
    return replace(SETTINGS, durability="deferred", commits_per_segment=50, sync_every=4)


def _deferred_rolling() -> Settings:
    return replace(SETTINGS, durability="deferred")


def _in_flight() -> Settings:
    return replace(SETTINGS, workers=HeldWorkers(), commits_in_flight=2)


def _deferred_in_flight() -> Settings:
    return replace(_deferred_rolling(), workers=HeldWorkers(), commits_in_flight=2)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="create", prepare=nothing, program=create),
        Scenario(name="create by name", prepare=nothing, program=create_by_name),
        Scenario(name="commit", prepare=start, program=commit),
        Scenario(name="donate", prepare=start_with_spare, program=donate),
        Scenario(name="abort", prepare=start, program=abort),
        Scenario(name="stage", prepare=start, program=stage, work=one_commit),
        Scenario(name="keep and remove", prepare=start, program=keep_and_remove),
        Scenario(name="snapshot", prepare=start, program=snapshot, work=work_with_refs),
        Scenario(name="delete", prepare=start_with_snapshot, program=delete, work=work_with_refs),
        Scenario(name="rewind", prepare=start_with_snapshot, program=rewind),
        Scenario(name="undo", prepare=start_with_snapshot, program=undo, work=work_with_refs),
        Scenario(name="branch", prepare=start_with_spare, program=branch),
        Scenario(name="switch", prepare=start_branched, program=switch),
        Scenario(name="delete branch", prepare=start_branched, program=delete_branch),
        Scenario(name="gc", prepare=start_hoarding, program=gc),
        Scenario(name="reuse", prepare=start_with_spare, program=reuse),
        Scenario(name="convert", prepare=start_with_snapshot, program=convert),
        Scenario(name="archive", prepare=start_with_snapshot, program=archive),
        Scenario(name="base", prepare=start_with_snapshot, program=base),
        Scenario(name="roll", prepare=start_with_spare, program=roll),
        Scenario(name="compress", prepare=start_with_old_segments, program=compress),
        Scenario(
            name="deferred",
            prepare=start,
            program=deferred,
            work=work_and_sync,
            settings=_deferred,
        ),
        Scenario(
            name="deferred roll",
            prepare=start,
            program=deferred_roll,
            work=work_and_sync,
            settings=_deferred_rolling,
        ),
        Scenario(
            name="deferred roll without room",
            prepare=start,
            program=deferred_no_room,
            work=work_and_sync,
            settings=_deferred_rolling,
        ),
        Scenario(
            name="in flight",
            prepare=start,
            program=in_flight,
            work=work_and_sync,
            settings=_in_flight,
        ),
        Scenario(
            name="deferred in flight",
            prepare=start,
            program=in_flight,
            work=work_and_sync,
            settings=_deferred_in_flight,
        ),
        Scenario(name="opening", prepare=start_with_spare, program=opening),
        Scenario(name="copy", prepare=start_copied, program=copy),
        Scenario(
            name="publish",
            prepare=tiers.started_tiers,
            program=tiers.publish,
            work=tiers.work_and_history,
            world=tiers.TierWorld,
        ),
        Scenario(
            name="first publication",
            prepare=tiers.started,
            program=tiers.first_publication,
            work=tiers.work_and_history,
            world=tiers.TierWorld,
        ),
        Scenario(
            name="start of tiers",
            prepare=tiers.started_tiers,
            program=tiers.start,
            work=tiers.start_and_publish,
            world=tiers.TierWorld,
        ),
        Scenario(name="clone", prepare=tiers.started, program=tiers.clone, world=tiers.TierWorld),
        Scenario(
            name="salvage of objects",
            prepare=repairs.start_damaged,
            program=repairs.repair,
            world=repairs.SalvageWorld,
        ),
        Scenario(
            name="salvage of the log",
            prepare=repairs.start_damaged,
            program=repairs.repair,
            world=repairs.LogSalvageWorld,
        ),
        Scenario(name="failed log sync", prepare=start_with_spare, program=failed_log_sync),
        Scenario(name="failed append", prepare=start_with_spare, program=failed_append),
        Scenario(name="failed slot sync", prepare=start, program=failed_slot_sync),
        Scenario(name="failed directory sync", prepare=start, program=failed_directory_sync),
        Scenario(name="failed roll", prepare=start_with_spare, program=failed_roll),
        Scenario(name="failed snapshot", prepare=start_with_spare, program=failed_snapshot),
        Scenario(name="failed archive", prepare=start_with_snapshot, program=failed_archive),
        Scenario(name="failed opening", prepare=start_with_spare, program=failed_opening),
    )
}
