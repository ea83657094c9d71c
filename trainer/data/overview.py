"""What `trainer data info` says about a directory of rows, or about one that `pack` made.

Contract: `overview` reads and checks; only `write=True` changes anything, and then only
manifests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.data.baseline import uniform_loss, unigram_loss
from trainer.data.dataset import TokenDataset
from trainer.data.errors import BadDataFile, DataError
from trainer.data.manifest import Progress, Scan, no_progress, survey, write_manifest
from trainer.data.pack import DATA_FILE


def overview(
    directory: Path, *, verify: bool, write: bool, progress: Progress = no_progress
) -> tuple[dict[str, Any], list[str]]:
    """What is there, by side, and warnings; `verify` reads every byte whatever is recorded."""
    packed = read_packed(directory)
    sides = [directory] if packed is None else [d for d in _sides(directory) if d.is_dir()]
    result: dict[str, Any] = {} if packed is None else {"data": packed}
    warnings: list[str] = []
    for side in sides:
        if write:
            write_manifest(side, progress=progress)
        scan: Scan = "full" if verify else "auto"
        fingerprint, found = survey(side, scan=scan, progress=progress)
        warnings += found
        value = fingerprint.summary() | {"bytes": fingerprint.size, "max_id": fingerprint.max_id}
        value.pop("entries", None)
        result[side.name or str(side)] = value
    return result, warnings


def baseline(directory: Path) -> dict[str, float]:
    """ln V and the unigram model's held-out loss of what `pack` made."""
    packed = read_packed(directory)
    if packed is None or packed["val"] is None:
        raise DataError(
            f"{directory}: a baseline needs a directory made by `pack` with a held-out side"
        )
    vocab_size = packed["vocab_size"]
    train, val = (
        TokenDataset.open(side, seq_len=packed["seq_len"], vocab_size=vocab_size, shuffle=False)
        for side in _sides(directory)
    )
    with train, val:
        loss = unigram_loss(train, val, vocab_size)
    return {"ln_vocab": uniform_loss(vocab_size), "unigram": loss}


def read_packed(directory: Path) -> Any:
    """The content of `data.json`, None without one."""
    path = directory / DATA_FILE
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadDataFile(f"{path}: cannot be read: {error}") from error


def _sides(directory: Path) -> tuple[Path, Path]:
    return directory / "train", directory / "val"
