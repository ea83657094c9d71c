"""Standard files that the caller closed, or that refuse what is written to them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.support import COMMAND, files, make, process, run

pytestmark = [pytest.mark.req("S18"), pytest.mark.timeout(180)]


def closed(redirections: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A command that a shell starts with these redirections."""
    line = ["sh", "-c", f'exec "$@" {redirections}', "sh", *COMMAND, *map(str, words)]
    return subprocess.run(line, capture_output=True, check=False, timeout=60, text=True)


@pytest.mark.parametrize("redirections", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_file_is_no_failure(tmp_path: Path, redirections: str) -> None:
    store = make(tmp_path / "run")
    for words in (
        ("fsck", store),
        ("log", store, "--json"),
        ("snapshot", store, "new"),
        ("snapshot", store, "--delete", "new", "--yes"),
        ("cat", store, "block_000", "params", "w"),
        ("export", store, tmp_path / "out"),
        ("--help",),
    ):
        ended = closed(redirections, *words)
        assert ended.returncode == 0 and "Traceback" not in ended.stderr, (words, ended)
    run("fsck", store, "--deep")


@pytest.mark.parametrize("redirections", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_an_error_keeps_its_exit_code_and_leaves_the_store_alone(
    tmp_path: Path, redirections: str
) -> None:
    store = make(tmp_path / "run")
    before = list(files(store))
    assert closed(redirections, "log", tmp_path / "none").returncode == 8
    assert closed(redirections, "cat", store, "none", "params", "w").returncode == 16
    assert closed(redirections, "snapshot", store, "--delete", "early").returncode == 16
    assert list(files(store)) == before
    run("fsck", store, "--deep")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    "words", [("log",), ("log", "--json"), ("fsck",), ("--help",), ("cat", "--raw")]
)
def test_a_full_standard_output_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    store = make(tmp_path / "run")
    tensor = ("block_000", "params", "w") if words[0] == "cat" else ()
    rest = () if words[0] == "--help" else (str(store), *tensor, *words[1:])
    ended = closed(">/dev/full", words[0], *rest)
    assert ended.returncode == 8
    assert ended.stderr == "error: the system refused on standard output: No space left on device\n"


def test_a_path_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for command in ("log", "info", "snapshots", "status", "fsck"):
        none = run(command, tmp_path / "none", code=8).stderr
        assert "not a store" in none and "wal" not in none, none
        assert "not a store" in run(command, tmp_path / "file", code=8).stderr
    store = make(tmp_path / "run")
    (store / "PINS").unlink()
    assert process("log", store).returncode == 0
