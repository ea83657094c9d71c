"""The README's example is run as it stands, and what it says it prints is what it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardstore.cli.main import COMMANDS

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.req("S2", "S5", "S6")
def test_example_runs_and_prints_what_the_text_says(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```\n\nprints `([^`]+)`", text, flags=re.DOTALL)
    assert len(examples) == text.count("```python") == 2
    for code, promised in examples:  # the second goes on with the first one's store
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == promised


@pytest.mark.req("S26")
def test_the_readme_lists_every_command() -> None:
    text = README.read_text(encoding="utf-8")
    (listed,) = re.findall(r"The commands:\n\n((?:    .+\n)+)", text)
    assert sorted(listed.split()) == sorted(COMMANDS)


@pytest.mark.req("S26")
def test_commands_in_the_readme_exist() -> None:
    text = README.read_text(encoding="utf-8")
    commands = set(re.findall(r"^    (?:shardstore|trainer) ([a-z]+)", text, flags=re.MULTILINE))
    assert {"data", "train", "log", "fsck", "recover"} <= commands
    for command in sorted(commands):
        program = "trainer" if command in ("data", "train") else "shardstore"
        module = "trainer.cli" if program == "trainer" else "shardstore.cli.main"
        code = f"from {module} import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, command, "--help"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "Example" in done.stdout
