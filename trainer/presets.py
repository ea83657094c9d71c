"""The models that have a name: the published family, and `nano` for machines without an
accelerator.

`seq_len` is the training length a preset is meant for; settings may choose another.
"""

import dataclasses

from trainer.architecture import ModelConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    model: ModelConfig
    seq_len: int
    summary: str


def _family(*, vocab: int, hidden: int, layers: int, heads: int, inner: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=inner,
    )


_V2_0 = _family(vocab=32000, hidden=896, layers=24, heads=14, inner=2432)

PRESETS: dict[str, Preset] = {
    "nano": Preset(
        model=ModelConfig(
            vocab_size=8000,
            hidden_size=192,
            num_layers=6,
            num_heads=6,
            intermediate_size=384,
            max_position_embeddings=512,
        ),
        seq_len=128,
        summary="5 million parameters in 9 shards; learns within a minute or two on two cores",
    ),
    "v2.0": Preset(model=_V2_0, seq_len=512, summary="291 million parameters"),
    "v2.1": Preset(
        model=_family(vocab=32000, hidden=1024, layers=24, heads=16, inner=2816),
        seq_len=512,
        summary="374 million parameters",
    ),
    "v2.5": Preset(
        model=_V2_0, seq_len=512, summary="291 million parameters, the geometry of v2.0"
    ),
    "v2.6": Preset(
        model=_family(vocab=32000, hidden=448, layers=9, heads=7, inner=1152),
        seq_len=512,
        summary="50 million parameters, vocabulary of 32,000",
    ),
    "v2.8": Preset(
        model=_family(vocab=8000, hidden=640, layers=9, heads=10, inner=1792),
        seq_len=512,
        summary="56 million parameters, vocabulary of 8,000",
    ),
    "v2.9": Preset(
        model=_family(vocab=8000, hidden=768, layers=13, heads=12, inner=1920),
        seq_len=512,
        summary="100 million parameters, vocabulary of 8,000",
    ),
}
