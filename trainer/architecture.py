"""The shape of a model: one frozen value, its rules, its shards and their tensors.

Contract: an existing `ModelConfig` is valid. Every broken rule has one message that names key,
expected and found. Nothing here imports torch; `model` computes with these shapes, `init` fills
them, `config` adds training settings.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError

EMBEDDINGS = "embeddings"
FINAL_NORM = "final_norm"
LM_HEAD = "lm_head"
BLOCK_PREFIX = "block_"
PARAMS = "params"
OPTIM = "optim"

_SYNONYMS = {"num_attention_heads": "num_heads"}
_POSITIVE_INTS = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "intermediate_size",
    "max_position_embeddings",
)
_POSITIVE_FLOATS = ("rope_theta", "rms_norm_eps", "initializer_range")
_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer: RMSNorm, RoPE, SwiGLU, no biases, a head of its own."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    norm_type: str = "rmsnorm"
    rms_norm_eps: float = 1e-5
    activation_function: str = "swiglu"
    tied_embeddings: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    pad_token_id: int = 0
    bos_token_id: int = 1
    eos_token_id: int = 2
    num_key_value_heads: int | None = None
    """Grouped-query attention; only None or `num_heads` so far."""

    def __post_init__(self) -> None:
        _check_types(self)
        _check_sizes(self)
        _check_kinds(self)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def shard_names(self) -> tuple[str, ...]:
        """Every shard, in the order of the forward pass."""
        blocks = (f"{BLOCK_PREFIX}{index:03d}" for index in range(self.num_layers))
        return (EMBEDDINGS, *blocks, FINAL_NORM, LM_HEAD)

    def shapes(self, shard: str) -> dict[str, Shape]:
        """The parameters of a shard, in their stored order."""
        hidden, inner = self.hidden_size, self.intermediate_size
        if shard not in self.shard_names():
            raise ConfigError(
                f"shard {shard!r}: not in this model, which has {', '.join(self.shard_names())}"
            )
        if shard in (EMBEDDINGS, LM_HEAD):
            return {"weight": (self.vocab_size, hidden)}
        if shard == FINAL_NORM:
            return {"weight": (hidden,)}
        return {
            "input_norm.weight": (hidden,),
            "q_proj.weight": (hidden, hidden),
            "k_proj.weight": (hidden, hidden),
            "v_proj.weight": (hidden, hidden),
            "o_proj.weight": (hidden, hidden),
            "post_norm.weight": (hidden,),
            "gate_up.weight": (2 * inner, hidden),
            "down.weight": (hidden, inner),
        }

    def parameter_count(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        block = 4 * hidden * hidden + 3 * hidden * inner + 2 * hidden
        return 2 * self.vocab_size * hidden + self.num_layers * block + hidden

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def digest(self) -> str:
        """Hash of every value, the same whatever the key order of the file it came from."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def model_from_dict(
    values: Mapping[str, Any], *, source: str = "model configuration"
) -> ModelConfig:
    """Build a configuration from a parsed file; `source` stands at the head of every error."""
    fields = {field.name: field for field in dataclasses.fields(ModelConfig)}
    known: dict[str, Any] = {}
    for key, value in values.items():
        name = _SYNONYMS.get(key, key)
        if name not in fields:
            raise ConfigError(f"{source}: unknown key {key!r}; known keys are {', '.join(fields)}")
        if name in known and known[name] != value:
            raise ConfigError(
                f"{source}: {name} and {key} are the same setting but are {known[name]} and {value}"
            )
        known[name] = value
    missing = [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in known]
    if missing:
        raise ConfigError(f"{source}: missing {', '.join(missing)}")
    try:
        return ModelConfig(**known)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def load_model_config(path: Path) -> ModelConfig:
    """Read a JSON configuration file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--config {path}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"--config {path}: expected a JSON object, found {type(values).__name__}")
    return model_from_dict(values, source=f"--config {path}")


def _check_types(config: ModelConfig) -> None:
    for name in (*_POSITIVE_INTS, *_TOKEN_IDS):
        if type(getattr(config, name)) is not int:
            raise ConfigError(f"{name} must be a whole number, found {getattr(config, name)!r}")
    for name in (*_POSITIVE_FLOATS, "dropout", "attention_dropout"):
        value = getattr(config, name)
        if type(value) not in (int, float):
            raise ConfigError(f"{name} must be a number, found {value!r}")
        object.__setattr__(config, name, float(value))
    if type(config.tied_embeddings) is not bool:
        raise ConfigError(
            f"tied_embeddings must be true or false, found {config.tied_embeddings!r}"
        )


def _check_sizes(config: ModelConfig) -> None:
    for name in (*_POSITIVE_INTS, *_POSITIVE_FLOATS):
        if not 0 < getattr(config, name) < float("inf"):
            raise ConfigError(f"{name} must be positive, found {getattr(config, name)}")
    if config.hidden_size % config.num_heads:
        raise ConfigError(
            f"hidden_size must be a multiple of num_heads, found {config.hidden_size} "
            f"and {config.num_heads}"
        )
    if config.head_dim % 2:
        raise ConfigError(
            f"hidden_size / num_heads must be even (RoPE turns pairs), found {config.head_dim}"
        )
    for name in _TOKEN_IDS:
        if not 0 <= getattr(config, name) < config.vocab_size:
            raise ConfigError(
                f"{name} must be in 0..{config.vocab_size - 1} (vocab_size {config.vocab_size}), "
                f"found {getattr(config, name)}"
            )


def _check_kinds(config: ModelConfig) -> None:
    if config.norm_type != "rmsnorm":
        raise ConfigError(f"norm_type must be 'rmsnorm', found {config.norm_type!r}")
    if config.activation_function != "swiglu":
        raise ConfigError(
            f"activation_function must be 'swiglu', found {config.activation_function!r}"
        )
    if config.tied_embeddings:
        raise ConfigError("tied_embeddings: tied embeddings are not supported yet, set it to false")
    if config.num_key_value_heads not in (None, config.num_heads):
        raise ConfigError(
            f"num_key_value_heads: grouped-query attention is not supported yet, expected "
            f"num_heads ({config.num_heads}) or none, found {config.num_key_value_heads}"
        )
    for name in ("dropout", "attention_dropout"):
        if getattr(config, name) != 0.0:
            raise ConfigError(
                f"{name}: not supported yet, set it to 0.0, found {getattr(config, name)}"
            )
