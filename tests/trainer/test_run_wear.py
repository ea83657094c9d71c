"""What a run writes to its disk: said before the first step, in each line of the log, and true."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardstore import Store
from trainer import loop
from trainer.config import TrainSettings
from trainer.errors import ConfigError
from trainer.state import wear_of_step

MODEL = {"vocab_size": 50, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
         "intermediate_size": 32, "max_position_embeddings": 8}  # fmt: skip


def settings_in(directory: Path, **changes: Any) -> TrainSettings:
    directory.mkdir(exist_ok=True)
    (directory / "model.json").write_text(json.dumps(MODEL))
    (directory / "data").mkdir(exist_ok=True)
    rows = np.random.default_rng(1).integers(0, 50, (8, 9)).astype("<i4")
    np.save(directory / "data" / "rows.npy", rows)
    values = {"run_dir": directory / "run", "config": directory / "model.json", "seq_len": 8,
              "data_dir": directory / "data", "micro_batch_size": 2, "max_steps": 2}  # fmt: skip
    return TrainSettings(**{**values, **changes})


def trained(settings: TrainSettings) -> tuple[list[tuple[str, Mapping[str, Any]]], list[Any]]:
    """What the run reported and what it traced."""
    reports: list[tuple[str, Mapping[str, Any]]] = []
    traced: list[Any] = []
    loop.train(
        settings,
        lambda event, fields: reports.append((event, dict(fields))),
        lambda event, fields: traced.append((event, fields.get("step"), fields.get("seq"))),
    )
    return reports, traced


@pytest.mark.req("S32")
def test_wear_is_said_before_the_first_step_and_in_the_log(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, rated_tbw=0.001)
    reports, _ = trained(settings)
    names = [name for name, _ in reports]
    assert names.index("wear") < names.index("step")
    text = dict(reports)["wear"]["text"]
    with Store.open(tmp_path / "run") as store:
        size = sum(store.size_of(*part) for part in store.commit_of().parts)
    assert text.endswith(f"1 GB of rated endurance take {10**9 // size} commits")
    lines = [json.loads(line) for line in (tmp_path / "run" / loop.STEP_LOG).open()]
    assert len(lines) == 2
    for line in lines:
        assert line["bytes_written"] == size  # every part is replaced
        per_day = size * 86_400 / line["step_seconds"]
        assert line["wear_bytes_per_day"] == pytest.approx(per_day)
        assert line["wear_years"] == pytest.approx(1e9 / per_day / 365.25)
    reports, _ = trained(settings_in(tmp_path, rated_tbw=0.001, max_steps=3))
    assert "years at this pace" in dict(reports)["wear"]["text"]  # known from the step before


@pytest.mark.req("S32")
def test_a_step_that_writes_nothing_wears_nothing() -> None:
    assert wear_of_step(0, 2.0, 600) == {
        "bytes_written": 0, "wear_bytes_per_day": 0.0, "wear_years": None,
    }  # fmt: skip
    assert wear_of_step(10, 2.0, 0)["wear_years"] is None
    with pytest.raises(ConfigError, match="--rated-tbw must not be negative"):
        TrainSettings(rated_tbw=-1)


@pytest.mark.req("S1")
def test_every_commit_is_acknowledged_in_the_trace(tmp_path: Path) -> None:
    """That of the initial weights too; a run that goes on has none of its own."""
    _, traced = trained(settings_in(tmp_path))
    assert traced[0][0] == "create"
    with Store.open(tmp_path / "run") as store:
        head = store.commit_of()
    told = [(step, seq) for name, step, seq in traced if name == "acknowledged"]
    assert [step for step, _ in told] == [0, 1, 2] and told[-1] == (2, head.seq)
    _, traced = trained(settings_in(tmp_path, max_steps=3))
    names = [name for name, _, _ in traced]
    assert "create" not in names and names.count("acknowledged") == 1
