"""Leaves one condition of the real code out: the function goes on as if it never held.

The function's source is compiled again with the condition replaced by a constant, and the function
object gets that code, so that whoever imported it by name has it too. `sites` lists conditions that
compare digests, to see that none was forgotten.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import shardstore

PACKAGE = Path(shardstore.__file__).parent
_DIGESTS = re.compile(r"digest|chain|salt|check\b|\.head\b|\bexpected\b|\bseq\b")
_LEFT_ALONE = ("cli/", "fs/")
"""Nothing there knows what a digest is."""


@dataclass(frozen=True, slots=True)
class Site:
    """A condition, spelled as `ast.unparse` does, in a function of a module below the package."""

    module: str
    function: str
    condition: str
    instead: bool = False

    @property
    def place(self) -> tuple[str, str]:
        return self.module, self.function


class _Replace(ast.NodeTransformer):
    def __init__(self, site: Site) -> None:
        self.site = site
        self.path: list[str] = []
        self.found = 0

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._inside(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._inside(node)

    def _inside(self, node: ast.ClassDef | ast.FunctionDef) -> ast.AST:
        self.path.append(node.name)
        self.generic_visit(node)
        self.path.pop()
        return node

    def visit(self, node: ast.AST) -> ast.AST:
        here = ".".join(self.path) == self.site.function and isinstance(node, ast.expr)
        if here and ast.unparse(node) == self.site.condition:
            self.found += 1
            return ast.copy_location(ast.Constant(self.site.instead), node)
        seen: ast.AST = super().visit(node)
        return seen


def _code(code: CodeType, name: str) -> CodeType:
    """The code of a function inside of a module's, by its qualified name."""
    for inner in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
        if inner.co_qualname == name:
            return inner
        if name.startswith(f"{inner.co_qualname}."):
            return _code(inner, name)
    raise AssertionError(f"no function {name}")


def _function(site: Site) -> FunctionType:
    name = site.module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    found: object = importlib.import_module(f"shardstore.{name}")
    for part in site.function.split("."):
        found = found.__dict__[part]  # type: ignore[attr-defined]
    assert isinstance(found, FunctionType), f"{site.function} of {site.module} is no function"
    return found


@contextmanager
def left_out(*sites: Site) -> Iterator[None]:
    """The conditions never hold (or always, where `instead` says so)."""
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for site in sites:
            path = PACKAGE / site.module
            replace = _Replace(site)
            tree = ast.fix_missing_locations(replace.visit(ast.parse(path.read_text())))
            assert replace.found == 1, f"{replace.found} times {site.condition!r} in {site.place}"
            function = _function(site)
            before.append((function, function.__code__))
            function.__code__ = _code(compile(tree, str(path), "exec"), site.function)
        yield
    finally:
        for function, code in reversed(before):
            function.__code__ = code


def sites() -> set[tuple[str, str]]:
    """Module and function of every condition that compares something like a digest."""
    found: set[tuple[str, str]] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if not module.startswith(_LEFT_ALONE):
            found |= {(module, name) for name in _conditions(ast.parse(path.read_text()), "")}
    return found


def _conditions(node: ast.AST, name: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            inner = f"{name}.{child.name}".lstrip(".")
        elif isinstance(child, ast.If | ast.IfExp | ast.comprehension):
            tests = child.ifs if isinstance(child, ast.comprehension) else [child.test]
            if any(map(_compares_digests, tests)):
                yield name
        yield from _conditions(child, inner)


def _compares_digests(test: ast.expr) -> bool:
    compares = [node for node in ast.walk(test) if isinstance(node, ast.Compare)]
    unequal = [c for c in compares if any(isinstance(op, ast.Eq | ast.NotEq) for op in c.ops)]
    return any(_DIGESTS.search(ast.unparse(compare)) for compare in unequal)
