"""A run of the earlier system goes on in the trainer as if it had always been there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardstore import Store
from shardstore.importing.carrying import carry_out
from shardstore.importing.sources import Wishes, make_plan
from tests.support.legacy_run import NAMES
from trainer import loop
from trainer.config import TrainSettings
from trainer.errors import ResumeError
from trainer.state import Run

MODEL = {"vocab_size": 50, "hidden_size": 16, "num_layers": 2, "num_heads": 2,
         "intermediate_size": 32, "max_position_embeddings": 8}  # fmt: skip
ROWS = np.random.default_rng(1).integers(0, 50, (8, 9)).astype("<i4")
OLD_NAMES = {new: old for old, new in NAMES.items()}


def settings_in(directory: Path, run: str, rows: Any, steps: int) -> TrainSettings:
    (directory / "model.json").write_text(json.dumps(MODEL))
    data = directory / f"data-{run}"
    data.mkdir(exist_ok=True)
    np.save(data / "rows.npy", rows)
    return TrainSettings(
        run_dir=directory / run, config=directory / "model.json", seq_len=8, data_dir=data,
        micro_batch_size=2, max_steps=steps, shuffle_train=False,
    )  # fmt: skip


def train(settings: TrainSettings) -> list[tuple[str, Any]]:
    reports: list[tuple[str, Any]] = []
    loop.train(settings, lambda event, fields: reports.append((event, dict(fields))))
    return reports


def old_run(store_path: Path, root: Path) -> Path:
    """The head of a store as the earlier system would have left it."""
    for part in ("params", "optim"):
        (root / "shards" / part).mkdir(parents=True)
    with Store.open(store_path) as store:
        head = store.commit_of()
        for shard in sorted({shard for shard, _ in head.parts}):
            with store.load(shard, "params") as params, store.load(shard, "optim") as optim:
                weights, moments = params.torch(), optim.torch()
                step = torch.tensor(float(moments["step"]))
                state = {
                    number: {
                        "step": step,
                        "exp_avg": moments[f"m.{name}"].clone(),
                        "exp_avg_sq": moments[f"v.{name}"].clone(),
                    }
                    for number, name in enumerate(weights)
                }
                named = {OLD_NAMES.get(n, n): t.clone() for n, t in weights.items()}
                torch.save(named, root / "shards/params" / f"{shard}.pt")
                whole = {"state": state, "param_groups": [{"params": list(state)}]}
                torch.save(whole, root / "shards/optim" / f"{shard}.pt")
        (root / "config.json").write_text(json.dumps(MODEL))
        told = head.metadata["trainer"]
        names = {"global_step": "step", "optimizer_step": "optimizer_step"}
        value = {old: told[new] for old, new in names.items()}
        value["tokens_seen"] = told["tokens_seen"]
        (root / "trainer_state.json").write_text(json.dumps(value))
    return root


def imported(root: Path, target: Path) -> None:
    plan = make_plan([str(root)], Wishes())
    with Store.open(target, "a") as store:
        carry_out(store, plan, replace=False, advance=lambda count: None)


@pytest.mark.req("S23", "T1")
def test_it_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """One run goes on; its copy was written as the earlier system would have, imported, and goes on
    with the rows that would have come next."""
    train(settings_in(tmp_path, "native", ROWS, 2))
    imported(old_run(tmp_path / "native", tmp_path / "old"), tmp_path / "copy")
    with Run.open(tmp_path / "copy", write=False) as run, Store.open(tmp_path / "native") as store:
        state, model = run.state()
        assert (state.step, state.optimizer_step) == (2, 2) and model.num_layers == 2
        assert state.tokens_applied == state.tokens_seen == 2 * 2 * 8
        assert run.digests()["state_digest"] == store.state_digest()
    train(settings_in(tmp_path, "native", ROWS, 4))
    reports = train(settings_in(tmp_path, "copy", np.roll(ROWS, -4, axis=0), 4))
    warnings = [fields["text"] for event, fields in reports if event == "warning"]
    assert any("does not say which rows it has seen" in text for text in warnings)
    with Store.open(tmp_path / "native") as one, Store.open(tmp_path / "copy") as other:
        assert one.commit_of().step == other.commit_of().step == 4
        assert one.state_digest() == other.state_digest()
    with Run.open(tmp_path / "copy", write=False) as run:  # now it is a run like any other
        assert run.state()[0].cursor is not None


@pytest.mark.req("S23")
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    train(settings_in(tmp_path, "native", ROWS, 1))
    root = old_run(tmp_path / "native", tmp_path / "old")
    (root / "config.json").write_text(json.dumps({**MODEL, "intermediate_size": 24}))
    imported(root, tmp_path / "other")
    with (
        Run.open(tmp_path / "other", write=False) as run,
        pytest.raises(ResumeError, match=r"'gate_up.weight' was imported as F32 \[64, 16\], this"),
    ):
        run.state()
    (root / "config.json").unlink()
    imported(root, tmp_path / "bare")
    with (
        Run.open(tmp_path / "bare", write=False) as run,
        pytest.raises(ResumeError, match="came without a configuration"),
    ):
        run.state()
