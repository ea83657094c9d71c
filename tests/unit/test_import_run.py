"""Run directories of the earlier system: what comes along, what is repaired, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from shardstore import Ref, Store
from shardstore.errors import ForeignFileError, NameTakenError, UsageError
from shardstore.importing import carrying
from shardstore.importing.carrying import ImportedStep, carry_out
from shardstore.importing.plan import Plan
from shardstore.importing.sources import Wishes, make_plan
from tests.support.legacy_run import (
    NAMES,
    SHARDS,
    adamw_state,
    make_run,
    params_of,
    write_optim,
    write_shards,
    write_state,
)


def plan_of(root: Path, **wishes: Any) -> Plan:
    return make_plan([str(root)], Wishes(**wishes))


def imported(root: Path, target: Path, *, replace: bool = False) -> list[ImportedStep]:
    plan = plan_of(root)
    with Store.open(target, "a") as store:
        return carry_out(store, plan, replace=replace, advance=lambda count: None)


def check_state(store: Store, step: int, *, seed: int = 0, at: Ref | str = Ref.head) -> None:
    """The commit holds the tensors that the run had, under their names here."""
    for shard in SHARDS:
        params = params_of(shard, seed)
        with store.load(shard, "params", at) as loaded:
            found = loaded.torch()
            assert set(found) == {NAMES.get(name, name) for name in params}
            for name, tensor in params.items():
                assert torch.equal(found[NAMES.get(name, name)], tensor), (shard, name)
        with store.load(shard, "optim", at) as loaded:
            moments = loaded.torch()
            assert int(moments["step"]) == step and moments["step"].dtype == torch.int64
            for name, tensor in params.items():
                name = NAMES.get(name, name)
                assert torch.equal(moments[f"m.{name}"], tensor * 0.5)
                assert torch.equal(moments[f"v.{name}"], tensor * tensor)


@pytest.mark.req("S23")
@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_run_comes_along_whole(tmp_path: Path, kind: str) -> None:
    root = make_run(tmp_path / "old", kind=kind)
    (root / "durable_flush_manifest.json").write_text('{"published_step": 30}')
    assert plan_of(root).warnings == ()
    (made,) = imported(root, tmp_path / "run")
    assert (made.step, made.parts, made.snapshot) == (30, 10, None)
    with Store.open(tmp_path / "run") as store:
        check_state(store, 30)
        commit = store.commit_of()
        facts = commit.metadata["imported"]
        assert facts["kind"] == "run" and facts["source"] == "old"
        assert facts["config"]["num_layers"] == 2 and "repaired_from" not in facts
        assert facts["state"] == {
            "step": 30, "optimizer_step": 30, "tokens_seen": 512 * 30, "val_loss": 4.5,
        }  # fmt: skip
        assert commit.metadata["metrics"] == {"val_loss": 4.5}
        assert commit.blobs["trainer_state.json"] == (root / "trainer_state.json").read_bytes()


@pytest.mark.req("S23")
def test_a_trainer_state_that_lags_is_repaired(tmp_path: Path) -> None:
    root = make_run(tmp_path / "old", step=2309, state_step=2125)
    (warning,) = plan_of(root).warnings
    assert "trainer_state.json says global_step 2125, every optimizer shard 2309" in warning
    (made,) = imported(root, tmp_path / "run")
    assert made.step == 2309
    with Store.open(tmp_path / "run") as store:
        facts = store.commit_of().metadata["imported"]
    assert facts["state"]["step"] == facts["state"]["optimizer_step"] == 2309
    assert facts["repaired_from"]["step"] == 2125
    assert json.loads((root / "trainer_state.json").read_text())["global_step"] == 2125


@pytest.mark.req("S23")
def test_only_the_counter_of_updates_lags(tmp_path: Path) -> None:
    """Steps without an update count in global_step and not in the optimizer."""
    root = make_run(tmp_path / "old", step=30)
    write_state(root, 35, optimizer_step=29)
    (warning,) = plan_of(root).warnings
    assert "optimizer_step 29, every optimizer shard 30" in warning
    (made,) = imported(root, tmp_path / "run")
    assert made.step == 35
    write_state(root, 35, optimizer_step=None)
    assert "steps without an update" in plan_of(root).warnings[0]
    (root / "trainer_state.json").unlink()
    plan = plan_of(root)
    assert plan.steps[-1].step == 30 and "trainer_state.json is missing" in plan.warnings[0]


@pytest.mark.req("S23")
def test_optimizer_steps_that_disagree_are_refused(tmp_path: Path) -> None:
    root = make_run(tmp_path / "old", step=30)
    write_optim(root, "block_001", params_of("block_001", 0), step=31)
    with pytest.raises(ForeignFileError, match=r"4 at step 30 .*; 1 at step 31 .*block_001"):
        imported(root, tmp_path / "run")
    write_optim(root, "block_001", params_of("block_001", 0), step=30)
    state = adamw_state(params_of("block_000", 0), 30)
    state["state"][3]["step"] += 1
    torch.save(state, root / "shards/optim/block_000.pt")
    with pytest.raises(ForeignFileError, match="its parameters disagree"):
        imported(root, tmp_path / "run")
    write_optim(root, "block_000", params_of("block_000", 0), step=30)
    (root / "shards/optim/lm_head.pt").unlink()
    with pytest.raises(ForeignFileError, match=r"1 at step 0 .*lm_head"):
        imported(root, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.req("S23")
def test_a_state_ahead_of_its_shards_is_refused(tmp_path: Path) -> None:
    root = make_run(tmp_path / "old", step=30, state_step=40)
    with pytest.raises(ForeignFileError, match="ahead of the optimizer shards"):
        plan_of(root)


@pytest.mark.req("S23")
def test_a_run_that_was_never_trained(tmp_path: Path) -> None:
    """Optimizer shards are made with the first update: until then they are zero."""
    root = tmp_path / "old"
    make_run(root, step=0)
    shutil.rmtree(root / "shards/optim")
    (made,) = imported(root, tmp_path / "run")
    assert (made.step, made.parts) == (0, 10)
    with Store.open(tmp_path / "run") as store, store.load("lm_head", "optim") as loaded:
        tensors = loaded.torch()
        assert set(tensors) == {"m.weight", "v.weight", "step"} and int(tensors["step"]) == 0
        assert not tensors["m.weight"].any() and tensors["m.weight"].shape == (16, 8)


@pytest.mark.req("S23")
def test_checkpoints_become_snapshots(tmp_path: Path) -> None:
    root = make_run(tmp_path / "old", step=30)
    for step in (10, 20, 30):
        directory = root / "checkpoints" / f"step_{step:08d}"
        directory.mkdir(parents=True)
        write_shards(directory, step=step, seed=0 if step == 30 else step)
        write_state(directory, step)
    (root / "checkpoints/step_00000025").mkdir()
    (root / "checkpoints/notes").mkdir()
    later = root / "checkpoints/step_00000040"
    write_shards(later, step=40)
    write_state(later, 40)
    told = plan_of(root).warnings
    assert any("step_00000025 marks a step and holds no shards" in text for text in told)
    assert any("notes is no checkpoint" in text for text in told)
    assert any("step_00000040 is of a later step" in text for text in told)
    made = imported(root, tmp_path / "run")
    assert [step.step for step in made] == [10, 20, 30, 30]
    with Store.open(tmp_path / "run") as store:
        names = [snapshot.name for snapshot in store.snapshots]
        assert names == ["step_00000010", "step_00000020", "step_00000030"]
        check_state(store, 10, seed=10, at="step_00000010")
        check_state(store, 20, seed=20, at="step_00000020")
        check_state(store, 30)
        assert store.state_digest("step_00000030") == store.state_digest()
        # Nothing is stored twice: the head's parts are those of its checkpoint.
        (head, same) = (store.objects(), store.objects("step_00000030"))
        assert head == same
        assert store.commit_of("step_00000010").metadata["imported"]["number"] == 1
    assert len(plan_of(root, checkpoints=False).steps) == 1
    by_itself = make_plan([str(later)], Wishes())
    assert [step.step for step in by_itself.steps] == [40]
    assert "config.json is missing" in by_itself.warnings[0]


@pytest.mark.req("S23")
def test_leftovers_are_named_and_left_alone(tmp_path: Path) -> None:
    root = make_run(tmp_path / "old", step=30)
    staged = root / "shards/transactions/step_31/params"
    staged.mkdir(parents=True)
    (staged / "block_000.pt").write_bytes(b"half")
    (root / "shards/params/block_000.pt.tmp").write_bytes(b"half")
    (root / "durable_flush_manifest.json").write_text('{"step": 20}')
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    warnings = plan_of(root).warnings
    assert any(
        "transactions/step_31 was left by a step that was not published (1 files of 10)" in text
        for text in warnings
    )
    assert any("block_000.pt.tmp is no shard's file" in text for text in warnings)
    assert any("step 20 was published last, the shards are of step 30" in t for t in warnings)
    imported(root, tmp_path / "run")
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before


@pytest.mark.req("S23")
def test_shards_have_to_be_there_once(tmp_path: Path) -> None:
    root = make_run(tmp_path / "old")
    (root / "shards/params/block_001.pt").rename(tmp_path / "aside")
    with pytest.raises(ForeignFileError, match="shard 'block_001' is missing"):
        plan_of(root)
    (root / "shards/metadata.json").unlink()  # then the configuration says which there are
    with pytest.raises(ForeignFileError, match="shard 'block_001' is missing"):
        plan_of(root)
    (tmp_path / "aside").rename(root / "shards/params/block_001.pt")
    shutil.copy(root / "shards/params/block_001.pt", root / "shards/params/block_001.safetensors")
    with pytest.raises(ForeignFileError, match="shard 'block_001' has two files"):
        plan_of(root)
    (root / "shards/params/block_001.safetensors").unlink()
    shutil.copy(root / "shards/optim/block_001.pt", root / "shards/optim/block_002.pt")
    with pytest.raises(ForeignFileError, match="optimizer state without parameters"):
        plan_of(root)


@pytest.mark.req("S23")
def test_moments_have_to_be_those_of_the_parameters(tmp_path: Path) -> None:
    root = make_run(tmp_path / "old", step=30)
    path = root / "shards/optim/block_000.pt"
    good = adamw_state(params_of("block_000", 0), 30)
    cases: list[tuple[str, Any]] = []
    less = adamw_state(params_of("block_000", 0), 30)
    del less["state"][2]["exp_avg"]
    cases.append(("moments m of parameter", less))
    shaped = adamw_state(params_of("block_000", 0), 30)
    shaped["state"][1]["exp_avg_sq"] = torch.zeros(8, 9)
    cases.append(("has another shape than parameter 'q_proj.weight'", shaped))
    more = adamw_state(params_of("block_000", 0) | {"more": torch.zeros(1)}, 30)
    cases.append(("numbers other parameters", more))
    half = adamw_state(params_of("block_000", 0), 30)
    for state in half["state"].values():
        state["step"] = torch.tensor(30.5)
    cases.append(("its step is no count", half))
    for words, value in cases:
        torch.save(value, path)
        with pytest.raises(ForeignFileError, match=words):
            plan_of(root)
    # Two groups, matrices before vectors, as weight decay is usually switched off for the latter.
    params = params_of("block_000", 0)
    order = sorted(params, key=lambda name: params[name].dim() < 2)
    grouped = adamw_state({name: params[name] for name in order}, 30)
    grouped["param_groups"] = [{"params": list(range(6))}, {"params": [6, 7]}]
    torch.save(grouped, path)
    assert "moments are numbered in 2 groups" in plan_of(root).warnings[0]
    imported(root, tmp_path / "run")
    with Store.open(tmp_path / "run") as store:
        check_state(store, 30)
    torch.save({"momentum_buffer": {"w": torch.ones(2)}, "step": 30}, path)
    assert "no AdamW state; its tensors are taken as they are" in plan_of(root).warnings[0]
    torch.save(good, path)
    assert plan_of(root).warnings == ()


@pytest.mark.req("S23")
def test_links_out_of_the_run_are_refused(tmp_path: Path) -> None:
    root = make_run(tmp_path / "old")
    path = root / "shards/params/lm_head.pt"
    path.rename(tmp_path / "elsewhere.pt")
    path.symlink_to(tmp_path / "elsewhere.pt")
    with pytest.raises(ForeignFileError, match="a link leads out of"):
        plan_of(root)
    path.unlink()
    (tmp_path / "elsewhere.pt").rename(path)
    (root / "trainer_state.json").rename(tmp_path / "state.json")
    (root / "trainer_state.json").symlink_to(tmp_path / "state.json")
    with pytest.raises(ForeignFileError, match="a link leads out of"):
        plan_of(root)


@pytest.mark.req("S23")
def test_states_that_are_no_states(tmp_path: Path) -> None:
    root = make_run(tmp_path / "old")
    for text in ("{}", "[]", "{", '{"global_step": -1}', '{"global_step": 1.5}',
                 '{"global_step": 1e400}', '{"global_step": true}'):  # fmt: skip
        (root / "trainer_state.json").write_text(text)
        with pytest.raises(ForeignFileError):
            plan_of(root)


@pytest.mark.req("S23")
def test_an_import_goes_into_an_empty_store(tmp_path: Path) -> None:
    root = make_run(tmp_path / "old")
    imported(root, tmp_path / "run")
    with pytest.raises(NameTakenError, match="import it into a new store, or give --replace"):
        imported(root, tmp_path / "run")
    (made,) = imported(root, tmp_path / "run", replace=True)
    assert made.step == 30
    with pytest.raises(UsageError, match="is a store already"):
        plan_of(tmp_path / "run")
    with pytest.raises(UsageError, match="no run directory"):
        plan_of(tmp_path)


@pytest.mark.req("S23")
def test_what_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after each commit, and between a commit and its snapshot."""
    root = make_run(tmp_path / "old", step=30)
    for step in (10, 20):
        write_shards(root / "checkpoints" / f"step_{step:08d}", step=step, seed=step)
    whole = tmp_path / "whole"
    imported(root, whole)

    class Killed(Exception):
        """Stands for the end of the process."""

    real = {"_commit": carrying._commit, "_snapshot": carrying._snapshot}
    for name in real:
        for after in range(1, 4):
            target, calls = tmp_path / f"{name}-{after}", []

            def dying(*arguments: Any, name: str = name, calls: list[int] = calls,
                      after: int = after) -> Any:  # fmt: skip
                calls.append(1)
                if len(calls) == after:
                    raise Killed
                return real[name](*arguments)

            monkeypatch.setattr(carrying, name, dying)
            with pytest.raises(Killed):
                imported(root, target)
            monkeypatch.setattr(carrying, name, real[name])
            if (name, after) == ("_snapshot", 3):  # all was there
                with pytest.raises(NameTakenError):
                    imported(root, target)
            else:
                imported(root, target)
            with Store.open(target) as store, Store.open(whole) as complete:
                assert store.state_digest() == complete.state_digest()
                assert [s.name for s in store.snapshots] == [s.name for s in complete.snapshots]
                for snapshot in store.snapshots:
                    name_of = snapshot.name
                    assert store.state_digest(name_of) == complete.state_digest(name_of)
                steps = [commit.step for commit in store.kept]
                assert len(steps) == len(set(steps))


@pytest.mark.req("S23")
def test_damage_found_while_reading_commits_nothing(tmp_path: Path) -> None:
    """A tensor's bytes are read when they are staged: the step they belong to is then aborted."""
    root = make_run(tmp_path / "old", step=30)
    path = root / "shards/params/lm_head.pt"
    data = bytearray(path.read_bytes())
    weight = params_of("lm_head", 0)["weight"].numpy().tobytes()
    data[data.index(weight) + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ForeignFileError, match="its checksum is wrong"):
        imported(root, tmp_path / "run")
    with Store.open(tmp_path / "run") as store:
        assert store.head is None
