"""Token data: from text to the batches of a run.

Contract: numpy in, numpy out; torch begins where the trainer takes the arrays. Every choice
(row order, held-out side, tokenizer) is a pure function of its inputs, so that a run that was
killed sees the same rows again.

- `dataset`, `order`, `validation`: what the training loop reads; `fingerprint`: whether it is
  still the same data.
- `npyfile`, `manifest`: files and directories of rows.
- `corpus`, `tokenizer`, `pack`, `repack`, `staging`: making them; `command`: `trainer data`.
- `baseline`: the losses a model has to beat.

The tokenizer library is imported with `trainer.data.tokenizer`, `pack` and `command` only:
training does without it.
"""

from trainer.data.baseline import label_counts, uniform_loss, unigram_loss
from trainer.data.dataset import TokenDataset
from trainer.data.errors import BadDataFile, DataChanged, DataError
from trainer.data.fingerprint import DataFingerprint, compare_fingerprints, require_same_data
from trainer.data.order import DataCursor, RowOrder
from trainer.data.validation import ValidationData, open_validation

__all__ = [
    "BadDataFile",
    "DataChanged",
    "DataCursor",
    "DataError",
    "DataFingerprint",
    "RowOrder",
    "TokenDataset",
    "ValidationData",
    "compare_fingerprints",
    "label_counts",
    "open_validation",
    "require_same_data",
    "uniform_loss",
    "unigram_loss",
]
