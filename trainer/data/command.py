"""`trainer data`: text to token rows, and looking at them.

Exit codes, as of the store's commands: 0 done, 4 damaged or changed data, 8 could not run, 16
usage. Results go to standard output, as JSON with --json; warnings and progress go to standard
error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import click

from trainer.data.console import progress_bars, show_result, warn
from trainer.data.corpus import Corpus, OnBad, open_corpus
from trainer.data.errors import BadDataFile, DataChanged, DataError
from trainer.data.manifest import Progress
from trainer.data.overview import baseline, overview
from trainer.data.pack import (
    ROWS_PER_FILE,
    VAL_FRACTION,
    is_packed,
    pack,
    training_documents,
)
from trainer.data.repack import repack
from trainer.data.staging import check_target
from trainer.data.tokenizer import VOCAB_SIZE, TextTokenizer, load_tokenizer, train_tokenizer

P = ParamSpec("P")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Damaged(click.ClickException):
    exit_code = 4


class _Failed(click.ClickException):
    exit_code = 8


class _Usage(click.UsageError):
    exit_code = 16


class _Group(click.Group):
    """Gives usage errors of its commands their exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _Usage(error.format_message(), ctx=error.ctx) from error


def _reported(command: Callable[P, None]) -> Callable[P, None]:
    """Turns the data side's errors into one line and an exit code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (BadDataFile, DataChanged) as error:
            raise _Damaged(str(error)) from error
        except DataError as error:
            raise _Failed(str(error)) from error

    return run


def _options(*options: Decorator) -> Decorator:
    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_overwrite = click.option("--overwrite", is_flag=True, help="Replace what an earlier call wrote.")
_rows_per_file = click.option(
    "--rows-per-file", type=click.IntRange(1), default=ROWS_PER_FILE, show_default=True,
    help="Rows of one .npy file, and of the buffer that collects them.",
)  # fmt: skip
_vocab_size = click.option("--vocab-size", type=int, default=VOCAB_SIZE, show_default=True)
_corpus = _options(
    click.option("--corpus", default="stdlib", show_default=True, metavar="stdlib|DIR",
                 help="Python's own standard library, or a directory of text and .jsonl files."),
    click.option("--corpus-bytes", type=click.IntRange(1), help="Use at most this much text."),
    click.option("--on-undecodable", type=click.Choice(["skip", "error"]), default="skip",
                 show_default=True, help="What to do with files that are not UTF-8 text."),
)  # fmt: skip
_packing = _options(
    click.option("--out", "out_dir", required=True, type=click.Path(path_type=Path)),
    click.option("--seq-len", type=click.IntRange(1), default=128, show_default=True,
                 help="Tokens a model sees at once; rows hold one more."),
    click.option("--val-fraction", type=float, default=VAL_FRACTION, show_default=True,
                 help="Share of the documents held out, chosen by their names."),
    _rows_per_file, _overwrite, _json,
)  # fmt: skip


@click.group(name="data", cls=_Group, short_help="Tokenize text and look after token data.")
def data() -> None:
    """Tokenize text and look after token data.

    \b
    Example: trainer data prepare --corpus stdlib --out data
    Exit codes: 0 done, 4 damaged or changed data, 8 could not run, 16 usage.
    """


@data.command()
@_corpus
@_vocab_size
@_packing
@_reported
def prepare(
    corpus: str, corpus_bytes: int | None, on_undecodable: OnBad, vocab_size: int, out_dir: Path,
    seq_len: int, val_fraction: float, rows_per_file: int, overwrite: bool, as_json: bool,
) -> None:  # fmt: skip
    """Train a tokenizer and pack the text: all at once.

    \b
    Example: trainer data prepare --corpus stdlib --out data --vocab-size 8000 --seq-len 128
    """
    check_target(out_dir, overwrite, is_packed)
    source = open_corpus(corpus, on_bad=on_undecodable, bytes_max=corpus_bytes)
    with progress_bars() as progress:
        tokenizer = _train(source, vocab_size, val_fraction, progress)
        report = pack(
            source, tokenizer, out_dir, seq_len, val_fraction, rows_per_file,
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
    warn(_corpus_warnings(source) + _size_warnings(tokenizer, vocab_size))
    show_result({"out": str(out_dir), **report.to_json()}, as_json)


@data.command("tokenizer")
@_corpus
@_vocab_size
@click.option("--val-fraction", type=float, default=VAL_FRACTION, show_default=True,
              help="Documents that `pack` will hold out are not trained on.")  # fmt: skip
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="tokenizer.json to write."
)
@_json
@_reported
def tokenizer_command(
    corpus: str, corpus_bytes: int | None, on_undecodable: OnBad, vocab_size: int,
    val_fraction: float, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Train a byte-level BPE tokenizer.

    \b
    Example: trainer data tokenizer --corpus texts --vocab-size 8000 --out tokenizer.json
    """
    source = open_corpus(corpus, on_bad=on_undecodable, bytes_max=corpus_bytes)
    with progress_bars() as progress:
        tokenizer = _train(source, vocab_size, val_fraction, progress)
    tokenizer.save(out)
    warn(_corpus_warnings(source) + _size_warnings(tokenizer, vocab_size))
    result = {"path": str(out), "vocab_size": tokenizer.vocab_size, "digest": tokenizer.digest}
    show_result(result, as_json)


@data.command("pack")
@_corpus
@click.option("--tokenizer", required=True, type=click.Path(path_type=Path),
              help="tokenizer.json, or the directory that holds it.")  # fmt: skip
@_packing
@_reported
def pack_command(
    corpus: str, corpus_bytes: int | None, on_undecodable: OnBad, tokenizer: Path, out_dir: Path,
    seq_len: int, val_fraction: float, rows_per_file: int, overwrite: bool, as_json: bool,
) -> None:  # fmt: skip
    """Pack text into train/ and val/ rows with a tokenizer that exists.

    \b
    Example: trainer data pack --corpus texts --tokenizer tokenizer.json --out data
    """
    source = open_corpus(corpus, on_bad=on_undecodable, bytes_max=corpus_bytes)
    with progress_bars() as progress:
        report = pack(
            source, load_tokenizer(tokenizer), out_dir, seq_len, val_fraction, rows_per_file,
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
    warn(_corpus_warnings(source))
    show_result({"out": str(out_dir), **report.to_json()}, as_json)


@data.command("repack")
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
@_rows_per_file
@_overwrite
@_json
@_reported
def repack_command(
    src: Path, dst: Path, rows_per_file: int, overwrite: bool, as_json: bool
) -> None:
    """Copy many small files of rows into few large ones.

    \b
    Example: trainer data repack small/train large/train --rows-per-file 65536
    """
    with progress_bars() as progress:
        report = repack(src, dst, rows_per_file, overwrite=overwrite, progress=progress)
    result = {"rows": report.rows, "files_before": report.files_before, "files": report.files}
    show_result(result, as_json)


@data.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--verify", is_flag=True, help="Read every byte, whatever is recorded.")
@click.option("--write-manifest", "write", is_flag=True,
              help="Read every byte and record it in manifest.json.")  # fmt: skip
@click.option(
    "--baseline",
    "with_baseline",
    is_flag=True,
    help="Also ln V and the unigram model's held-out loss.",
)
@_json
@_reported
def info(directory: Path, verify: bool, write: bool, with_baseline: bool, as_json: bool) -> None:
    """Show and check a directory of rows, or one that `pack` made.

    \b
    Example: trainer data info data --verify
    """
    with progress_bars() as progress:
        result, warnings = overview(directory, verify=verify, write=write, progress=progress)
    warn(warnings)
    if with_baseline:
        result["baseline"] = baseline(directory)
    show_result(result, as_json)


def _train(
    corpus: Corpus, vocab_size: int, val_fraction: float, progress: Progress
) -> TextTokenizer:
    def texts() -> Any:
        for done, document in enumerate(training_documents(corpus, val_fraction)):
            progress("training the tokenizer", done, None)
            yield document.text

    return train_tokenizer(texts(), vocab_size)


def _corpus_warnings(corpus: Corpus) -> list[str]:
    if not corpus.skipped_count:
        return []
    listed = "; ".join(corpus.skipped[:5])
    return [f"{corpus.skipped_count} files or lines were left out, the first: {listed}"]


def _size_warnings(tokenizer: TextTokenizer, asked: int) -> list[str]:
    if tokenizer.vocab_size == asked:
        return []
    return [f"the text gave {tokenizer.vocab_size} tokens, not {asked}: use that as the vocabulary"]
