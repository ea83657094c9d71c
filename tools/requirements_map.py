"""Keeps the list of tests in docs/requirements.md equal to the `req` marks of the tests.

    python tools/requirements_map.py            says whether the page is up to date
    python tools/requirements_map.py --write    brings it up to date

Contract: standard library only, and no test is imported: marks are read from the syntax trees, so
an id in a mark is always a literal. The rows and their status are written by hand.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "requirements.md"
TESTS = ROOT / "tests"
LAST = {"S": 32, "T": 29, "V": 9}
STATUSES = ("built", "partly", "later")
BEGIN, END = "<!-- tests: begin -->", "<!-- tests: end -->"

_ROW = re.compile(r"^\| ([STV]\d+) \| (\w+) \| (.+) \|$", re.M)
_LISTED = re.compile(r"^- \*\*([STV]\d+)\*\* `(.+)`: (.+)$", re.M)


@dataclass(frozen=True, slots=True)
class Row:
    """One requirement of the page."""

    status: str
    text: str


def read_rows(text: str) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for id_, status, words in _ROW.findall(text):
        if id_ in rows:
            raise ValueError(f"docs/requirements.md: {id_} has two rows")
        rows[id_] = Row(status, words)
    return rows


def read_listed(text: str) -> dict[str, list[str]]:
    """What the page says: id -> `file::test`, sorted."""
    listed: dict[str, list[str]] = defaultdict(list)
    for id_, file, tests in _LISTED.findall(text):
        listed[id_] += [f"{file}::{test}" for test in tests.split(", ")]
    return {id_: sorted(tests) for id_, tests in listed.items()}


def collect_marks(directory: Path) -> dict[str, list[str]]:
    """What the tests say: id -> `file::test`, in the order of the files."""
    marks: dict[str, list[str]] = defaultdict(list)
    for path in sorted(directory.rglob("test_*.py")):
        file = path.relative_to(directory.parent if directory == TESTS else directory).as_posix()
        for test, ids in _marked(ast.parse(path.read_text(encoding="utf-8")), "", frozenset()):
            for id_ in sorted(ids):
                marks[id_].append(f"{file}::{test}")
    return dict(marks)


def _marked(
    scope: ast.Module | ast.ClassDef, prefix: str, outer: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    for node in scope.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            outer |= _ids(node.value)
    for node in scope.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _marked(node, f"{prefix}{node.name}::", outer | _ids(*node.decorator_list))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield f"{prefix}{node.name}", outer | _ids(*node.decorator_list)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            # TestMachine = Machine.TestCase, as hypothesis wants it; marked through pytestmark.
            name = node.targets[0].id
            if name.startswith("Test") and outer:
                yield f"{prefix}{name}", outer


def _ids(*nodes: ast.expr) -> frozenset[str]:
    found: set[str] = set()
    for node in nodes:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("mark.req"):
                found |= {ast.literal_eval(argument) for argument in call.args}
    return frozenset(found)


def render(marks: dict[str, list[str]]) -> str:
    """The generated part: per id and file one line with the names of the tests."""
    lines = []
    for id_ in sorted(marks, key=lambda id_: (id_[0], int(id_[1:]))):
        files: dict[str, list[str]] = defaultdict(list)
        for test in marks[id_]:
            file, _, name = test.partition("::")
            files[file].append(name)
        lines += [f"- **{id_}** `{file}`: {', '.join(sorted(files[file]))}" for file in files]
    return "\n".join(lines)


def with_list(text: str, marks: dict[str, list[str]]) -> str:
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    return f"{head}{BEGIN}\n\n{render(marks)}\n\n{END}{tail}"


def main(argv: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    wanted = with_list(text, collect_marks(TESTS))
    if wanted == text:
        print("docs/requirements.md is up to date")
        return 0
    if argv == ["--write"]:
        PAGE.write_text(wanted, encoding="utf-8")
        print("docs/requirements.md: list of tests written")
        return 0
    print("docs/requirements.md is out of date: python tools/requirements_map.py --write")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
