"""Held-out data without silent fall-back, and the losses a model has to beat."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.data.support import SEQ_LEN, VOCAB, make_directory
from trainer.data import (
    DataError,
    ValidationData,
    open_validation,
    uniform_loss,
    unigram_loss,
)


def opened(val: Path | None, train: Path, allow: bool = False) -> ValidationData:
    return open_validation(val, train, allow_fallback=allow, seq_len=SEQ_LEN, vocab_size=VOCAB)


@pytest.mark.req("T15")
def test_training_rows_never_stand_in_unasked(tmp_path: Path) -> None:
    train = make_directory(tmp_path / "train", [5])
    link = tmp_path / "link"
    link.symlink_to(train)
    for val in (None, train, link, tmp_path / "train" / ".." / "train"):
        with pytest.raises(DataError, match="--allow-train-validation-fallback"):
            opened(val, train)
        found = opened(val, train, allow=True)
        assert found.is_fallback and "training rows" in found.warnings[-1]
    with pytest.raises(DataError, match="no readable data directory"):
        opened(tmp_path / "missing", train, allow=True)


@pytest.mark.req("T15")
def test_all_rows_come_once_in_order_and_the_last_batch_is_ragged(tmp_path: Path) -> None:
    train = make_directory(tmp_path / "train", [5])
    found = opened(make_directory(tmp_path / "val", [2, 5]), train)
    batches = list(found.batches(3))
    assert not found.is_fallback and found.warnings == found.dataset.warnings
    assert [len(inputs) for inputs, _ in batches] == [3, 3, 1]
    assert np.concatenate([inputs[:, 0] for inputs, _ in batches]).tolist() == list(range(7))
    assert [len(inputs) for inputs, _ in found.batches(3, 2)] == [3, 3]
    assert found.batch_count(3, 99) == 3


@pytest.mark.req("T15")
def test_zero_batches_are_an_error(tmp_path: Path) -> None:
    train = make_directory(tmp_path / "train", [5])
    with pytest.raises(DataError, match="hold no row"):
        opened(make_directory(tmp_path / "val", [0]), train)
    found = opened(make_directory(tmp_path / "other", [2]), train)
    with pytest.raises(DataError, match="--max-validation-batches 0"):
        list(found.batches(3, 0))


@pytest.mark.req("T27")
def test_the_unigram_loss_is_the_formula_on_labels() -> None:
    train = [np.array([[9, 0, 0, 1]]), np.array([[9, 1, 1, 2]])]
    held_out = [np.array([[9, 1, 3, 3]])]
    # Labels 0 0 1 1 1 2, plus one each over ten ids: p(1) = 4/16, p(3) = 1/16.
    expected = -(math.log(4 / 16) + 2 * math.log(1 / 16)) / 3
    assert unigram_loss(train, held_out, 10) == pytest.approx(expected, rel=1e-12)
    assert uniform_loss(10) == math.log(10)
    assert unigram_loss([np.zeros((0, 3), int)], held_out, 10) == pytest.approx(math.log(10))
    with pytest.raises(DataError, match="token ids 1 to 3: expected 0 to 2"):
        unigram_loss(held_out, held_out, 3)
    with pytest.raises(DataError, match="no held-out rows"):
        unigram_loss(train, [], 10)


@pytest.mark.req("T27")
def test_the_unigram_loss_reads_data_sets_whole(tmp_path: Path) -> None:
    train = opened(make_directory(tmp_path / "a", [2000, 3]), tmp_path).dataset
    val = opened(make_directory(tmp_path / "b", [4, 1]), tmp_path).dataset
    arrays = [np.load(tmp_path / "a" / f"part_0000{n}.npy") for n in (0, 1)]
    held = [np.load(tmp_path / "b" / f"part_0000{n}.npy") for n in (0, 1)]
    assert unigram_loss(train, val, VOCAB) == unigram_loss(arrays, held, VOCAB)
    assert sum(len(chunk) for chunk in val.chunks(rows_max=5, chunk_rows=3)) == 5
    assert sum(len(chunk) for chunk in val.chunks(rows_max=3)) == 3
