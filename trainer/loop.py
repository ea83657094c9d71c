"""Training, from opening the run to the last step. Reads like a script.

Each step is one transaction: load, compute, stage, commit. A step ends applied, recorded (its
gradients were not finite: every object is kept, data and counters go on) or aborted (an error:
nothing is recorded). After any kill a new `train` goes on from the last commit, bit for bit.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from trainer.architecture import ModelConfig
from trainer.config import TrainSettings
from trainer.data import DataCursor, TokenDataset, open_validation, require_same_data
from trainer.data.validation import ValidationData
from trainer.errors import ConfigError, DataError
from trainer.metrics import StepLog, Timings
from trainer.optim import AdamW
from trainer.state import Run, Trace, TrainerState, wear_of_step
from trainer.stream.batch import MicroBatch
from trainer.stream.executor import Evaluation, StepResult, StreamingExecutor
from trainer.stream.placement import placement_for
from trainer.stream.source import ShardSource

STEP_LOG = "train.jsonl"
VALIDATION_GROUP = 16
"""Validation batches whose activations are in memory together."""

_RECORDED_SETTINGS = (
    "seq_len",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "optimizer",
    "weight_decay",
    "beta1",
    "beta2",
    "adam_eps",
    "lm_head_chunk_tokens",
    "validate_every",
    "max_validation_batches",
)

Report = Callable[[str, Mapping[str, Any]], None]
"""Told of `warning`, `resumed`, `wear`, `step`, `validated` and `snapshot`, with fields."""


def train(settings: TrainSettings, report: Report, trace: Trace | None = None) -> None:
    """Train until `max_steps`; initialises an empty run, resumes any other."""
    if settings.run_dir is None or settings.data_dir is None:
        raise ConfigError("training needs --run-dir and --data-dir")
    with Run.open(settings.run_dir, write=True, create=True, trace=trace) as run:
        if run.is_empty:
            seq = run.initialise(settings.model(), settings.seed, lambda what: None)
            (trace or _no_trace)("acknowledged", {"step": 0, "seq": seq})
        Training(run, settings, report, trace).go_on()


class Training:
    """One run being trained with one set of settings."""

    def __init__(
        self, run: Run, settings: TrainSettings, report: Report, trace: Trace | None
    ) -> None:
        self._run, self._settings, self._report = run, settings, report
        self._trace: Trace = trace or _no_trace
        self.state, self.model = run.state()
        _check_model(settings, self.model)
        assert settings.run_dir is not None and settings.data_dir is not None
        self._log_path = settings.run_dir / STEP_LOG
        self._timings = Timings()
        self._executor = StreamingExecutor(
            self.model,
            chunk_tokens=settings.lm_head_chunk_tokens,
            placement=placement_for(settings.device),
            timings=self._timings,
            on_phase=self._on_phase,
        )
        self._data = _open_data(settings, self.model)
        self._validation = _open_validation(settings, self.model)
        for warning in (*self._data.warnings, *_validation_warnings(self._validation)):
            report("warning", {"text": warning})

    def go_on(self) -> None:
        """From the head's commit to `max_steps`."""
        self._resume()
        self._report("wear", {"text": self._run.wear(self._settings.rated_tbw)})
        # A kill may have come between a commit and the snapshot that was due.
        self._snapshot_if_due()
        with StepLog(self._log_path) as log:
            while self.state.step < self._settings.max_steps:
                log.write(self._step())
                self._snapshot_if_due()

    def _snapshot_if_due(self) -> None:
        if self.state.step and _due(self.state.step, self._settings.save_every):
            self._report("snapshot", {"name": self._run.snapshot()})

    def _resume(self) -> None:
        state, settings = self.state, self._settings
        self._run.restore_rng()
        schedule = settings.schedule()
        if state.schedule:
            schedule.check_resume(state.schedule, allow_change=settings.allow_schedule_change)
        if state.data is not None:
            require_same_data(state.data, self._data.fingerprint, f"{settings.data_dir}")
        if state.cursor is None:
            self.cursor = self._data.cursor(0)
            if state.step:
                self._report("warning", {"text": "the run does not say which rows it has seen: "
                             "data begin with the first"})  # fmt: skip
        else:
            self.cursor = DataCursor.from_json(state.cursor)
            self._data.resume(self.cursor)
        recorded = _recorded(settings)
        changed = {
            name: f"{state.settings[name]} -> {recorded[name]}"
            for name in recorded
            if state.settings and state.settings.get(name) != recorded[name]
        }
        if changed:
            self._report("warning", {"text": f"settings differ from the run's own: {changed}"})
        self._report("resumed", {"step": state.step, "max_steps": settings.max_steps})

    def _step(self) -> dict[str, Any]:
        """One step: applied or recorded. Returns its line of the log."""
        settings, state = self._settings, self.state
        self._timings.restart()
        began = time.time()
        tokens = settings.tokens_per_step
        lr = settings.schedule().lr(
            tokens=state.tokens_applied + tokens, steps=state.optimizer_step + 1
        )
        with self._timings.leaf("data_load"):
            batches = list(self._batches())
        number = state.step + 1
        with self._run.begin(number, self.model) as transaction:
            result = self._executor.train_step(transaction.source, batches, self._rule(lr))
            applied = math.isfinite(result.loss) and math.isfinite(result.grad_norm)
            if applied:
                validation = self._validate_if_due(number, transaction.source)
                after = self._after(tokens, applied, validation)
                self._commit(transaction, after, result, lr, validation, began)
        if not applied:
            validation = None
            self._report(
                "warning",
                {"text": f"step {number}: loss {result.loss}, gradient norm {result.grad_norm}: "
                 "recorded without an update"},
            )  # fmt: skip
            with self._run.begin(number, self.model) as transaction:
                transaction.keep_everything()
                after = self._after(tokens, applied, None)
                self._commit(transaction, after, result, lr, None, began)
        self.state = after
        written = self._run.bytes_of(transaction.source.staged)
        return self._line(result, lr, validation, applied, written)

    def _commit(
        self,
        transaction: Any,
        after: TrainerState,
        result: StepResult,
        lr: float,
        validation: Evaluation | None,
        began: float,
    ) -> None:
        metrics = {"train_loss": result.loss, "grad_norm": result.grad_norm, "lr": lr}
        if validation is not None:
            metrics["val_loss"] = validation.loss
        clock = {"seconds": time.time() - began, "finished": time.time()}
        with self._timings.leaf("commit"):
            seq = transaction.commit(after, metrics, clock)
        self._trace("acknowledged", {"step": after.step, "seq": seq, "train_loss": result.loss})

    def _after(self, tokens: int, applied: bool, validation: Evaluation | None) -> TrainerState:
        settings, state = self._settings, self.state
        rows = settings.micro_batch_size * settings.gradient_accumulation_steps
        self.cursor = self.cursor.advance(rows)
        return dataclasses.replace(
            state,
            step=state.step + 1,
            optimizer_step=state.optimizer_step + applied,
            tokens_seen=state.tokens_seen + tokens,
            tokens_applied=state.tokens_applied + (tokens if applied else 0),
            schedule=settings.schedule().to_dict(),
            val_loss=validation.loss if validation else state.val_loss,
            cursor=self.cursor.to_json(),
            data=self._data.fingerprint.summary(),
            settings=_recorded(settings),
        )

    def _batches(self) -> Iterator[MicroBatch]:
        rows = self._settings.micro_batch_size
        for index in range(self._settings.gradient_accumulation_steps):
            inputs, labels = self._data.batch(self.cursor.row + index * rows, rows)
            yield MicroBatch(torch.from_numpy(inputs), torch.from_numpy(labels))

    def _rule(self, lr: float) -> AdamW:
        settings = self._settings
        return AdamW(
            lr=lr,
            beta1=settings.beta1,
            beta2=settings.beta2,
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
        )

    def _validate_if_due(self, step: int, source: ShardSource) -> Evaluation | None:
        if self._validation is None or not _due(step, self._settings.validate_every):
            return None
        found = evaluate(self._executor, source, self._validation, self._settings)
        self._report("validated", {"step": step, "val_loss": found.loss})
        return found

    def _line(
        self,
        result: StepResult,
        lr: float,
        validation: Evaluation | None,
        applied: bool,
        written: int,
    ) -> dict[str, Any]:
        seconds = self._timings.report()
        line = {
            "step": self.state.step,
            "outcome": "applied" if applied else "recorded",
            "train_loss": result.loss,
            "lr": lr,
            "base_lr": self._settings.learning_rate,
            "tokens_seen": self.state.tokens_seen,
            "tokens_per_sec": result.tokens / seconds["step_seconds"],
            "grad_norm": result.grad_norm,
            **wear_of_step(written, seconds["step_seconds"], self._settings.rated_tbw),
            **seconds,
            **result.residency,
        }
        if validation is not None:
            line["val_loss"] = validation.loss
            line["val_perplexity"] = validation.perplexity
            line["validation_batches"] = validation.batches
        self._report("step", line)
        return line

    def _on_phase(self, name: str, **fields: str) -> None:
        # Loads and stagings are traced by the store, where they happen.
        if name == "compute":
            self._trace(name, fields)


def evaluate(
    executor: StreamingExecutor,
    source: ShardSource,
    validation: ValidationData,
    settings: TrainSettings,
) -> Evaluation:
    """Mean loss over held-out rows, a bounded number of batches at a time."""
    total, group = Evaluation(), list[MicroBatch]()
    maximum = settings.max_validation_batches or None
    for inputs, labels in validation.batches(settings.micro_batch_size, maximum):
        group.append(MicroBatch(torch.from_numpy(inputs), torch.from_numpy(labels)))
        if len(group) == VALIDATION_GROUP:
            total += executor.evaluate(source, group)
            group = []
    return total + executor.evaluate(source, group) if group else total


def validate(settings: TrainSettings, at: str) -> tuple[int, Evaluation]:
    """Held-out loss of a commit of the run; returns its step and the sums."""
    if settings.run_dir is None:
        raise ConfigError("validation needs --run-dir")
    with Run.open(settings.run_dir, write=False) as run:
        state, model = run.state(at)
        _check_model(settings, model)
        validation = _open_validation(settings, model)
        if validation is None:
            raise ConfigError("validation needs --val-data-dir")
        executor = StreamingExecutor(
            model,
            chunk_tokens=settings.lm_head_chunk_tokens,
            placement=placement_for(settings.device),
        )
        return state.step, evaluate(executor, run.view(at), validation, settings)


def _check_model(settings: TrainSettings, model: ModelConfig) -> None:
    settings.check_model(model)
    named = settings.config is not None or settings.preset is not None
    if named and settings.model().digest() != model.digest():
        raise ConfigError(
            f"--preset/--config names another model than run {settings.run_dir} holds; leave the "
            "flag out to go on with the run's own, or name another --run-dir"
        )


def _open_data(settings: TrainSettings, model: ModelConfig) -> TokenDataset:
    assert settings.data_dir is not None
    return TokenDataset.open(
        settings.data_dir,
        seq_len=settings.tokens_per_row,
        vocab_size=model.vocab_size,
        seed=settings.seed,
        shuffle=settings.shuffle_train,
    )


def _open_validation(settings: TrainSettings, model: ModelConfig) -> ValidationData | None:
    wanted = settings.val_data_dir is not None or settings.allow_train_validation_fallback
    if not wanted:
        if settings.validate_every:
            raise DataError("--validate-every needs --val-data-dir")
        return None
    return open_validation(
        settings.val_data_dir,
        settings.data_dir or Path(),
        allow_fallback=settings.allow_train_validation_fallback,
        seq_len=settings.tokens_per_row,
        vocab_size=model.vocab_size,
    )


def _validation_warnings(validation: ValidationData | None) -> tuple[str, ...]:
    return validation.warnings if validation else ()


def _recorded(settings: TrainSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in _RECORDED_SETTINGS} | {
        "seq_len": settings.tokens_per_row
    }


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _no_trace(event: str, fields: Mapping[str, Any]) -> None:
    return
