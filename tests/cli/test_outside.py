"""Nothing but the store writes inside of a store: commands that would are refused beforehand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.cli.support import files, make, run

pytestmark = [pytest.mark.req("S18"), pytest.mark.timeout(180)]

COMMANDS = ["export", "clone", "publish", "init", "import"]
PLACES = ["run/objects", "run/new", "run/new/deep", "other/new", "link/new"]
ODD = [("export", "run"), ("export", "loop/../new")]
"""The paths of stores are made absolute by their words, so that the last one is beside `run`."""


@pytest.mark.parametrize(
    "command, place",
    [*((command, place) for command in COMMANDS for place in PLACES), *ODD],
)
def test_outputs_inside_of_a_store_are_refused(tmp_path: Path, command: str, place: str) -> None:
    store, other = make(tmp_path / "run"), make(tmp_path / "other")
    (tmp_path / "link").symlink_to(other / "objects")
    (tmp_path / "loop").symlink_to(store / "wal")
    source = tmp_path / "x.safetensors"
    safetensors.numpy.save_file({"w": np.zeros(3, np.float32)}, source)
    before, names = list(files(tmp_path)), sorted(tmp_path.rglob("*"))
    dest = f"{tmp_path}/{place}"
    words = {"init": [dest], "import": [dest, source]}.get(command, [store, dest])
    told = run(command, *words, code=16).stderr
    assert "inside of" in told or "is the store" in told, told
    assert list(files(tmp_path)) == before and sorted(tmp_path.rglob("*")) == names


def test_a_directory_beside_or_above_a_store_is_none(tmp_path: Path) -> None:
    store = make(tmp_path / "run")
    (tmp_path / "STORE").write_bytes(b"not one")
    for command, place in (("export", "."), ("export", "out/deep"), ("clone", "copy")):
        run(command, store, tmp_path / place)
    run("export", store, tmp_path / "flat", "--part", "params")
