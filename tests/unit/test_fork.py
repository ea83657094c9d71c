"""A forked child may not use what its parent opened: every public name is tried, by reflection.

Method: the fork happens at the worst moment, while a commit is in flight and another thread holds
the store's locks, so that a call which waits instead of raising would wait for ever.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardstore import Retention, Settings, Store
from shardstore.errors import ClosedError
from shardstore.pinned_view import PinnedView
from shardstore.ticket import Ticket
from shardstore.transaction import Transaction
from tests.support.stores import PARTS, commit, content, expected, values
from tests.support.workers import HeldWorkers

pytestmark = pytest.mark.req("S27")

ARGUMENTS: dict[str, Any] = {
    "at": "head", "dest": "elsewhere", "name": "one", "part": "params", "parts": PARTS[:1],
    "ref": "one", "retention": Retention(last=5), "shard": "a", "specs": [], "step": 9,
    "tensors": content(1),
}  # fmt: skip
CONSTANT = {
    Store: {"mode", "path", "storage_format", "uuid"},
    Transaction: set(),
    PinnedView: set(),
    Ticket: {"step"},
}
"""What needs nothing of the store."""
SILENT = {Store: {"close"}, PinnedView: {"close"}}
"""What ends a `with` block, and takes nothing from the parent."""
OPENING = {Store: {"create", "open"}}


def public(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def calls(kind: type, thing: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every public method, with arguments for what it asks for, and every property."""
    for name, member in public(kind).items():
        if name in CONSTANT[kind] | SILENT.get(kind, set()) | OPENING.get(kind, set()):
            continue
        if isinstance(member, property):
            yield name, lambda name=name: getattr(thing, name)
            continue
        wanted = [
            parameter.name
            for parameter in list(inspect.signature(member).parameters.values())[1:]
            if parameter.default is parameter.empty
        ]
        arguments = [ARGUMENTS[argument] for argument in wanted]  # add one here for a new name
        yield name, lambda name=name, arguments=arguments: getattr(thing, name)(*arguments)


def everything(things: dict[type, Any]) -> list[tuple[str, str]]:
    """What did not raise ClosedError, and what it did instead."""
    wrong = []
    for kind, thing in things.items():
        for name, call in calls(kind, thing):
            try:
                found: object = call()
            except ClosedError as error:
                if "parent process" in str(error):
                    continue
                found = error
            except Exception as error:
                found = error
            wrong.append((f"{kind.__name__}.{name}", repr(found)))
        for name in SILENT.get(kind, ()):
            getattr(thing, name)()
    return wrong


class Holder:
    """A thread that holds the locks of a session."""

    def __init__(self, store: Store) -> None:
        self._context = store._session.context
        self._pins = store._session.pins._mutex
        self._holds, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with self._context.calls, self._context.mutex, self._pins:
            self._holds.set()
            self._over.wait()

    def __enter__(self) -> None:
        self._thread.start()
        self._holds.wait()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def in_child(work: Callable[[], object]) -> Any:
    """What `work` returns in a forked child, which is killed if it waits."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            os.close(reading)
            os.write(writing, json.dumps(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return json.loads(text)


def test_every_call_in_a_forked_child_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # clone and publish are given a relative name
    settings = Settings(prewrite_bytes=32 * 1024, host_budget_bytes=1 << 20, workers=HeldWorkers())
    with Store.open(tmp_path / "run", "a", settings=settings) as store:
        commit(store, 1)
        store.snapshot("one")
        view = store.pin("one")
        with store.begin(2) as txn:
            txn.stage("a", "params", content(2))
            txn.keep_rest()
            ticket = txn.commit_async()
        txn = store.begin(3)
        txn.stage("a", "params", content(3))
        things = {Store: store, Transaction: txn, PinnedView: view, Ticket: ticket}
        with Holder(store):
            wrong = in_child(lambda: everything(things))
        assert wrong == []
        assert everything(things) != []  # in this process the same calls work
        ticket.result()
        view.close()


def test_leaving_a_with_block_in_a_forked_child_takes_nothing_from_the_parent(
    tmp_path: Path,
) -> None:
    with Store.open(tmp_path / "run", "a") as store:
        commit(store, 1)
        with store.pin() as view:

            def leave() -> str:
                with store, view:
                    return "left"

            with Holder(store):
                assert in_child(leave) == "left"
            assert view.pinned and store.pinned_slots() == store.pinned_slots() != set()
        commit(store, 2)
        assert values(store) == expected(2)


def test_every_public_name_is_looked_at() -> None:
    assert {"load", "begin", "gc", "publish", "head", "kept"} <= public(Store).keys()
    for kind in CONSTANT:
        named = CONSTANT[kind] | SILENT.get(kind, set()) | OPENING.get(kind, set())
        assert named <= public(kind).keys() | {"step"}
