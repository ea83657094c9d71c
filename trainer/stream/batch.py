"""One micro-batch: token rows split into what the model reads and what it has to say next."""

import dataclasses

from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class MicroBatch:
    """Token ids [rows, positions] as int64, on the host; `labels` is `inputs` one position on."""

    inputs: Tensor
    labels: Tensor

    @property
    def tokens(self) -> int:
        return self.labels.numel()
