"""The tokenizer: byte-level BPE, trained here or brought along as `tokenizer.json`.

Contract: training is deterministic in the texts and the size. Ids 0, 1, 2 are `<pad>`, `<bos>`,
`<eos>`, then all 256 bytes, so every text encodes without loss and decodes to itself; a text
that spells a special token is encoded as the letters it is made of. A tokenizer made elsewhere
needs an end-of-text token by one of the usual names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import xxhash
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.data.errors import DataError
from trainer.data.npyfile import write_atomically

TOKENIZER_FILE = "tokenizer.json"
VOCAB_SIZE = 8000
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>")
_PAD_NAMES = ("<pad>", "[PAD]", "<|pad|>")
_BOS_NAMES = ("<bos>", "<s>", "<|begin_of_text|>", "[BOS]")
_EOS_NAMES = ("<eos>", "</s>", "<|endoftext|>", "<|end_of_text|>", "[EOS]")
_SMALLEST = len(SPECIAL_TOKENS) + 256


class TextTokenizer:
    """Text to ids and back."""

    def __init__(self, tokenizer: Tokenizer, origin: str) -> None:
        # Otherwise a document could smuggle in an end of text by spelling it.
        tokenizer.encode_special_tokens = True
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.pad_id = self._find(_PAD_NAMES)
        self.bos_id = self._find(_BOS_NAMES)
        eos_id = self._find(_EOS_NAMES)
        if eos_id is None:
            raise DataError(
                f"{origin}: no end-of-text token: expected one of {', '.join(_EOS_NAMES)}"
            )
        self.eos_id = eos_id

    def _find(self, names: Sequence[str]) -> int | None:
        found = (self._tokenizer.token_to_id(name) for name in names)
        return next((int(i) for i in found if i is not None), None)

    def encode(self, text: str) -> list[int]:
        """Ids of the text alone; no special token is added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode`, on all cores."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def decode(self, ids: Sequence[int]) -> str:
        """The text; special tokens leave no trace, cut characters become U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def to_json(self) -> str:
        """The content of `tokenizer.json`."""
        return str(self._tokenizer.to_str(pretty=True))

    @property
    def digest(self) -> str:
        """xxh3_128 of `to_json`."""
        return xxhash.xxh3_128_hexdigest(self.to_json().encode())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `tokenizer.json` whole or not at all; a directory gets it under that name."""
        target = Path(path)
        target = target / TOKENIZER_FILE if target.is_dir() else target
        content = self.to_json().encode()
        write_atomically(target, lambda file: file.write(content))


def train_tokenizer(
    texts: Iterable[str], vocab_size: int = VOCAB_SIZE, path: str | os.PathLike[str] | None = None
) -> TextTokenizer:
    """Trains on the texts; a small corpus may give fewer tokens than asked, see `vocab_size`."""
    if vocab_size < _SMALLEST:
        raise DataError(
            f"--vocab-size {vocab_size}: at least {_SMALLEST} "
            f"(256 bytes and {len(SPECIAL_TOKENS)} special tokens)"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    trained = TextTokenizer(tokenizer, "the trained tokenizer")
    if path is not None:
        trained.save(path)
    return trained


def load_tokenizer(path: str | os.PathLike[str]) -> TextTokenizer:
    """Reads `tokenizer.json`, or the directory that holds it."""
    source = Path(path)
    source = source / TOKENIZER_FILE if source.is_dir() else source
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: no readable tokenizer: {error}") from error
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception for bad JSON
        raise DataError(f"{source}: not a tokenizer.json: {error}") from error
    return TextTokenizer(tokenizer, str(source))
