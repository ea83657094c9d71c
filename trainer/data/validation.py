"""Held-out rows: the directory a model is judged on.

Contract: validation never uses training data in silence. Without a directory, or with the
training directory itself, it is refused unless the caller allows the fall-back, and then a
warning says so. Rows come in directory order, the last batch is as short as it must be, and a
validation without a batch is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.data.dataset import Batch, TokenDataset
from trainer.data.errors import DataError
from trainer.data.manifest import Progress, no_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationData:
    """Opened held-out rows."""

    dataset: TokenDataset
    is_fallback: bool
    """True where the rows are training rows."""
    warnings: tuple[str, ...]

    def batch_count(self, batch_rows: int, batches_max: int | None = None) -> int:
        """How many batches `batches` gives; refuses zero."""
        if batch_rows < 1:
            raise DataError(f"validation batches of {batch_rows} rows: expected at least 1")
        if batches_max is not None and batches_max < 1:
            raise DataError(
                f"--max-validation-batches {batches_max} leaves no batch to validate on: "
                "give at least 1, or leave it out for all"
            )
        available = -(-self.dataset.rows // batch_rows)
        return available if batches_max is None else min(available, batches_max)

    def batches(self, batch_rows: int, batches_max: int | None = None) -> Iterator[Batch]:
        """Inputs and labels; the last batch may be shorter, so weigh by tokens."""
        for number in range(self.batch_count(batch_rows, batches_max)):
            start = number * batch_rows
            yield self.dataset.batch(start, min(batch_rows, self.dataset.rows - start))


def open_validation(
    val_dir: str | os.PathLike[str] | None, train_dir: str | os.PathLike[str], *,
    allow_fallback: bool, seq_len: int, vocab_size: int, progress: Progress = no_progress,
) -> ValidationData:  # fmt: skip
    """Opens the held-out directory, or the training directory where that is allowed."""
    train = Path(train_dir)
    chosen = train if val_dir is None else Path(val_dir)
    is_fallback = val_dir is None or _same(chosen, train)
    if is_fallback and not allow_fallback:
        what = "no --val-data-dir is given" if val_dir is None else (
            f"--val-data-dir {chosen} is the training directory"
        )  # fmt: skip
        raise DataError(
            f"{what}: a loss on training rows says nothing about unseen text; give a held-out "
            "directory, or allow it with --allow-train-validation-fallback"
        )
    dataset = TokenDataset.open(
        chosen, seq_len=seq_len, vocab_size=vocab_size, shuffle=False, progress=progress
    )
    warnings = dataset.warnings
    if is_fallback:
        warnings += (
            f"{chosen}: validation uses training rows, as allowed; its loss is no held-out loss",
        )
    return ValidationData(dataset=dataset, is_fallback=is_fallback, warnings=warnings)


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
