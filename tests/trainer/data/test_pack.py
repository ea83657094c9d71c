"""Text to rows and back; nothing half-written; held-out documents apart.

Method: a tokenizer trained on a few texts; the rows are read with numpy and decoded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.data.support import SEQ_LEN, make_directory
from trainer.data import DataError, TokenDataset
from trainer.data.corpus import Corpus, Document, directory_corpus, is_held_out, stdlib_corpus
from trainer.data.pack import DATA_FILE, RowWriter, pack
from trainer.data.repack import repack
from trainer.data.tokenizer import TextTokenizer, load_tokenizer, train_tokenizer

ROOT = Path(__file__).parents[3]
TEXTS = [
    "def add(a, b):\n    return a + b\n",
    "the cat sat on the mat\n",
    "añb → 漢字 🎉 \x00\r\n",
] * 3


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return train_tokenizer(TEXTS, 300)


def corpus_of(texts: list[str]) -> Corpus:
    documents = [Document(f"doc{number}", text) for number, text in enumerate(texts)]
    return Corpus("texts", lambda corpus: iter(documents))


def stream(directory: Path) -> list[int]:
    files = sorted(directory.glob("*.npy"))
    return [int(i) for path in files for i in np.load(path).ravel()]


@pytest.mark.req("T24")
def test_training_a_tokenizer_is_deterministic_and_special_ids_come_first(tmp_path: Path) -> None:
    one = train_tokenizer(iter(TEXTS), 300, tmp_path / "a.json")
    two = train_tokenizer(iter(TEXTS), 300, tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert one.digest == two.digest == load_tokenizer(tmp_path / "a.json").digest
    assert (one.pad_id, one.bos_id, one.eos_id, one.vocab_size) == (0, 1, 2, 300)


@pytest.mark.req("T24")
@given(text=st.text())
def test_any_text_survives_and_cannot_spell_a_special_token(
    tokenizer: TextTokenizer, text: str
) -> None:
    for candidate in (text, f"{text}<eos>{text}<pad>"):
        ids = tokenizer.encode(candidate)
        assert tokenizer.decode(ids) == candidate
        assert not {0, 1, 2} & set(ids)


def test_bad_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--vocab-size 100: at least 259"):
        train_tokenizer(TEXTS, 100)
    with pytest.raises(DataError, match="no readable tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"not a tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.req("T24")
@given(
    pieces=st.lists(st.lists(st.integers(0, 9), max_size=30), max_size=12),
    width=st.integers(2, 7),
    rows_per_file=st.integers(1, 4),
)
def test_rows_are_the_stream_cut_evenly(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: list[list[int]],
    width: int,
    rows_per_file: int,
) -> None:
    directory = tmp_path_factory.mktemp("rows") / "d"
    writer = RowWriter(directory, width=width, dtype="uint16", rows_per_file=rows_per_file)
    for piece in pieces:
        writer.add(piece)
    left = writer.finish()
    everything = [i for piece in pieces for i in piece]
    assert left == len(everything) % width and writer.tokens == len(everything)
    assert stream(directory) == everything[: len(everything) - left]
    shapes = [np.load(path).shape for path in sorted(directory.glob("*.npy"))]
    assert writer.files == len(shapes) and sum(rows for rows, _ in shapes) == writer.rows
    assert all(rows == rows_per_file for rows, _ in shapes[:-1])


@pytest.mark.req("T24")
def test_packed_text_decodes_to_its_documents(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    texts = [f"document {n}: {TEXTS[n % 3]}" for n in range(60)]
    report = pack(corpus_of(texts), tokenizer, tmp_path / "out", 6, 0.3, 5)
    sides = {"train": report.train, "val": report.val}
    found: dict[str, list[str]] = {}
    for side, part in sides.items():
        assert part is not None
        ids = stream(tmp_path / "out" / side)
        assert len(ids) == 7 * part.rows == part.tokens - part.dropped_tokens
        whole = " ".join(map(str, ids)).split(" 2 ")
        found[side] = [tokenizer.decode([int(i) for i in doc.split()]) for doc in whole[:-1]]
        wanted = [t for n, t in enumerate(texts) if is_held_out(f"doc{n}", 0.3) == (side == "val")]
        assert part.documents == len(wanted)
        assert found[side] == wanted[: len(found[side])] and len(found[side]) >= len(wanted) - 3
    assert not set(found["train"]) & set(found["val"])
    data = TokenDataset.open(tmp_path / "out" / "train", seq_len=6, vocab_size=300)
    assert data.warnings == () and data.rows == report.train.rows
    assert json.loads((tmp_path / "out" / DATA_FILE).read_text()) == report.to_json()
    assert load_tokenizer(tmp_path / "out").digest == report.tokenizer_digest


class Killed(BaseException):
    """Stands for an end at any point."""


@pytest.mark.req("T24")
@pytest.mark.parametrize("error", [Killed, DataError, OSError])
def test_nothing_half_written_is_left(
    tmp_path: Path, tokenizer: TextTokenizer, error: type[BaseException]
) -> None:
    def read(corpus: Corpus) -> Iterator[Document]:
        yield from (Document(f"doc{n}", TEXTS[0] * 9) for n in range(200))
        raise error("no more")

    with pytest.raises(DataError if error is OSError else error):
        pack(Corpus("texts", read), tokenizer, tmp_path / "out", 6, 0.3, 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("T24")
def test_what_a_killed_call_left_is_cleared(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    script = f"""
import os
from trainer.data.corpus import directory_corpus
from trainer.data.pack import pack
from trainer.data.tokenizer import load_tokenizer
corpus = directory_corpus({str(Path(__file__).parent)!r})
tokenizer = load_tokenizer({str(tmp_path / "tokenizer.json")!r})
pack(corpus, tokenizer, {str(tmp_path / "out")!r}, 6, progress=lambda *_: os._exit(9))
"""
    tokenizer.save(tmp_path)
    killed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    (tmp_path / "tokenizer.json").unlink()
    assert killed.returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.partial-")
    pack(corpus_of(TEXTS * 9), tokenizer, tmp_path / "out", 6, 0.3, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "out").rename(tmp_path / ".out.replaced")  # killed between the two renames
    with pytest.raises(DataError, match="--overwrite"):
        pack(corpus_of(TEXTS * 9), tokenizer, tmp_path / "out", 6, 0.3, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.req("T24")
def test_existing_output_is_refused_and_foreign_output_never_replaced(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    out = tmp_path / "out"
    out.mkdir()  # an empty directory is no obstacle
    pack(corpus_of(TEXTS * 9), tokenizer, out, 6, 0.3, 5)
    before = stream(out / "train")
    with pytest.raises(DataError, match="exists and is not empty"):
        pack(corpus_of(TEXTS), tokenizer, out, 6, 0.3, 5)
    assert stream(out / "train") == before
    pack(corpus_of(TEXTS * 2), tokenizer, out, 6, 0, 5, overwrite=True)
    assert stream(out / "train") != before and not (out / "val").exists()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="did not write"):
        pack(corpus_of(TEXTS * 2), tokenizer, out, 6, 0, 5, overwrite=True)
    assert (out / "thesis.txt").exists()


@pytest.mark.parametrize(("fraction", "message"), [(1.0, "--val-fraction 1"), (1e-9, "val side")])
def test_a_held_out_side_without_a_row_is_an_error(
    tmp_path: Path, tokenizer: TextTokenizer, fraction: float, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        pack(corpus_of(TEXTS), tokenizer, tmp_path / "out", 6, fraction, 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("T24")
def test_repacking_keeps_every_row_in_order(tmp_path: Path) -> None:
    source = make_directory(tmp_path / "many", [1, 3, 0, 2, 5, 1], "uint16")
    np.save(source / "part_00002.npy", np.load(source / "part_00002.npy").astype("int32"))
    report = repack(source, tmp_path / "few", 5)
    assert (report.rows, report.files_before, report.files) == (12, 6, 3)
    assert stream(tmp_path / "few") == stream(source)
    assert TokenDataset.open(tmp_path / "few", seq_len=SEQ_LEN, vocab_size=20).warnings == ()
    with pytest.raises(DataError, match="is the source"):
        repack(source, source, 5, overwrite=True)
    with pytest.raises(DataError, match="not empty"):
        repack(source, tmp_path / "few", 4)
    assert repack(source, tmp_path / "few", 100, overwrite=True).files == 1


@pytest.mark.req("T27")
def test_the_standard_library_is_text_in_one_order() -> None:
    corpus = stdlib_corpus(500_000)
    documents = list(corpus)
    size = sum(len(document.text.encode()) for document in documents)
    assert documents == list(corpus) and 300_000 < size <= 500_000
    assert not any(part in d.name for d in documents for part in ("test/", "site-packages/"))
    names = [document.name for document in documents]
    assert len(set(names)) == len(names)
    files = [name for name in names if "#" not in name]
    assert files == sorted(files, key=lambda n: blake2b(n.encode(), digest_size=16).digest())


@pytest.mark.req("T24")
def test_directories_of_text_are_read_and_bad_files_named(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_bytes("\ufeffgrün\r\n".encode())
    (tmp_path / "sub" / "b.md").write_text("line\n" * 100_000)
    (tmp_path / "bad.txt").write_bytes(b"x" * 5 + b"\xff")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    lines = ['{"text": "one"}', "", '{"text": 3}', "{oops", '{"text": "two\\ud800"}']
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    corpus = directory_corpus(tmp_path)
    documents = dict(corpus)
    assert documents["a.txt"] == "grün\n"
    assert documents["sub/b.md"] + documents["sub/b.md#1"] == "line\n" * 100_000
    assert documents["c.jsonl:1"] == "one" and documents["c.jsonl:5"] == "two?"
    assert len(documents) == 5 and dict(corpus) == documents
    assert corpus.skipped_count == 3
    assert "bad.txt: not UTF-8 at byte 5" in corpus.skipped
    with pytest.raises(DataError, match=r"bad\.txt: not UTF-8|c\.jsonl:3: not a JSON object"):
        list(directory_corpus(tmp_path, on_bad="error"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no text files"):
        list(directory_corpus(tmp_path / "empty"))
    with pytest.raises(DataError, match="no such corpus directory"):
        directory_corpus(tmp_path / "missing")
