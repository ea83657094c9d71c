"""An import that fails before anything was committed leaves no store, and can be done again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from shardstore.importing import carrying
from tests.cli.support import files, make, run

pytestmark = [pytest.mark.req("S26"), pytest.mark.timeout(180)]


def damaged(path: Path) -> Path:
    """Its checksum is wrong, which is found when its data are read."""
    torch.save({"w": torch.arange(1000.0)}, path)
    data = bytearray(path.read_bytes())
    at = data.index(torch.arange(1000.0).numpy().tobytes()[400:480])
    data[at] ^= 1
    path.write_bytes(data)
    return path


def test_data_that_turn_out_damaged_leave_no_store(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.safetensors", damaged(tmp_path / "bad.pt")
    safetensors.numpy.save_file({"w": np.zeros(3, np.float32)}, good)
    for _ in range(2):
        told = run("import", tmp_path / "run", good, bad, code=4).stderr
        assert "checksum is wrong" in told
        run("info", tmp_path / "run", code=8)
        assert [name for name, *_ in files(tmp_path / "run")] == [str(tmp_path / "run" / "LOCK")]
    run("import", tmp_path / "run", good)
    run("fsck", tmp_path / "run", "--deep")


def test_an_interrupt_leaves_no_store_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tmp_path / "good.safetensors"
    safetensors.numpy.save_file({"w": np.zeros(3, np.float32)}, good)

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(carrying, "_stage", interrupted)
        run("import", tmp_path / "run", good, code=130)
    assert [name for name, *_ in files(tmp_path / "run")] == [str(tmp_path / "run" / "LOCK")]
    run("import", tmp_path / "run", good)


def test_a_store_that_was_there_stays(tmp_path: Path) -> None:
    bad = damaged(tmp_path / "bad.pt")
    run("init", tmp_path / "empty")
    store = make(tmp_path / "run")
    for path in (store, tmp_path / "empty"):
        run("import", path, bad, code=4)
        run("fsck", path, "--deep")


def test_a_file_that_claims_more_than_the_disk_has(tmp_path: Path) -> None:
    file = tmp_path / "sparse.safetensors"
    size = 1 << 42
    text = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    with file.open("wb") as sparse:
        sparse.write(len(text).to_bytes(8, "little") + text)
        try:
            sparse.truncate(8 + len(text) + size)
        except OSError:
            pytest.skip("no sparse file of this size here")
    for words in ((), ("--dry-run",)):
        told = run("import", tmp_path / "new" / "run", file, *words, code=8).stderr
        assert f"{size} bytes needed" in told, told
        assert not (tmp_path / "new").exists()
