"""Goal: presets are exact, foreign files load as they are, and each broken rule has one clear
error.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.config import (
    ModelConfig,
    TrainSettings,
    load_model_config,
    model_from_dict,
    option_specs,
)
from trainer.errors import ConfigError, DataError, ResidencyError, ResumeError, TrainerError
from trainer.presets import PRESETS

PUBLISHED = {
    "v2.0": (291_351_424, 27),
    "v2.1": (373_867_520, 27),
    "v2.5": (291_351_424, 27),
    "v2.6": (49_840_448, 12),
    "v2.8": (55_963_520, 12),
    "v2.9": (100_487_424, 16),
}

# Configuration files of the published family, key for key.
APPENDICES = {
    "v2.1": (32000, 1024, 24, 16, 2816),
    "v2.5": (32000, 896, 24, 14, 2432),
    "v2.6": (32000, 448, 9, 7, 1152),
    "v2.8": (8000, 640, 9, 10, 1792),
}

APPENDIX_TEXT = """{
  "vocab_size": %d,
  "hidden_size": %d,
  "num_layers": %d,
  "num_heads": %d,
  "intermediate_size": %d,
  "max_position_embeddings": 2048,
  "rope_theta": 10000.0,
  "norm_type": "rmsnorm",
  "rms_norm_eps": 1e-5,
  "activation_function": "swiglu",
  "tied_embeddings": false,
  "dropout": 0.0,
  "attention_dropout": 0.0,
  "initializer_range": 0.02,
  "pad_token_id": 0,
  "bos_token_id": 1,
  "eos_token_id": 2
}
"""

SMALL: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_size": 64,
}


@pytest.mark.req("T1")
@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_parameters_and_shards(name: str) -> None:
    model = PRESETS[name].model
    shards = model.shard_names()
    assert (model.parameter_count(), len(shards)) == PUBLISHED[name]
    assert shards[:2] == ("embeddings", "block_000")
    assert shards[-3:] == (f"block_{model.num_layers - 1:03d}", "final_norm", "lm_head")
    sizes = [math.prod(shape) for shard in shards for shape in model.shapes(shard).values()]
    assert sum(sizes) == model.parameter_count()


@pytest.mark.req("T1")
def test_nano_is_small_but_sharded() -> None:
    model = PRESETS["nano"].model
    assert 4.5e6 < model.parameter_count() < 5.5e6
    assert len(model.shard_names()) >= 8
    assert model.vocab_size == 8000
    assert TrainSettings(preset="nano").tokens_per_row == 128


@pytest.mark.req("T1")
@pytest.mark.parametrize("name", APPENDICES)
@pytest.mark.parametrize("key", ["num_heads", "num_attention_heads"])
def test_published_configuration_files_load_verbatim(tmp_path: Path, name: str, key: str) -> None:
    path = tmp_path / "config.json"
    text = APPENDIX_TEXT % APPENDICES[name]
    path.write_text(text.replace("num_heads", key))
    model = load_model_config(path)
    assert model == PRESETS[name].model
    assert model.digest() == PRESETS[name].model.digest()
    assert TrainSettings(config=path).model() == model


@pytest.mark.req("T1")
def test_a_configuration_survives_its_own_dictionary_and_the_digest_sees_every_value() -> None:
    model = model_from_dict(SMALL)
    assert model_from_dict(json.loads(json.dumps(model.to_dict()))) == model
    assert model_from_dict({**SMALL, "rope_theta": 10000}).digest() == model.digest()
    assert model_from_dict({**SMALL, "rope_theta": 10001}).digest() != model.digest()


MODEL_RULES: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": 30}, "hidden_size must be a multiple of num_heads, found 30 and 4"),
    ({"hidden_size": 36, "num_heads": 12}, "hidden_size / num_heads must be even .*, found 3"),
    ({"norm_type": "layernorm"}, "norm_type must be 'rmsnorm', found 'layernorm'"),
    ({"activation_function": "gelu"}, "activation_function must be 'swiglu', found 'gelu'"),
    ({"vocab_size": 0}, "vocab_size must be positive, found 0"),
    ({"num_layers": -1}, "num_layers must be positive, found -1"),
    ({"intermediate_size": 64.0}, "intermediate_size must be a whole number, found 64.0"),
    ({"num_heads": True}, "num_heads must be a whole number, found True"),
    ({"rms_norm_eps": 0.0}, "rms_norm_eps must be positive, found 0.0"),
    ({"rope_theta": "10000"}, "rope_theta must be a number, found '10000'"),
    ({"initializer_range": float("inf")}, "initializer_range must be positive, found inf"),
    ({"pad_token_id": 100}, r"pad_token_id must be in 0..99 \(vocab_size 100\), found 100"),
    ({"eos_token_id": -1}, "eos_token_id must be in 0..99"),
    ({"tied_embeddings": True}, "tied_embeddings: tied embeddings are not supported yet"),
    ({"tied_embeddings": 1}, "tied_embeddings must be true or false, found 1"),
    ({"num_key_value_heads": 2}, "num_key_value_heads: grouped-query attention is not supported"),
    ({"dropout": 0.1}, "dropout: not supported yet, set it to 0.0, found 0.1"),
    ({"attention_dropout": 0.1}, "attention_dropout: not supported yet"),
    ({"hiden_size": 32}, "unknown key 'hiden_size'; known keys are vocab_size, hidden_size"),
    (
        {"num_attention_heads": 8},
        "num_heads and num_attention_heads are the same setting but are 4",
    ),
]


@pytest.mark.req("T3")
@pytest.mark.parametrize(("change", "message"), MODEL_RULES)
def test_each_rule_of_a_model_has_its_own_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match="^here: " + message):
        model_from_dict({**SMALL, **change}, source="here")


@pytest.mark.req("T3")
def test_missing_keys_and_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing hidden_size, num_layers"):
        model_from_dict({"vocab_size": 1, "num_heads": 1, "intermediate_size": 1})
    with pytest.raises(ConfigError, match=r"--config .*gone\.json: cannot be read: No such file"):
        load_model_config(tmp_path / "gone.json")
    path = tmp_path / "bad.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"bad\.json: not JSON"):
        load_model_config(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match=r"bad\.json: expected a JSON object, found list"):
        load_model_config(path)
    with pytest.raises(ConfigError, match="shard 'block_002': not in this model, which has embed"):
        model_from_dict(SMALL).shapes("block_002")


SETTINGS_RULES: list[tuple[dict[str, Any], str]] = [
    ({"preset": "v9"}, "--preset must be one of nano, v2.0, .*, found 'v9'"),
    ({"preset": "nano", "config": Path("x")}, "--preset and --config both name a model"),
    ({"optimizer": "sgd"}, "--optimizer must be one of adamw, found 'sgd'"),
    ({"dtype": "fp16"}, "--dtype fp16: not supported yet, use fp32"),
    ({"dtype": "fp64"}, "--dtype must be one of fp32, fp16, bf16, found 'fp64'"),
    ({"master_weight_dtype": "bf16"}, "--master-weight-dtype bf16: not supported yet"),
    ({"device": "tpu"}, "--device must be cpu, cuda or cuda:N, found 'tpu'"),
    ({"device": "cuda:x"}, "--device must be cpu, cuda or cuda:N, found 'cuda:x'"),
    ({"seq_len": 0}, "--seq-len must be positive, found 0"),
    ({"micro_batch_size": 0}, "--micro-batch-size must be positive, found 0"),
    ({"gradient_accumulation_steps": -1}, "--gradient-accumulation-steps must be positive"),
    ({"max_steps": 0}, "--max-steps must be positive, found 0"),
    ({"adam_eps": 0.0}, "--adam-eps must be positive, found 0.0"),
    ({"beta2": 1.0}, "--beta2 must be in 0..1 .*, found 1.0"),
    ({"weight_decay": -0.1}, "--weight-decay must not be negative, found -0.1"),
    ({"weight_decay": float("nan")}, "--weight-decay must not be negative, found nan"),
    ({"lm_head_chunk_tokens": -1}, "--lm-head-chunk-tokens must not be negative"),
    ({"learning_rate": -1.0}, "--learning-rate must be positive, found -1.0"),
    ({"warmup_steps": 5}, "--warmup-steps has no effect with --lr-schedule tokens: use --warmup-t"),
    ({"lr_schedule": "steps", "decay_tokens": 5}, "--decay-tokens has no effect with --lr-sch"),
    ({"warmup_tokens": 5, "decay_tokens": 5}, "--decay-tokens must be 0 .no decay. or more"),
]


@pytest.mark.req("T3")
@pytest.mark.parametrize(("values", "message"), SETTINGS_RULES)
def test_each_rule_of_the_settings_has_its_own_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match="^" + message):
        TrainSettings(**values)


@pytest.mark.req("T3")
def test_rules_between_settings_and_model() -> None:
    with pytest.raises(ConfigError, match="no model given: use --preset or --config"):
        TrainSettings().model()
    with pytest.raises(ConfigError, match=r"--seq-len must be at most .* \(512\), found 513"):
        TrainSettings(preset="nano", seq_len=513).model()
    assert TrainSettings(preset="v2.8", seq_len=2048).model() == PRESETS["v2.8"].model


@pytest.mark.req("T19")
def test_options_are_complete_enough_to_build_a_command_line() -> None:
    specs = {spec.flag: spec for spec in option_specs()}
    assert [spec.name for spec in specs.values()] == list(TrainSettings.__dataclass_fields__)
    assert all(spec.help.endswith(".") for spec in specs.values())
    assert specs["--preset"].choices == tuple(PRESETS)
    assert (specs["--run-dir"].kind, specs["--run-dir"].optional) == (Path, True)
    assert (specs["--seq-len"].kind, specs["--seq-len"].default) == (int, None)
    assert (specs["--adam-eps"].kind, specs["--adam-eps"].optional) == (float, False)
    assert specs["--lr-schedule"].kind is str
    assert specs["--shuffle-train"].negative_flag == "--no-shuffle-train"
    assert specs["--allow-schedule-change"].negative_flag is None
    assert {spec.kind for spec in specs.values()} == {int, float, str, bool, Path}
    assert TrainSettings(**{spec.name: spec.default for spec in specs.values()}) == TrainSettings()


@pytest.mark.req("T14")
def test_settings_describe_their_schedule_and_step() -> None:
    settings = TrainSettings(
        preset="nano",
        micro_batch_size=4,
        gradient_accumulation_steps=3,
        lr_schedule="steps",
        warmup_steps=10,
        decay_steps=100,
        min_lr_ratio=0.1,
        learning_rate=1e-3,
    )
    assert settings.tokens_per_step == 128 * 4 * 3
    assert settings.schedule().lr(tokens=1, steps=5) == pytest.approx(5e-4)
    assert settings.schedule().lr(tokens=1, steps=100) == pytest.approx(1e-4)


@pytest.mark.req("T19")
def test_reading_settings_imports_no_torch() -> None:
    code = "import sys, trainer.config; assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_error_tree() -> None:
    for error in (ConfigError, DataError, ResumeError, ResidencyError):
        assert issubclass(error, TrainerError)
    assert issubclass(ConfigError, ValueError)
    assert isinstance(model_from_dict(SMALL), ModelConfig)
