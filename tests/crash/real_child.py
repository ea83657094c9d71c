"""A process that works on a real store and is interrupted from outside.

    python -m tests.crash.real_child serve                     one short process after the other
    python -m tests.crash.real_child write ROOT STEP BOOT     until it is killed

The server reads lines "ACTION STEP SHORT ROOT" and forks for each: everything that Python imports
late is there by then, so that whoever traces the process sees the action's own system calls and no
others. It says "ready PID", waits for a line, and says "done" when the action has returned, "failed
KIND" when the store refused: a store that is not poisoned has to take the same action again. Its
server says "ended CODE": 0 done, 3 refused at last, below 0 a signal; anything else is a bug.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import replace

from shardstore import Store
from shardstore.cli.recover import recover
from shardstore.errors import PoisonedError, ShardStoreError
from tests.crash.real_store import SETTINGS, OtherBoot, commit

EXIT_REFUSED = 3
SHORT_BYTES = 512
_PR_SET_PTRACER = 0x59616D61
DEFERRED_EVERY = 3
SNAPSHOTS_MAX = 3


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def hear() -> str:
    """A line, and not a byte more: the next one may be for another process."""
    heard = b""
    while not heard.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit(0)
        heard += byte
    return heard.decode().rstrip("\n")


def ready() -> None:
    say(f"ready {os.getpid()}")
    hear()


def recover_by_command(root: str) -> None:
    """As a user does it."""
    with redirect_stdout(io.StringIO()):
        recover.main([root], standalone_mode=False)


def work(store: Store, action: str, step: int) -> None:
    """What is done in a store that is open."""
    if action == "commit":
        commit(store, step)
    elif action == "snapshot":
        store.snapshot(f"s{step}")
    else:
        store.publish(f"{store.path}.durable")


def warm_up() -> None:
    """Every action once, elsewhere: nothing is imported late."""
    with tempfile.TemporaryDirectory() as directory:
        root = f"{directory}/run"
        with Store.open(root, "a", settings=SETTINGS) as store:
            for step in range(1, SETTINGS.commits_per_segment + 3):
                commit(store, step)
            store.snapshot("x")
            store.publish(f"{directory}/durable")
            commit(store, step + 1)
            store.publish(f"{directory}/durable")
        with suppress(ShardStoreError):  # so that what an error needs is there too
            Store.open(f"{directory}/none/run", "a").close()
        recover_by_command(root)


def shorten(nth: int) -> None:
    """The n-th write from now on takes a sector only, as a kernel may; those after it are whole."""
    write, left = os.pwrite, nth

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        nonlocal left
        left -= 1
        if left or len(data) <= SHORT_BYTES:
            return write(descriptor, data, offset)
        say("shortened")
        return write(descriptor, data[: max(SHORT_BYTES, len(data) // 2 // 4096 * 4096)], offset)

    os.pwrite = pwrite  # type: ignore[assignment]


def once_more(act: Callable[[], None], root: str, store: Store | None) -> None:
    """Do it; where the store refuses and is not poisoned, do it again."""
    try:
        act()
    except ShardStoreError as error:
        say(f"failed {type(error).__name__}")
        assert root in str(error), f"which store? {error}"
        if isinstance(error, PoisonedError) or (store and store._session.context.is_poisoned):
            raise
        act()
    say("done")


def open_and_work(action: str, root: str, step: int, short: int) -> None:
    with Store.open(root, "r+", settings=SETTINGS) as store:
        ready()
        if short:
            shorten(short)
        once_more(lambda: work(store, action, step), root, store)


def open_only(action: str, root: str, short: int) -> None:
    ready()
    if short:
        shorten(short)
    if action == "recover":
        once_more(lambda: recover_by_command(root), root, None)
    else:
        once_more(lambda: Store.open(root, "r+", settings=SETTINGS).close(), root, None)


def write_on(root: str, step: int, boot: str) -> None:
    """Commits, snapshots and deletions until the end comes from outside.

    "done" speaks for all that began before: every other writer defers durability, and says it when
    a sync has returned."""
    deferred = step % 2 == 1
    settings = replace(SETTINGS, durability="deferred", sync_every=1000) if deferred else SETTINGS
    with Store.open(root, "r+", fs=OtherBoot(boot), settings=settings) as store:
        say("ready")
        while True:
            say(f"began commit {step}")
            commit(store, step)
            if not deferred or step % DEFERRED_EVERY == 0:
                store.sync()
                say("done")
            if step % 5 == 0:
                say(f"began snapshot s{step}")
                store.snapshot(f"s{step}")
                say("done")
            if len(store.snapshots) > SNAPSHOTS_MAX:
                oldest = min(store.snapshots, key=lambda snapshot: snapshot.step)
                say(f"began delete {oldest.name}")
                store.delete(oldest.name)
                say("done")
            step += 1


def act_once(action: str, root: str, step: int, short: int) -> int:
    """In the forked process; the exit code."""
    with suppress(AttributeError, OSError):  # a tracer need not be an ancestor
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(2**64 - 1), 0, 0, 0)
    try:
        if action in ("open", "recover"):
            open_only(action, root, short)
        else:
            open_and_work(action, root, step, short)
    except ShardStoreError as error:
        say(f"refused {type(error).__name__}")
        return EXIT_REFUSED
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve() -> None:
    """One process for each line."""
    warm_up()
    while True:
        action, step, short, root = hear().split(" ", 3)
        pid = os.fork()
        if pid == 0:
            code = act_once(action, root, int(step), int(short))
            sys.stderr.flush()
            os._exit(code)
        say(f"ended {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        write_on(sys.argv[2], int(sys.argv[3]), sys.argv[4])
