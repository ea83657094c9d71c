"""A run directory of the earlier system: its head, its checkpoints, and what is wrong with it.

Contract: reads `config.json`, `trainer_state.json`, `durable_flush_manifest.json`, `shards/` and
`checkpoints/step_N/shards/`, changes nothing there. Checkpoints that hold shards become snapshots
in the order of their steps, the head comes last. Leftovers of steps that were never published are
named and left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardstore.errors import ForeignFileError
from shardstore.importing.files import check_within, is_run_directory
from shardstore.importing.plan import Plan, PlannedStep
from shardstore.importing.run_files import OPTIM, PARAMS, expected_shards, read_shards
from shardstore.importing.run_state import RunState, audit, state_of
from shardstore.importing.small_files import parse_object, read_small

CONFIG = "config.json"
STATE = "trainer_state.json"
METADATA = "shards/metadata.json"
MANIFEST = "durable_flush_manifest.json"
BLOBS_BYTES_MAX = 512 << 10
_STEP = re.compile(r"step_(\d{1,18})\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Texts:
    """The small files of a directory, as they are and parsed."""

    raw: Mapping[str, bytes]
    parsed: Mapping[str, dict[str, Any]]


def plan_run(root: str, *, checkpoints: bool) -> Plan:
    """What importing the directory would do; with `checkpoints` its snapshots come along."""
    root = root.rstrip("/") or "/"
    texts = _read_texts(root, root, (CONFIG, STATE, METADATA, MANIFEST))
    config = texts.parsed.get(CONFIG)
    warnings = [] if config else [f"{root}/{CONFIG} is missing: no trainer can go on from this"]
    head, state = _step_of(root, root, config, texts, warnings)
    warnings += _about_flush(root, texts.parsed.get(MANIFEST), state)
    warnings += _leftovers(root, {shard for shard, _ in _names(head)})
    before = _checkpoints(root, config, head, warnings) if checkpoints else []
    return Plan(
        kind="run", source=os.path.basename(os.path.abspath(root)), steps=(*before, head),
        whole=True, warnings=tuple(warnings),
    )  # fmt: skip


def _step_of(
    directory: str,
    root: str,
    config: Mapping[str, Any] | None,
    texts: _Texts,
    warnings: list[str],
    snapshot: str | None = None,
) -> tuple[PlannedStep, RunState]:
    expected = expected_shards(config, texts.parsed.get(METADATA))
    shards = read_shards(directory, root, expected)
    if not shards.parts:
        raise ForeignFileError("it holds no shards", file=f"{directory}/shards/{PARAMS}")
    path = f"{directory}/{STATE}"
    said = state_of(texts.parsed[STATE], path) if STATE in texts.parsed else None
    state, told = audit(said, shards.steps, path)
    warnings += [*shards.warnings, *told]
    facts: dict[str, Any] = {"config": config, "state": state.to_json()}
    if said is not None and said != state:
        facts["repaired_from"] = said.to_json()
    metrics = {} if state.val_loss is None else {"val_loss": state.val_loss}
    step = PlannedStep(
        step=state.step, parts=shards.parts, facts=facts, metadata={"metrics": metrics},
        blobs=_blobs(texts, warnings, directory), snapshot=snapshot,
    )  # fmt: skip
    return step, state


def _read_texts(directory: str, root: str, names: tuple[str, ...]) -> _Texts:
    paths = {name: f"{directory}/{name}" for name in names}
    raw = {
        name: read_small(path, within=root) for name, path in paths.items() if os.path.lexists(path)
    }
    parsed = {name: parse_object(paths[name], data) for name, data in raw.items()}
    return _Texts(raw=raw, parsed=parsed)


def _blobs(texts: _Texts, warnings: list[str], directory: str) -> dict[str, bytes]:
    """The small files as they were, for whoever wants to know more than was understood."""
    blobs = {f"{name}": data for name, data in texts.raw.items()}
    if sum(map(len, blobs.values())) <= BLOBS_BYTES_MAX:
        return blobs
    warnings.append(
        f"the small files of {directory} are more than {BLOBS_BYTES_MAX} bytes: they do not come "
        "along as they are, only what was understood of them"
    )
    return {}


def _checkpoints(
    root: str, config: Mapping[str, Any] | None, head: PlannedStep, warnings: list[str]
) -> list[PlannedStep]:
    """The snapshots, oldest first."""
    folder = f"{root}/checkpoints"
    if not os.path.isdir(folder):
        return []
    check_within(folder, root)
    found: dict[int, PlannedStep] = {}
    for name in sorted(os.listdir(folder)):
        directory, match = f"{folder}/{name}", _STEP.match(name)
        if match is None:
            warnings.append(f"{directory} is no checkpoint: left alone")
            continue
        check_within(directory, root)
        if not is_run_directory(directory):
            warnings.append(f"{directory} marks a step and holds no shards: nothing to import")
            continue
        number = int(match.group(1))
        texts = _read_texts(directory, root, (CONFIG, STATE, METADATA))
        own = texts.parsed.get(CONFIG, config)
        step, state = _step_of(directory, root, own, texts, warnings, f"step_{number:08d}")
        if state.step != number:
            warnings.append(f"{directory} holds step {state.step}: it is snapshot {step.snapshot}")
        assert head.step is not None
        if state.step > head.step:
            warnings.append(
                f"{directory} is of a later step than the run's head ({head.step}): left alone; "
                "import it by itself, into another store"
            )
            continue
        if number in found:
            raise ForeignFileError(f"two checkpoints are of step {number}", file=directory)
        found[number] = step
    return sorted(found.values(), key=lambda step: (step.step or 0, step.snapshot or ""))


def _names(step: PlannedStep) -> set[tuple[str, str]]:
    return {(part.shard, part.part) for part in step.parts}


def _about_flush(root: str, manifest: Mapping[str, Any] | None, state: RunState) -> list[str]:
    """What the earlier system says that it published last."""
    if manifest is None:
        return []
    names = ("published_step", "step", "global_step")
    step = next((manifest[name] for name in names if type(manifest.get(name)) is int), None)
    if step is None:
        return [f"{root}/{MANIFEST} does not say which step was published"]
    if step == state.step:
        return []
    return [
        f"{root}/{MANIFEST} says that step {step} was published last, the shards are of step "
        f"{state.step}: a publication may have been cut off"
    ]


def _leftovers(root: str, shards: set[str]) -> list[str]:
    """Steps that were staged and not, or not wholly, published."""
    folder = f"{root}/shards/transactions"
    if not os.path.isdir(folder):
        return []
    told = []
    for name in sorted(os.listdir(folder)):
        staged = sum(
            len(os.listdir(part))
            for part in (f"{folder}/{name}/{PARAMS}", f"{folder}/{name}/{OPTIM}")
            if os.path.isdir(part)
        )
        told.append(
            f"{folder}/{name} was left by a step that was not published ({staged} files of "
            f"{2 * len(shards)}): left alone"
        )
    return told
