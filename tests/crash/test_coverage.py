"""Every operation that changes a store is one that the explorer crashes and the machine tries.

Goal: nobody adds an operation that no crash was tried in. Method: the public methods are found by
reflection; each has to be called by the program of some scenario, or to stand among those that only
read, which are shown to change nothing; and the state machine has to name it. Operations that are
no methods are listed.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest

from shardstore.store import Store
from shardstore.transaction import Transaction
from tests.crash.ghost import NO_STORE, PART
from tests.crash.oracle import ROOT
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.world import SETTINGS, CrashFileSystem, World
from tests.stateful import accidents, machine

READING: dict[str, Callable[[Store], object]] = {
    "commit_of": lambda store: store.commit_of("s1"),
    "refresh": lambda store: store.refresh(),
    "objects": lambda store: store.objects(),
    "tensors": lambda store: store.tensors(),
    "state_digest": lambda store: store.state_digest(),
    "load": lambda store: store.load("a", PART).close(),
    "pin": lambda store: store.pin().close(),
    "pinned_slots": lambda store: store.pinned_slots(),
    "size_of": lambda store: store.size_of("a", PART),
    "prefetch": lambda store: store.prefetch([("a", PART)]),
    "clear_cache": lambda store: store.clear_cache(),
}
"""Methods of a store that change nothing, called on one that is open for reading."""
READING_TRANSACTION = {"load"}
BESIDE = (
    "tests.crash.repairs.salvage",
    "tests.crash.scenarios.compress_segments",
    "tests.crash.tiers.open_active",
    "tests.crash.world.convert",
)
"""Operations that are no methods, where scenarios take them from."""
MACHINE = (machine, accidents)
NOT_THE_MACHINES = {
    "create": "Store.open makes what is not there",
    "blank": "a donated checkout of a part that was not loaded; scenario donate has both",
}
"""What the machine does not call, and what stands for it."""


def _public(kind: type) -> set[str]:
    """Methods; properties tell where a store stands, and that is reading."""
    found = inspect.getmembers_static(kind)
    methods = (classmethod, staticmethod)
    return {
        name
        for name, value in found
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, methods))
    }


def _noting(kind: type, name: str, called: set[str]) -> Any:
    value = inspect.getattr_static(kind, name)
    inner = value.__func__ if isinstance(value, classmethod) else value

    @functools.wraps(inner)
    def noted(*args: Any, **kwargs: Any) -> Any:
        called.add(f"{kind.__name__}.{name}")
        return inner(*args, **kwargs)

    return patch.object(kind, name, classmethod(noted) if inner is not value else noted)


def _called(scenario: Scenario) -> set[str]:
    """What the program calls; what prepares it is not crashed."""
    world = scenario.world(CrashFileSystem(), (NO_STORE,), settings=scenario.settings)
    scenario.prepare(world)
    called: set[str] = set()
    with ExitStack() as stack:
        for kind in (Store, Transaction):
            for name in _public(kind):
                stack.enter_context(_noting(kind, name, called))
        for place in BESIDE:
            stack.enter_context(_noting_function(place, called))
        scenario.program(world)
        world.close()
    return called


def _noting_function(place: str, called: set[str]) -> Any:
    module, _, name = place.rpartition(".")
    inner = getattr(importlib.import_module(module), name)

    @functools.wraps(inner)
    def noted(*args: Any, **kwargs: Any) -> Any:
        called.add(place)
        return inner(*args, **kwargs)

    return patch(place, noted)


@pytest.mark.req("S3")
def test_every_changing_method_is_crashed_in_some_scenario() -> None:
    called = set().union(*map(_called, SCENARIOS.values()))
    changing = {f"Store.{name}" for name in _public(Store) - READING.keys()}
    changing |= {f"Transaction.{name}" for name in _public(Transaction) - READING_TRANSACTION}
    assert len(changing) > 20
    assert (changing | set(BESIDE)) - called == set()


@pytest.mark.req("S3")
def test_every_changing_method_is_one_of_the_machine() -> None:
    named = {
        node.attr
        for module in MACHINE
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute)
    }
    changing = (_public(Store) - READING.keys()) | _public(Transaction)
    assert {"clone", "publish", "archive"} <= changing
    assert changing - named == NOT_THE_MACHINES.keys()


@pytest.mark.parametrize("name", READING)
def test_what_is_said_to_read_changes_nothing(name: str) -> None:
    fs = CrashFileSystem()
    world = World(fs, (NO_STORE,))
    world.open()
    world.commit("a", "b")
    world.snapshot("s1")
    world.close()
    image = fs.kill()
    with Store.open(ROOT, "r", fs=image, settings=SETTINGS) as store:
        before = image.clone()
        READING[name](store)
        assert image.log == [] and image.holds_what(before)
