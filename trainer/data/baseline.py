"""What a model must beat: the loss of guessing evenly, and of a unigram model.

Contract: both in nats per predicted token. The unigram model is fitted on the labels of the
training rows with one added to every count, and judged on the labels of the held-out rows, the
very tokens a language model is judged on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from trainer.data.dataset import TokenDataset
from trainer.data.errors import DataError
from trainer.data.npyfile import Tokens

Rows = TokenDataset | Iterable[Tokens]
"""A data set, or arrays of rows [n, seq_len + 1]."""


def uniform_loss(vocab_size: int) -> float:
    """ln V."""
    return math.log(vocab_size)


def label_counts(rows: Rows, vocab_size: int) -> NDArray[np.int64]:
    """How often each id is a label."""
    counts = np.zeros(vocab_size, np.int64)
    for chunk in rows.chunks() if isinstance(rows, TokenDataset) else rows:
        labels = chunk[:, 1:].ravel()
        if labels.size and (labels.min() < 0 or labels.max() >= vocab_size):
            raise DataError(
                f"token ids {labels.min()} to {labels.max()}: expected 0 to {vocab_size - 1}"
            )
        counts += np.bincount(labels, minlength=vocab_size)
    return counts


def unigram_loss(train_rows: Rows, val_rows: Rows, vocab_size: int) -> float:
    """Held-out loss of the add-one smoothed unigram model of the training rows."""
    train, held_out = label_counts(train_rows, vocab_size), label_counts(val_rows, vocab_size)
    if not held_out.any():
        raise DataError("no held-out rows to judge the unigram model on")
    log_p = np.log(train + 1.0) - math.log(float(train.sum()) + vocab_size)
    return float(-(held_out * log_p).sum() / held_out.sum())
