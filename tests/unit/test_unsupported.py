"""File systems that the promises were not tested on: said once, or refused where no lock is."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from shardstore import Store, opening
from shardstore.cli.main import root as command
from shardstore.errors import StorageError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.posix import PosixFileSystem
from tests.support.stores import commit, expected, open_store, values

pytestmark = pytest.mark.req("S30", "S18")


class Doubtful(MemoryFileSystem):
    def doubts(self, path: str) -> str | None:
        return "it is on a network (nfs4): locks and syncs are what its server makes of them"


@pytest.fixture(autouse=True)
def nobody_was_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_warned", set())


def test_a_file_system_in_doubt_is_named_once_a_process() -> None:
    fs = Doubtful()
    with pytest.warns(UserWarning, match=r"store run is on .* not tested on: .*nfs4.*ext4") as told:
        open_store(fs).close()
    assert told[0].filename == __file__.replace("test_unsupported", "support/stores") or told
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with open_store(fs) as store:
            commit(store, 1)
        with open_store(fs, "r") as store:  # who reads promises nothing
            assert values(store) == expected(1)
        open_store(MemoryFileSystem()).close()


def test_commands_say_it_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr(PosixFileSystem, "doubts", lambda self, path: "it is far away (nfs4)")
    with pytest.warns(UserWarning, match="far away"):
        assert command.main(["init", str(tmp_path / "run")], standalone_mode=False) == 0
    said: list[Any] = []
    monkeypatch.setattr("shardstore.cli.main.root.main", lambda: said.append(1))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back at the end
    from shardstore.cli.main import main

    main()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        main()
        warnings.warn("store run is far away", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: store run is far away\n" and said


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS])
def test_without_locks_nobody_writes_and_everybody_reads(code: int) -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
    faulty = FaultyFileSystem(fs)
    faulty.fail("lock", error=code, times=None)
    before = len(fs.log)
    for mode in ("r+", "a"):
        with pytest.raises(StorageError, match=r"no lock on LOCK.*local file system") as refused:
            open_store(faulty, mode)
        assert refused.value.errno == code and os.strerror(code) in str(refused.value)
    with open_store(faulty, "r") as store:
        assert values(store) == expected(1)
    assert len(fs.log) == before


def test_readers_where_locks_have_run_out() -> None:
    """A pin that cannot be had is a view that says so; a question that fails counts as a pin."""
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    with open_store(faulty) as store:
        commit(store, 1)
        faulty.fail("pinned", error=errno.ENOLCK, times=None)
        commit(store, 2)  # every free slot might be pinned: new ones are made
        assert values(store) == expected(2)
        faulty.clear()
        commit(store, 3)
        assert values(store) == expected(3)
    assert Store.open("run", fs=fs).head is not None
