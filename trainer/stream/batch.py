"""One micro-batch: token rows split into what the model reads and what it has to say next."""

import dataclasses

import torch
from torch import Tensor

from trainer.errors import DataError


@dataclasses.dataclass(frozen=True, slots=True)
class MicroBatch:
    """Token ids [rows, positions] as int64, on the host; `labels` is `inputs` one position on."""

    inputs: Tensor
    labels: Tensor

    @property
    def tokens(self) -> int:
        return self.labels.numel()

    @classmethod
    def from_rows(cls, rows: Tensor, *, vocab_size: int) -> "MicroBatch":
        """Split rows of seq_len + 1 token ids, of any integer type and all in the vocabulary."""
        if rows.dim() != 2 or rows.shape[0] == 0 or rows.shape[1] < 2:
            raise DataError(f"token rows must be [rows, seq_len + 1], found {list(rows.shape)}")
        ids = rows.to(torch.int64)
        low, high = (int(value) for value in torch.aminmax(ids))
        if low < 0 or high >= vocab_size:
            bad = ((ids < 0) | (ids >= vocab_size)).nonzero()[0].tolist()
            raise DataError(
                f"token id {int(ids[bad[0], bad[1]])} in row {bad[0]} of the batch, column "
                f"{bad[1]}: the model's vocabulary is 0..{vocab_size - 1}; use data of its own "
                "tokenizer or a larger vocab_size"
            )
        return cls(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
