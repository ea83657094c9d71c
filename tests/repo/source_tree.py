"""The repository read as text and syntax trees; what the tests of this suite share.

Contract: nothing of ours is imported here. A module's imports are found wherever they stand, also
inside functions and under TYPE_CHECKING, and are told apart. Which of them is allowed is the tests'
business.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("shardstore", "trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One `import module` (names empty) or `from module import names`, made absolute."""

    module: str
    names: tuple[str, ...]
    line: int
    at_top: bool
    """Carried out when the importing module is imported."""

    def targets(self, known: frozenset[str]) -> set[str]:
        """The modules among `known` that it names: `from a import b` is a.b where b is a module."""
        if not self.names:
            return {self.module} & known
        return {
            full if (full := f"{self.module}.{name}") in known else self.module
            for name in self.names
        } & known


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One source file."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    imports: tuple[Import, ...]

    def where(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


@functools.cache
def modules(top: str) -> dict[str, Module]:
    """Every module below a directory of the repository, by dotted name."""
    found = [_read(path) for path in sorted((ROOT / top).rglob("*.py"))]
    return {module.name: module for module in found}


def packaged_modules() -> dict[str, Module]:
    """Every module that an installation contains."""
    return {name: module for top in PACKAGES for name, module in modules(top).items()}


def _read(path: Path) -> Module:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    if is_package:
        parts.pop()
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, filename=str(path))
    package = parts if is_package else parts[:-1]
    return Module(
        name=".".join(parts),
        path=path,
        text=text,
        tree=tree,
        imports=tuple(_imports(tree, package, at_top=True)),
    )


def _imports(node: ast.AST, package: list[str], *, at_top: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module=alias.name, names=(), line=child.lineno, at_top=at_top)
        elif isinstance(child, ast.ImportFrom):
            yield Import(
                module=_absolute(child, package),
                names=tuple(alias.name for alias in child.names),
                line=child.lineno,
                at_top=at_top,
            )
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for statement in child.body:
                yield from _imports_of(statement, package, at_top=False)
            for statement in child.orelse:
                yield from _imports_of(statement, package, at_top=at_top)
        else:
            lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, package, at_top=at_top and not lazy)


def _imports_of(statement: ast.stmt, package: list[str], *, at_top: bool) -> Iterator[Import]:
    return _imports(ast.Module(body=[statement], type_ignores=[]), package, at_top=at_top)


def _absolute(node: ast.ImportFrom, package: list[str]) -> str:
    if not node.level:
        return node.module or ""
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def string_constants(module: Module) -> set[str]:
    """Every string literal; a module imported by its name stands among them."""
    return {
        node.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def literal_all(module: Module) -> set[str]:
    """`__all__` of a module, read without importing it."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
                assert node.value is not None
                return set(ast.literal_eval(node.value))
    return set()
