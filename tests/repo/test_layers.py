"""Imports go down only: the order of the layers, read from the syntax trees.

A module that a layer does not name fails, and so does a layer table that no longer meets the tree:
the tests cannot pass by looking at nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.repo.source_tree import (
    PACKAGES,
    Module,
    literal_all,
    modules,
    packaged_modules,
    string_constants,
)

# Lowest first. A module may import from its own layer and from those above it in this table.
# The empty name is the package shardstore itself: its public names.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "progress", "wear"}),
    frozenset({"jobs"}),
    frozenset({"workers"}),
    frozenset({"format"}),
    frozenset({"fs"}),
    frozenset({"codecs", "buffers"}),
    frozenset({"wal"}),
    # refs and retention are pure functions of the log's state; what acts on them stands higher.
    frozenset({"slots", "catalog", "pins", "refs", "retention", "locking", "metadata", "objects"}),
    frozenset({"store_file"}),
    frozenset({"foreign", "upkeep", "records", "quarantine"}),
    frozenset({"context", "host_cache", "loaded", "views"}),
    frozenset({"staged"}),
    frozenset({"slot_files"}),
    frozenset({"staging"}),
    frozenset({"commit_protocol"}),
    frozenset({"pipeline"}),
    frozenset({"session"}),
    frozenset({"parent", "ticket"}),
    frozenset({"ref_records", "snapshot", "transaction", "recovery", "pinned_view"}),
    frozenset({"archive", "branches", "moves", "collecting"}),
    frozenset({"opening", "held", "records"}),
    frozenset({"lineage"}),
    frozenset({"cloning"}),
    frozenset({"publishing"}),
    frozenset({"store", "store_refs", "store_tiers"}),
    frozenset({"fsck", "history", "tiers", "conversion", "flat_layout", "plain_names"}),
    frozenset({"importing", "exporting"}),
    frozenset({"who_pins", "salvage"}),
    frozenset({"status", "compare", "probe"}),
    frozenset({"", "torch"}),
    frozenset({"cli"}),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

# Each must exist; without them a test below would have nothing to look at.
CORE = {"", "errors", "format", "fs", "wal", "slots", "transaction", "store", "torch", "cli"}
TRAINER_CORE = {"config", "model", "optim", "state", "stream", "loop", "cli"}

SYSTEM_MODULES = {"fcntl", "resource", "termios", "pwd", "grp", "posix", "msvcrt"}
# Names of module os that change or sync files, or exist on some systems only.
SYSTEM_CALLS = {
    *("O_DIRECT", "O_SYNC", "O_DSYNC", "O_TMPFILE", "O_DIRECTORY", "open", "write", "pwrite"),
    *("pwritev", "preadv", "fsync", "fdatasync", "sync", "rename", "replace", "link", "unlink"),
    *("remove", "truncate", "ftruncate", "posix_fallocate", "posix_fadvise", "statvfs"),
    *("fstatvfs", "sendfile", "copy_file_range", "sched_setaffinity", "lockf"),
}
# What every system's module os has, as far as the store asks it above the seam.
OS_EVERYWHERE = {
    *("PathLike", "devnull", "fsdecode", "fsencode", "fspath", "getpid", "listdir", "path", "stat"),
    *("stat_result", "strerror"),
}
SIGNALS_EVERYWHERE = {"SIGINT", "SIGTERM", "SIG_DFL", "SIG_IGN", "getsignal", "signal"}
LINUX_ONLY_CALLS = {
    *("O_DIRECT", "O_CLOEXEC", "O_DIRECTORY", "O_TMPFILE", "O_SYNC", "O_DSYNC", "fdatasync"),
    *("preadv", "pwritev", "sysconf", "uname", "sched_getaffinity", "sched_setaffinity"),
    *("posix_fadvise", "posix_fallocate", "copy_file_range", "sendfile", "register_at_fork"),
}
SYSTEM_PLACES = ("/proc/", "/sys/")


def _component(name: str) -> str:
    return [*name.split("."), ""][1]


def test_every_module_has_a_layer() -> None:
    seen = {_component(name) for name in modules("shardstore")}
    assert seen <= RANK.keys(), f"give a layer to: {sorted(seen - RANK.keys())}"
    assert seen >= CORE, f"gone from shardstore: {sorted(CORE - seen)}"
    trainer = {_component(name) for name in modules("trainer")}
    assert trainer >= TRAINER_CORE, f"gone from trainer: {sorted(TRAINER_CORE - trainer)}"


@pytest.mark.parametrize("name", sorted(modules("shardstore")))
def test_imports_only_go_down(name: str) -> None:
    known = frozenset(packaged_modules())
    module = modules("shardstore")[name]
    wrong = []
    for entry in module.imports:
        for target in entry.targets(known):
            asked_late = target == "shardstore.torch" and not entry.at_top
            if target.startswith("trainer") or (
                RANK.get(_component(target), 0) > RANK.get(_component(name), 0) and not asked_late
            ):
                wrong.append(f"{module.where(entry.line)}: {name} imports {target}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_cycle(package: str) -> None:
    known = frozenset(modules(package))
    graph = {
        name: {t for e in module.imports if e.at_top for t in e.targets(known)} - {name}
        for name, module in modules(package).items()
    }
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"modules import each other in a circle: {' -> '.join(error.args[1])}")
    assert set(order) == known


@pytest.mark.req("S26")
def test_torch_is_imported_at_the_top_of_one_module_only() -> None:
    importers = _importers("torch", at_top=True)
    assert {module.name for module in importers} == {"shardstore.torch"}


@pytest.mark.req("S30")
@pytest.mark.parametrize("name", sorted(n for n in modules("shardstore") if _component(n) != "fs"))
def test_system_calls_stay_behind_the_seam(name: str) -> None:
    module = modules("shardstore")[name]
    wrong = [
        f"{module.where(entry.line)}: import {entry.module}"
        for entry in module.imports
        if entry.module.split(".")[0] in SYSTEM_MODULES
    ]
    wrong += [
        f"{module.where(node.lineno)}: os.{node.attr}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in SYSTEM_CALLS
    ]
    wrong += [
        f"{module.where(entry.line)}: from os import {call}"
        for entry in module.imports
        if entry.module == "os"
        for call in entry.names
        if call in SYSTEM_CALLS
    ]
    assert not wrong, "only shardstore/fs may touch the system:\n" + "\n".join(wrong)


def _attributes(module: Module, of: str) -> Iterator[tuple[int, str]]:
    """Names of another module that are used, however it was imported."""
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == of
        ):
            yield node.lineno, node.attr
    for entry in module.imports:
        if entry.module == of:
            yield from ((entry.line, name) for name in entry.names)


@pytest.mark.req("S30")
def test_above_the_seam_nothing_is_asked_that_only_linux_has() -> None:
    wrong, asked = [], 0
    for name, module in packaged_modules().items():
        if _component(name) == "fs" and name.startswith("shardstore"):
            continue
        own = name.startswith("shardstore")
        for line, attribute in _attributes(module, "os"):
            asked += 1
            if attribute in LINUX_ONLY_CALLS or (own and attribute not in OS_EVERYWHERE):
                wrong.append(f"{module.where(line)}: os.{attribute}")
        for line, attribute in _attributes(module, "signal"):
            asked += 1
            if own and attribute not in SIGNALS_EVERYWHERE:
                wrong.append(f"{module.where(line)}: signal.{attribute}")
        wrong += [
            f"{name}: {text!r}"
            for text in string_constants(module)
            if own and text.startswith(SYSTEM_PLACES)
        ]
    assert asked > 10, "nothing was looked at"
    assert not wrong, "not on every system:\n" + "\n".join(wrong)


def test_the_trainer_sees_public_names_only() -> None:
    import shardstore

    public = {
        "shardstore": set(shardstore.__all__),
        "shardstore.torch": literal_all(modules("shardstore")["shardstore.torch"]),
    }
    importers, wrong = set(), []
    for module in modules("trainer").values():
        for entry in module.imports:
            if entry.module.split(".")[0] != "shardstore":
                continue
            importers.add(module.name)
            private = set(entry.names) - public.get(entry.module, set())
            if private or not entry.names:
                wrong.append(f"{module.where(entry.line)}: {entry.module} {sorted(private)}")
    assert not wrong, "not public, or not imported by name:\n" + "\n".join(wrong)
    assert importers == {"trainer.state"}, "only trainer/state.py imports shardstore"


def _importers(top: str, *, at_top: bool) -> list[Module]:
    return [
        module
        for module in modules("shardstore").values()
        if any(e.module.split(".")[0] == top and e.at_top >= at_top for e in module.imports)
    ]


def test_the_core_stands_on_its_declared_dependencies(declared: dict[str, set[str]]) -> None:
    """What is imported is declared, and what is declared is imported."""
    used = {package: _third_party(package) for package in PACKAGES}
    core, train, plot = declared["core"], declared["train"], declared["plot"]
    assert used["shardstore"] - {"torch"} <= core
    assert used["trainer"] <= core | train | plot
    everywhere = set().union(*used.values())
    assert core | train <= everywhere, f"unused: {sorted((core | train) - everywhere)}"


def _third_party(package: str) -> set[str]:
    tops = {e.module.split(".")[0] for m in modules(package).values() for e in m.imports}
    return tops - set(sys.stdlib_module_names) - set(PACKAGES)
