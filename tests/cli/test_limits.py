"""Limits that are not the disk's: the size of one file, a user's quota. What is said names them."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from shardstore import Store
from shardstore.errors import StorageError
from shardstore.exporting import new_files
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.system import local_file_system
from tests.cli.support import SETTINGS, make, process, run
from tests.support.stores import commit, open_store

pytestmark = [pytest.mark.req("S18"), pytest.mark.timeout(180)]

LIMITS = {"clone": 4096, "export": 64, "init": 4096, "snapshot": 4096}
WORDS = {errno.EFBIG: "ulimit -f", errno.EDQUOT: "quota"}


@pytest.mark.skipif(sys.platform == "win32", reason="sets a limit of POSIX")
@pytest.mark.parametrize("command", LIMITS)
def test_a_limit_on_the_size_of_a_file_is_named(tmp_path: Path, command: str) -> None:
    import resource

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMITS[command], LIMITS[command]))

    store, other = make(tmp_path / "run"), tmp_path / "other"
    words = {"init": (other,), "snapshot": (store, "new")}.get(command, (store, other))
    ended = process(command, *words, preexec_fn=limited)
    told = ended.stderr.decode()
    assert ended.returncode == 8, told
    assert "ulimit -f" in told and "not the disk is full" in told, told
    assert process("fsck", store, "--deep").returncode == 0


@pytest.mark.parametrize("code", WORDS, ids=errno.errorcode.get)
@pytest.mark.parametrize("path", ["*/objects/*", "*/wal/tmp"])
def test_what_is_used_up_is_named(code: int, path: str) -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with open_store(fs) as store:
        commit(store, 1)
    fs.fail("pwrite", path, error=code, times=None)
    with pytest.raises(StorageError) as caught, open_store(fs) as store:
        commit(store, 2)
    told = str(caught.value)
    assert os.strerror(code) in told and WORDS[code] in told and "not the disk is full" in told, (
        told
    )
    assert caught.value.errno == code


@pytest.mark.parametrize("code", [errno.ENOSPC, *WORDS], ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", ["safetensors", "pt", "flat"])
@pytest.mark.parametrize("operation", ["pwrite", "datasync", "make_directory"])
def test_an_export_without_room_says_how_much_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, kind: str, code: int
) -> None:
    """Also where the library that writes the file hides the system's error."""
    store = make_flat(tmp_path / "run")
    fs = FaultyFileSystem(local_file_system())
    fs.fail(operation, f"{tmp_path}/out*", error=code, times=None)
    monkeypatch.setattr(new_files, "local_file_system", lambda: fs)
    told = run("export", store, tmp_path / "out", "--format", kind, code=8).stderr
    assert "exporting failed on" in told and os.strerror(code) in told, told
    assert re.search(r"[1-9]\d* bytes needed, [1-9]\d* free", told), told
    assert code == errno.ENOSPC or WORDS[code] in told
    assert not [path for path in tmp_path.glob("out/**/*") if path.is_file()]


def make_flat(path: Path) -> Path:
    """A store with what a flat checkpoint can hold."""
    weights = np.arange(24, dtype=np.float32)
    with Store.open(path, "a", settings=SETTINGS) as store, store.begin(1) as txn:
        txn.stage("flat", "params", {"weight": weights})
        moments = {"m.weight": weights, "v.weight": weights, "step": np.array(1, dtype=np.int64)}
        txn.stage("flat", "optim", moments)
        txn.commit()
    return path
