"""docs/guarantees.md names the tests that keep its promises, and they are there."""

from __future__ import annotations

import re

import pytest

from tests.repo.source_tree import ROOT

PAGE = ROOT / "docs" / "guarantees.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
NOTHING = "nothing of ours"


def named() -> list[tuple[str, str]]:
    return TEST.findall(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("path", "name"), sorted(set(named())))
def test_a_named_test_is_there(path: str, name: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^def {name}\(", text, flags=re.MULTILINE), f"{path} has no {name}"


def test_every_row_names_a_test_or_says_that_there_is_none() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    rows = [row for row in rows if not row.startswith(("|---", "| # |", "| where |"))]
    bare = [row for row in rows if not TEST.search(row) and NOTHING not in row]
    assert len(rows) > 15 and not bare, bare
    assert len(set(named())) > 20


def test_every_backticked_test_has_the_spelling_that_is_checked() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("::test_") == len(named())


def test_readme_and_security_lead_there() -> None:
    for name in ("README.md", "SECURITY.md"):
        assert "docs/guarantees.md" in (ROOT / name).read_text(encoding="utf-8")
