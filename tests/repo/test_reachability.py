"""No module is there for its own sake: each is reached from a command or a public name.

The graph is that of the imports, in functions too, and of modules named in a string (commands are
imported when called). Modules that only tests need would be dead weight in an installation; the
crashable and the faulty file system are the exception, and somebody has to use them.
"""

from __future__ import annotations

import shardstore
from tests.repo.source_tree import Module, modules, packaged_modules, string_constants

ROOTS = {"shardstore", "shardstore.torch", "trainer", "trainer.cli"}
# First-class fakes of the file-system seam: shipped for the contract suites of other file systems.
FAKES = {"shardstore.fs.memory", "shardstore.fs.faulty"}


def _edges(module: Module, known: frozenset[str]) -> set[str]:
    reached = {t for entry in module.imports for t in entry.targets(known)}
    reached |= {text.partition(":")[0] for text in string_constants(module)} & known
    return reached | _parents(reached)


def _parents(names: set[str]) -> set[str]:
    return {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}


def _reached_from(roots: set[str]) -> set[str]:
    packaged = packaged_modules()
    known = frozenset(packaged)
    reached: set[str] = set()
    ahead = set(roots) & known
    while ahead:
        name = ahead.pop()
        reached.add(name)
        ahead |= _edges(packaged[name], known) - reached
    return reached


def test_every_module_is_reached() -> None:
    packaged = packaged_modules()
    commands = {name for name in packaged if name.startswith("shardstore.cli.")}
    behind_names = {
        getattr(getattr(shardstore, name), "__module__", "shardstore")
        for name in shardstore.__all__
    }
    mains = {name for name in packaged if name.endswith(".__main__")}
    reached = _reached_from(ROOTS | FAKES | commands | behind_names | mains)
    assert packaged.keys() == reached, (
        f"no command or public name reaches: {sorted(packaged.keys() - reached)}"
    )
    assert commands and reached >= ROOTS | FAKES


def test_commands_are_registered() -> None:
    """A file in cli/ that the main command never names would be a root of its own making."""
    packaged = packaged_modules()
    from_main = _reached_from({"shardstore.cli.main"})
    named = {word.split(":")[0] for word in string_constants(packaged["shardstore.cli.main"])}
    for name in packaged:
        if name.startswith("shardstore.cli."):
            assert name in from_main or name.rsplit(".", 1)[1] in named, f"{name} is not reached"


def test_the_fakes_are_used() -> None:
    used = {
        target
        for top in ("tests", "tools")
        for module in modules(top).values()
        for entry in module.imports
        for target in entry.targets(frozenset(FAKES))
    }
    assert used == FAKES
