"""A slot file is a safetensors file.

Goal: whoever has the objects and no shardstore reads them with the common library. Method: a store
made through the public face; every object of its head opened with safetensors, for numpy and torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from shardstore import Store

PARTS: dict[tuple[str, str], dict[str, Any]] = {
    ("block_000", "params"): {
        "0.weight": torch.arange(35, dtype=torch.float32).reshape(5, 7).t(),
        "bias": torch.linspace(-1, 1, 9).to(torch.bfloat16),
        "f8": torch.arange(3, dtype=torch.float32).to(torch.float8_e4m3fn),
        "none": torch.zeros(0, 4),
    },
    ("../odd", "ü"): {
        "count": np.array(7, np.int64),
        "mask": np.array([True, False, True]),
        "z": np.array([1j, 2], np.complex64),
    },
    ("empty", "part"): {},
}


@pytest.mark.req("S10")
def test_slot_files_open_in_safetensors(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run", "a") as store:
        with store.begin(step=3) as txn:
            for key, tensors in PARTS.items():
                txn.stage(*key, tensors)
            txn.commit()
        rows = {(row.shard, row.part, row.tensor): row for row in store.tensors()}
    seen = set()
    for path in sorted((tmp_path / "run" / "objects").glob("*.raw")):
        with safe_open(path, framework="pt") as opened:
            about = opened.metadata()
            key = (about["shard"], about["part"])
            found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        padding = {name for name in found if name.startswith("__pad_")}
        assert found.keys() - padding == PARTS[key].keys()
        assert not any(bool(found[name].any()) for name in padding)
        assert int(about["step"]) == 3
        for name, given in PARTS[key].items():
            wanted = given if isinstance(given, torch.Tensor) else torch.from_numpy(given)
            assert found[name].dtype == wanted.dtype
            assert rows[(*key, name)].shape == tuple(found[name].shape) == tuple(wanted.shape)
            ours = found[name].contiguous().reshape(-1).view(torch.uint8)
            assert torch.equal(ours, wanted.contiguous().reshape(-1).view(torch.uint8))
        seen.add(key)
    assert seen == set(PARTS)


@pytest.mark.req("S10")
def test_tensors_are_declared_aligned_and_without_holes(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run", "a") as store, store.begin(step=1) as txn:
        txn.stage("s", "p", PARTS["block_000", "params"])
        txn.commit()
    (path,) = (tmp_path / "run" / "objects").glob("*.raw")
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    assert (8 + length) % 4096 == len(data) % 4096 == 0
    position = 0
    for name, row in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = row["data_offsets"]
        assert begin == position
        assert begin % 64 == 0 or name.startswith("__pad_")
        position = end
    assert position == len(data) - 8 - length
