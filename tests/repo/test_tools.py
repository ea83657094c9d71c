"""The project's own test runner and conftest: marks, skips, long profiles, set-up.

Each test runs the real conftest over a small suite in a folder of its own, as a process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.source_tree import ROOT
from tools import run_tests

SUITE = """
import pytest

def test_works(): ...

@pytest.mark.long
def test_long(): ...

@pytest.mark.skip(reason="{reason}")
def test_skipped(): ...
"""


def _pytest(folder: Path, *arguments: str, require_all: bool) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "conftest.py")
    shutil.copy(ROOT / "pyproject.toml", folder / "pyproject.toml")
    environment = {**os.environ, "REQUIRE_ALL": "1" if require_all else ""}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", ".", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_long_profile_is_left_out_and_said_so(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(SUITE.format(reason="some"))
    short = _pytest(tmp_path, require_all=False)
    assert "1 passed, 1 skipped, 1 deselected" in short.stdout
    assert "1 long profiles left out; run them with --long" in short.stdout
    assert "2 passed, 1 skipped" in _pytest(tmp_path, "--long", require_all=False).stdout


@pytest.mark.parametrize(("reason", "code"), [("no GPU: not here", 0), ("no strace", 1)])
def test_a_skip_fails_where_all_is_required(tmp_path: Path, reason: str, code: int) -> None:
    (tmp_path / "test_x.py").write_text(SUITE.format(reason=reason))
    done = _pytest(tmp_path, require_all=True)
    assert done.returncode == code, done.stdout
    assert (f"skipped, but REQUIRE_ALL=1: {reason}" in done.stdout) == bool(code)


def test_a_skipped_module_fails_where_all_is_required(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    (tmp_path / "test_y.py").write_text("def test_works(): ...\n")
    assert _pytest(tmp_path, require_all=False).returncode == 0
    done = _pytest(tmp_path, require_all=True)
    assert done.returncode != 0
    assert "skipped, but REQUIRE_ALL=1: could not import 'no_such_module'" in done.stdout


def test_an_unknown_mark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("import pytest\n@pytest.mark.lnog\ndef test_a(): ...\n")
    assert "'lnog' not found" in _pytest(tmp_path, require_all=False).stdout


def test_the_runner_knows_every_suite() -> None:
    suites = {path.parent.relative_to(ROOT / "tests").parts[0] for path in _test_files()}
    assert suites == set(run_tests.SUITES)


def _test_files() -> list[Path]:
    return list((ROOT / "tests").rglob("test_*.py"))


def test_the_closing_line_counts_steps_that_ran_no_test(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        run_tests.Step(name="lint", ok=False, seconds=1),
        run_tests.Step(name="unit", ok=True, seconds=2, passed=5, skips={"no GPU": ["a", "b"]}),
    ]
    run_tests.report(steps)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "total: 5 passed, 1 failed, 2 skipped"
    assert "skipped in unit: 2 x no GPU" in lines


def test_the_runner_refuses_an_unknown_step(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_tests.parse(["unti"])
    assert stopped.value.code == 2
    assert "no such step: unti" in capsys.readouterr().err


def _bootstrap(root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The shared set-up on a copy of what it reads; pip reaches nothing."""
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root / name)
    script = f'. "{ROOT}/tools/_bootstrap.sh"; bootstrap "{root}" && echo "took $SETUP_SECONDS"'
    return subprocess.run(
        ["bash", "-c", script],
        env={
            "PATH": "/usr/bin:/bin",
            "PIP_NO_INDEX": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_set_up_names_what_is_missing(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    for tool in ("bash", "cat"):
        (empty / tool).symlink_to(shutil.which(tool) or tool)
    done = _bootstrap(tmp_path, PATH=str(empty))
    assert done.returncode == 1
    assert "No Python 3.11 or newer found" in done.stderr


def test_set_up_that_is_done_calls_no_pip(tmp_path: Path) -> None:
    venv_bin = tmp_path / ".venv" / "bin"
    venv_bin.mkdir(parents=True)
    # A Python that does everything but run a module: pip cannot be called behind our back.
    (venv_bin / "python").write_text(
        '#!/bin/sh\n[ "$1" = -m ] && { echo "called pip" >&2; exit 1; }\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    (venv_bin / "python").chmod(0o755)
    first = _bootstrap(tmp_path)
    assert first.returncode == 1 and "called pip" in first.stderr
    assert "Installing the dependencies failed" in first.stderr

    stamp = f'. "{ROOT}/tools/_bootstrap.sh"; _wanted_stamp "{venv_bin}/python" "{tmp_path}"'
    wanted = subprocess.run(["bash", "-c", stamp], capture_output=True, text=True, check=True)
    (tmp_path / ".venv" / ".shardstore-stamp").write_text(wanted.stdout)
    second = _bootstrap(tmp_path)
    assert second.returncode == 0 and "called pip" not in second.stderr
    assert second.stdout.strip() == "took 0"
