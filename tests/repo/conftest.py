"""Fixtures of the suite that watches over the repository itself."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.repo.source_tree import ROOT


@pytest.fixture(scope="session")
def declared() -> dict[str, set[str]]:
    """Names of the declared dependencies: `core` and each extra. Import names are the same."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"core": project["dependencies"], **project["optional-dependencies"]}
    return {
        group: {re.split(r"[^A-Za-z0-9_-]", line)[0].replace("-", "_") for line in lines}
        for group, lines in groups.items()
    }
