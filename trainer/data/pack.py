"""Text into rows of tokens.

Contract: each document's ids and one end-of-text id follow each other, in corpus order, as one
stream per side; rows are that stream cut every seq_len + 1 tokens, and the last tokens that
fill no row are left out and counted. Held-out documents are chosen by their names, so the sides
never share one. Nothing appears under `out_dir` before all of it is written.

    out_dir/ data.json  tokenizer.json  train/ 000000.npy .. manifest.json  val/ (the same)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.corpus import Corpus, Document, is_held_out
from trainer.data.errors import DataError
from trainer.data.manifest import Progress, no_progress, write_manifest
from trainer.data.npyfile import DTYPES, Tokens, dtype_for, write_atomically, write_npy
from trainer.data.staging import staged_directory
from trainer.data.tokenizer import TOKENIZER_FILE, TextTokenizer

ROWS_PER_FILE = 16_384
VAL_FRACTION = 0.05
DATA_FILE = "data.json"
_SIDES = ("train", "val")
_BATCH_DOCUMENTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SideReport:
    """What one side became."""

    documents: int
    tokens: int
    rows: int
    files: int
    dropped_tokens: int
    """Those at the end that fill no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """The content of `data.json`."""

    format: int
    corpus: str
    seq_len: int
    vocab_size: int
    eos_id: int
    tokenizer_digest: str
    val_fraction: float
    skipped: int
    """Files or lines of the corpus that could not be used."""
    train: SideReport
    val: SideReport | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class RowWriter:
    """Collects tokens into files of at most `rows_per_file` rows; one file's rows in memory."""

    def __init__(self, directory: Path, *, width: int, dtype: str, rows_per_file: int) -> None:
        if rows_per_file < 1 or width < 2:
            raise DataError(f"rows_per_file {rows_per_file} and seq_len {width - 1}: at least 1")
        directory.mkdir()
        self._directory = directory
        self._width = width
        self._tokens = np.empty(rows_per_file * width, DTYPES[dtype])
        self._filled = 0
        self.tokens = 0
        self.rows = 0
        self.files = 0

    def add(self, tokens: Sequence[int] | Tokens) -> None:
        """Appends to the stream; ids are the caller's to check."""
        array = np.asarray(tokens)
        self.tokens += len(array)
        while len(array):
            part = array[: len(self._tokens) - self._filled]
            self._tokens[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            array = array[len(part) :]
            if self._filled == len(self._tokens):
                self._write()

    def finish(self) -> int:
        """Writes what fills whole rows; the number of tokens left over."""
        if self._filled >= self._width:
            self._write()
        return self._filled

    def _write(self) -> None:
        rows = self._filled // self._width
        used = rows * self._width
        path = self._directory / f"{self.files:06d}.npy"
        write_npy(path, self._tokens[:used].reshape(rows, self._width))
        self._filled -= used  # more than nothing only at the end, where it is left out
        self.rows += rows
        self.files += 1


def pack(
    corpus: Corpus, tokenizer: TextTokenizer, out_dir: str | os.PathLike[str], seq_len: int,
    val_fraction: float = VAL_FRACTION, rows_per_file: int = ROWS_PER_FILE, *,
    overwrite: bool = False, progress: Progress = no_progress,
) -> PackReport:  # fmt: skip
    """Packs the corpus; `val_fraction` 0 makes no held-out side."""
    if not 0 <= val_fraction < 1:
        raise DataError(f"--val-fraction {val_fraction}: expected 0 up to, not including, 1")
    with staged_directory(Path(out_dir), overwrite=overwrite, owned=is_packed) as partial:
        dtype = dtype_for(tokenizer.vocab_size)
        sides = {
            side: RowWriter(
                partial / side, width=seq_len + 1, dtype=dtype, rows_per_file=rows_per_file
            )
            for side in (_SIDES if val_fraction else _SIDES[:1])
        }
        documents = _fill(corpus, tokenizer, sides, val_fraction, progress)
        reports = {}
        for side, writer in sides.items():
            reports[side] = _close_side(partial / side, side, writer, documents[side], progress)
        report = PackReport(
            format=1, corpus=corpus.label, seq_len=seq_len, vocab_size=tokenizer.vocab_size,
            eos_id=tokenizer.eos_id, tokenizer_digest=tokenizer.digest, val_fraction=val_fraction,
            skipped=corpus.skipped_count, train=reports["train"], val=reports.get("val"),
        )  # fmt: skip
        tokenizer.save(partial / TOKENIZER_FILE)
        content = (json.dumps(report.to_json(), indent=2) + "\n").encode()
        write_atomically(partial / DATA_FILE, lambda file: file.write(content))
    return report


def _fill(
    corpus: Corpus, tokenizer: TextTokenizer, sides: dict[str, RowWriter], val_fraction: float,
    progress: Progress,
) -> dict[str, int]:  # fmt: skip
    """Number of documents per side."""
    documents = dict.fromkeys(sides, 0)
    source = iter(corpus)
    while batch := list(islice(source, _BATCH_DOCUMENTS)):
        ids = tokenizer.encode_batch([document.text for document in batch])
        for document, tokens in zip(batch, ids, strict=True):
            side = "val" if is_held_out(document.name, val_fraction) else "train"
            tokens.append(tokenizer.eos_id)
            sides[side].add(tokens)
            documents[side] += 1
        progress("packing", sum(documents.values()), None)
    return documents


def _close_side(
    directory: Path, side: str, writer: RowWriter, documents: int, progress: Progress
) -> SideReport:
    dropped = writer.finish()
    if not writer.rows:
        raise DataError(
            f"the {side} side got {documents} documents and {writer.tokens} tokens, not one row: "
            "give more text, a shorter --seq-len or another --val-fraction"
        )
    write_manifest(directory, progress=progress)
    return SideReport(
        documents=documents, tokens=writer.tokens, rows=writer.rows, files=writer.files,
        dropped_tokens=dropped,
    )  # fmt: skip


def is_packed(directory: Path) -> bool:
    """Whether the directory is what `pack` makes and holds nothing else."""
    names = {path.name for path in directory.iterdir()}
    return DATA_FILE in names and names <= {DATA_FILE, TOKENIZER_FILE, *_SIDES}


def training_documents(corpus: Corpus, val_fraction: float) -> Iterator[Document]:
    """The documents a tokenizer may see: those that `pack` does not hold out."""
    return (document for document in corpus if not is_held_out(document.name, val_fraction))
