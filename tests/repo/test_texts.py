"""Sizes and words of everything that is kept in the repository."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.repo.source_tree import ROOT, modules, packaged_modules

LINES_MAX = 400  # a law; the guide is 250
TEST_LINES_MAX = 650  # a suite over one interface reads better in one file
COLUMNS_MAX = 100

# What the repository consists of; anything else at its top is somebody's scratch.
DIRECTORIES = ("shardstore", "trainer", "tools", "tests", "benchmarks", "docs", ".ci", ".github")
FILES = (
    *("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md"),
    *("CONTRIBUTING.md", "SECURITY.md", ".gitignore", ".gitattributes"),
)
BINARY = {".raw", ".wal", ".mdb", ".bin", ".pt", ".npy", ".safetensors", ".png", ".gz", ".zst"}

# Joined here, so that this file does not hold what it looks for. Paths of one machine, places that
# a reader cannot see, unfinished work, and a word whose meaning here is taken by abort.
FORBIDDEN = tuple(
    "".join(halves)
    for halves in (
        *(("/wo", "rk/"), ("/ro", "ot/"), ("/tmp/", "pip"), ("/opt/", "pypi"), ("/opt/", "wheels")),
        *(("pypi", ".org"), ("python", "hosted"), ("registry.", "npmjs"), ("shared/", "SPEC")),
        *(("shared/", "DESIGN"), ("../", "shared"), ("see", "ds/0"), ("TO", "DO"), ("FIX", "ME")),
        *(("roll", "back"), ("roll", "ed back"), ("roll", " back")),
    )
)


def _texts() -> list[Path]:
    found = [ROOT / name for name in FILES]
    for top in DIRECTORIES:
        found += [path for path in (ROOT / top).rglob("*") if path.is_file()]
    left_out = BINARY | {".pyc"}
    scratch = ROOT / "benchmarks" / "tmp"  # ignored by git, full of data while a benchmark runs
    golden = ROOT / "tests" / "format" / "golden"  # stores
    return [
        path
        for path in found
        if path.suffix not in left_out
        if scratch not in path.parents and golden not in path.parents
    ]


def _words_found(text: str) -> list[str]:
    return [word for word in FORBIDDEN if re.search(rf"(?<![\w]){re.escape(word)}", text, re.I)]


def test_the_pattern_finds_what_it_is_for() -> None:
    assert _words_found("cd /wo" + "rk/main") and _words_found("a Roll" + "back of")
    assert not _words_found("framework/x, scroll back")


def test_no_text_holds_a_forbidden_word() -> None:
    texts = _texts()
    assert len(texts) > 80
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {word}"
        for path in texts
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for word in _words_found(line)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("top", ["shardstore", "trainer", "tools", "benchmarks", "tests"])
def test_files_stay_small(top: str) -> None:
    limit = TEST_LINES_MAX if top == "tests" else LINES_MAX
    large = {
        str(module.path.relative_to(ROOT)): count
        for module in modules(top).values()
        if (count := module.text.count("\n")) > limit
    }
    assert not large, f"over {limit} lines: {large}"


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(module.path.relative_to(ROOT))
        for module in packaged_modules().values()
        if module.text.strip() and not ast.get_docstring(module.tree)
    ]
    assert not silent, f"no module docstring: {silent}"


def test_the_top_of_the_repository_has_its_files() -> None:
    wanted = {*FILES, *DIRECTORIES} - {"benchmarks"}
    gone = sorted(name for name in wanted if not (ROOT / name).exists())
    assert not gone, f"missing: {gone}"


def test_an_installation_is_marked_as_typed() -> None:
    for package in ("shardstore", "trainer"):
        assert (ROOT / package / "py.typed").exists()
