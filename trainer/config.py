"""Training settings: the one typed source of flags, defaults, help texts and rules.

Each field of `TrainSettings` carries its help and choices; its flag is its name. `cli` builds
the command line from `option_specs()` and `loop` reads the values; neither repeats a default.
An existing `TrainSettings` obeys every rule that it can check alone; `model()` adds the model
and the rules between the two. Free of torch, so that help is quick.
"""

import dataclasses
import math
import types
import typing
from pathlib import Path
from typing import Annotated, Any

from trainer.architecture import ModelConfig, load_model_config, model_from_dict
from trainer.errors import ConfigError
from trainer.presets import PRESETS
from trainer.schedule import Schedule, Unit

__all__ = [
    "ModelConfig",
    "OptionSpec",
    "TrainSettings",
    "load_model_config",
    "model_from_dict",
    "option_specs",
]

DEFAULT_SEQ_LEN = 512


@dataclasses.dataclass(frozen=True, slots=True)
class Help:
    """What a settings field says for itself on the command line."""

    text: str
    choices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """One command-line option, enough to build it in any option parser."""

    name: str
    flag: str
    negative_flag: str | None
    kind: type
    """int, float, str, bool or Path."""
    optional: bool
    default: Any
    help: str
    choices: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Everything a training run can be told."""

    preset: Annotated[str | None, Help("A model that has a name.", tuple(PRESETS))] = None
    config: Annotated[
        Path | None, Help("A model configuration file (JSON), instead of --preset.")
    ] = None
    run_dir: Annotated[Path | None, Help("The run: a shardstore store and its logs.")] = None
    data_dir: Annotated[Path | None, Help("Directory of .npy token rows to train on.")] = None
    val_data_dir: Annotated[Path | None, Help("Directory of held-out .npy token rows.")] = None
    seq_len: Annotated[int | None, Help("Tokens per row; the preset's own, else 512.")] = None
    micro_batch_size: Annotated[int, Help("Rows computed at once.")] = 8
    gradient_accumulation_steps: Annotated[int, Help("Micro-batches per update.")] = 1
    optimizer: Annotated[str, Help("The update rule.", ("adamw",))] = "adamw"
    learning_rate: Annotated[float, Help("Base learning rate.")] = 3e-4
    weight_decay: Annotated[float, Help("Decoupled weight decay; norms are left out.")] = 0.05
    beta1: Annotated[float, Help("Decay of the first moment.")] = 0.9
    beta2: Annotated[float, Help("Decay of the second moment.")] = 0.95
    adam_eps: Annotated[float, Help("Added after bias correction.")] = 1e-8
    lr_schedule: Annotated[Unit, Help("What the schedule counts.", ("tokens", "steps"))] = "tokens"
    warmup_tokens: Annotated[int, Help("Linear warm-up, with --lr-schedule tokens.")] = 0
    warmup_steps: Annotated[int, Help("Linear warm-up, with --lr-schedule steps.")] = 0
    decay_tokens: Annotated[
        int, Help("Where the cosine reaches its floor, in tokens; 0: no decay.")
    ] = 0
    decay_steps: Annotated[
        int, Help("Where the cosine reaches its floor, in steps; 0: no decay.")
    ] = 0
    min_lr_ratio: Annotated[float, Help("Floor of the schedule, as a share of the base rate.")] = (
        1.0
    )
    allow_schedule_change: Annotated[
        bool, Help("Resume under another schedule than the run's own.")
    ] = False
    lm_head_chunk_tokens: Annotated[
        int, Help("Tokens whose logits exist at once; 0: a whole micro-batch.")
    ] = 0
    max_steps: Annotated[int, Help("Train until this step.")] = 1000
    seed: Annotated[int, Help("Seed of initial weights and of the data order.")] = 0
    device: Annotated[str, Help("cpu, cuda or cuda:N.")] = "cpu"
    dtype: Annotated[str, Help("Precision of computation.", ("fp32", "fp16", "bf16"))] = "fp32"
    master_weight_dtype: Annotated[
        str, Help("Precision of stored weights.", ("fp32", "fp16", "bf16"))
    ] = "fp32"
    validate_every: Annotated[int, Help("Validate after this many steps; 0: never.")] = 0
    max_validation_batches: Annotated[
        int, Help("Stop a validation after this many batches; 0: all.")
    ] = 0
    allow_train_validation_fallback: Annotated[
        bool, Help("Validate on training data when --val-data-dir is left out.")
    ] = False
    save_every: Annotated[int, Help("Take a snapshot after this many steps; 0: none.")] = 0
    rated_tbw: Annotated[
        float, Help("Rated endurance of the run's disk, in 10^12 bytes; 0: not known.")
    ] = 0.0
    shuffle_train: Annotated[bool, Help("Shuffle the order of training files.")] = True

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_ranges(self)
        _check_combinations(self)

    @property
    def tokens_per_row(self) -> int:
        """`seq_len` as given, the preset's, or the default."""
        if self.seq_len is not None:
            return self.seq_len
        return PRESETS[self.preset].seq_len if self.preset else DEFAULT_SEQ_LEN

    @property
    def tokens_per_step(self) -> int:
        return self.tokens_per_row * self.micro_batch_size * self.gradient_accumulation_steps

    def schedule(self) -> Schedule:
        """The learning-rate schedule these settings describe."""
        by_tokens = self.lr_schedule == "tokens"
        return Schedule(
            base_lr=self.learning_rate,
            unit=self.lr_schedule,
            warmup=self.warmup_tokens if by_tokens else self.warmup_steps,
            decay=self.decay_tokens if by_tokens else self.decay_steps,
            min_ratio=self.min_lr_ratio,
        )

    def model(self) -> ModelConfig:
        """The model of --preset or --config, checked against these settings."""
        if self.config is not None:
            model = load_model_config(self.config)
        elif self.preset is not None:
            model = PRESETS[self.preset].model
        else:
            raise ConfigError("no model given: use --preset or --config")
        self.check_model(model)
        return model

    def check_model(self, model: ModelConfig) -> None:
        """The rules between settings and a model, which may also come from a run on disk."""
        if self.tokens_per_row > model.max_position_embeddings:
            raise ConfigError(
                f"--seq-len must be at most max_position_embeddings "
                f"({model.max_position_embeddings}), found {self.tokens_per_row}"
            )


def option_specs() -> tuple[OptionSpec, ...]:
    """Every option of `TrainSettings`, in declaration order."""
    return tuple(
        _spec(field, *_hint_and_help(field.name)) for field in dataclasses.fields(TrainSettings)
    )


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def _hint_and_help(name: str) -> tuple[Any, Help]:
    hint, text = typing.get_args(_HINTS[name])
    return hint, text


def _spec(field: "dataclasses.Field[Any]", hint: Any, text: Help) -> OptionSpec:
    optional = isinstance(hint, types.UnionType)
    if optional:
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    return OptionSpec(
        name=field.name,
        flag=flag_of(field.name),
        negative_flag="--no-" + field.name.replace("_", "-") if field.default is True else None,
        kind=str if typing.get_origin(hint) is typing.Literal else hint,
        optional=optional,
        default=field.default,
        help=text.text,
        choices=text.choices or None,
    )


_HINTS = typing.get_type_hints(TrainSettings, include_extras=True)


def _check_choices(settings: TrainSettings) -> None:
    for field in dataclasses.fields(TrainSettings):
        choices, value = _hint_and_help(field.name)[1].choices, getattr(settings, field.name)
        if choices and value is not None and value not in choices:
            raise ConfigError(
                f"{flag_of(field.name)} must be one of {', '.join(choices)}, found {value!r}"
            )
    for name in ("dtype", "master_weight_dtype"):
        if getattr(settings, name) != "fp32":
            raise ConfigError(
                f"{flag_of(name)} {getattr(settings, name)}: not supported yet, use fp32"
            )
    kind, _, index = settings.device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal())):
        raise ConfigError(f"--device must be cpu, cuda or cuda:N, found {settings.device!r}")


def _check_ranges(settings: TrainSettings) -> None:
    positive = (
        "seq_len",
        "micro_batch_size",
        "gradient_accumulation_steps",
        "max_steps",
        "adam_eps",
    )
    for name in positive:
        value = getattr(settings, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{flag_of(name)} must be positive, found {value}")
    counts = (
        "lm_head_chunk_tokens",
        "validate_every",
        "max_validation_batches",
        "save_every",
        "seed",
    )
    schedule = ("warmup_tokens", "warmup_steps", "decay_tokens", "decay_steps")
    for name in (*counts, *schedule, "weight_decay", "rated_tbw"):
        value = getattr(settings, name)
        if not (value >= 0 and math.isfinite(value)):
            raise ConfigError(f"{flag_of(name)} must not be negative, found {value}")
    for name in ("beta1", "beta2"):
        if not 0.0 <= getattr(settings, name) < 1.0:
            raise ConfigError(
                f"{flag_of(name)} must be in 0..1 (1 left out), found {getattr(settings, name)}"
            )


def _check_combinations(settings: TrainSettings) -> None:
    if settings.preset is not None and settings.config is not None:
        raise ConfigError("--preset and --config both name a model: give one of them")
    other = "steps" if settings.lr_schedule == "tokens" else "tokens"
    for name in (f"warmup_{other}", f"decay_{other}"):
        if getattr(settings, name):
            raise ConfigError(
                f"{flag_of(name)} has no effect with --lr-schedule {settings.lr_schedule}: "
                f"use {flag_of(name.replace(other, settings.lr_schedule))} or --lr-schedule {other}"
            )
    settings.schedule()
