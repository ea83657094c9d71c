"""What `import shardstore` offers and what it costs; the tree of errors."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest

import shardstore
from shardstore import errors
from tests.repo.source_tree import ROOT, modules

# Signals between layers, which the layer above turns into an error of the tree; the fakes of the
# file system raise what stands for a process that died.
INTERNAL = {
    "shardstore.catalog.index.CatalogError",
    "shardstore.fs.memory_image.CrashPoint",
    "shardstore.importing.pickles.PickleRefused",
    "shardstore.fs.protocol.LockHeld",
    "shardstore.wal.state.FoldError",
}
FAKES = {"shardstore.fs.memory", "shardstore.fs.faulty"}

# The names that embedding code relies on. Growing the list is a decision for the changelog,
# shrinking it breaks somebody.
PUBLIC = {"Commit", "Ref", "ShardStoreError", "Store"}


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names_exist_and_are_explained() -> None:
    assert set(shardstore.__all__) >= PUBLIC
    assert len(shardstore.__all__) == len(set(shardstore.__all__))
    for name in shardstore.__all__:
        assert hasattr(shardstore, name), f"shardstore.__all__ promises {name}"
        thing = getattr(shardstore, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, f"shardstore.{name} has no docstring"


@pytest.mark.req("S26")
def test_import_brings_in_neither_torch_nor_numpy() -> None:
    heavy = "{'torch', 'numpy', 'safetensors', 'rich', 'tokenizers'}"
    assert _python(f"import sys, shardstore; print(sorted({heavy} & sys.modules.keys()))") == "[]"


@pytest.mark.req("S26")
def test_every_module_but_one_imports_without_torch() -> None:
    names = sorted(modules("shardstore").keys() - {"shardstore.torch"})
    code = (
        "import importlib, sys\n"
        "sys.modules['torch'] = None\n"  # makes `import torch` raise ImportError
        f"for name in {names}: importlib.import_module(name)\n"
        "print('all')"
    )
    assert _python(code) == "all"
    assert len(names) > 20


def test_errors_form_one_tree_that_their_module_shows() -> None:
    classes = [
        thing
        for thing in vars(errors).values()
        if inspect.isclass(thing) and thing.__module__ == errors.__name__
    ]
    exceptions = [thing for thing in classes if issubclass(thing, BaseException)]
    assert len(exceptions) > 5
    for thing in exceptions:
        assert issubclass(thing, errors.ShardStoreError), f"{thing.__name__} is outside the tree"
        assert errors.__doc__ is not None
        assert thing.__name__ in errors.__doc__, f"{thing.__name__} is not in the docstring's tree"


def test_errors_are_defined_in_one_module() -> None:
    strays = {
        f"{name}.{node.name}"
        for name, module in modules("shardstore").items()
        if name != errors.__name__ and name not in FAKES
        for node in _exception_classes(module.tree)
    }
    assert strays <= INTERNAL, f"belongs into shardstore/errors.py: {strays - INTERNAL}"
    public = {f"{t.__module__}.{t.__name__}" for t in _public_things() if inspect.isclass(t)}
    assert not public & INTERNAL


def _public_things() -> list[object]:
    return [getattr(shardstore, name) for name in shardstore.__all__]


def _exception_classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
    ]
