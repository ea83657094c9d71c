"""Where text comes from: Python's own standard library, or any directory.

Contract: a corpus yields the same named documents in the same order each time it is read, the
order drawn from the names, so that a part of it, by size, is a fair sample. What cannot be used
is left out and listed in `skipped`, or an error where the caller says so. Files of more than
256 KiB become several documents, cut after a line.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import platform
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from trainer.data.errors import DataError

STDLIB_BYTES = 16 << 20
PIECE_CHARACTERS = 256 << 10
TEXT_SUFFIXES = frozenset(
    (
        ".txt", ".text", ".md", ".markdown", ".rst", ".py", ".pyi", ".c", ".h", ".cc", ".cpp",
        ".hpp", ".rs", ".go", ".java", ".js", ".ts", ".sh", ".toml", ".cfg", ".ini", ".yaml",
        ".yml", ".html", ".css", ".sql", ".tex", ".org", ".adoc", ".jsonl"
    )
)  # fmt: skip
# Tests repeat themselves, code tables are numbers, build data carries paths of the machine.
_STDLIB_LEFT_OUT = frozenset(
    (
        "test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "_bundled",
        "__pycache__"
    )
)  # fmt: skip
_SKIPPED_LISTED_MAX = 100

OnBad = Literal["skip", "error"]


class Document(NamedTuple):
    """A text and the name it is known by."""

    name: str
    text: str


@dataclass
class Corpus:
    """Documents that can be read again and again."""

    label: str
    _read: Callable[[Corpus], Iterator[Document]]
    on_bad: OnBad = "skip"
    bytes_max: int | None = None
    """Stop before the document that would pass this many bytes of UTF-8."""
    skipped: list[str] = field(default_factory=list)
    """The first hundred things left out by the last reading, with reasons."""
    skipped_count: int = 0

    def __iter__(self) -> Iterator[Document]:
        self.skipped, self.skipped_count = [], 0
        left = self.bytes_max
        for document in self._read(self):
            if left is not None:
                left -= len(document.text.encode("utf-8", "surrogatepass"))
                if left < 0:
                    return
            yield document

    def skip(self, name: str, reason: str) -> None:
        """Leaves something out, or refuses the corpus."""
        if self.on_bad == "error":
            raise DataError(f"{name}: {reason}; leave it out, or use --on-undecodable skip")
        self.skipped_count += 1
        if len(self.skipped) < _SKIPPED_LISTED_MAX:
            self.skipped.append(f"{name}: {reason}")


def stdlib_corpus(bytes_max: int = STDLIB_BYTES) -> Corpus:
    """Sources and documentation strings of the running Python's standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])

    def wanted(path: Path) -> bool:
        return path.suffix == ".py" and not path.name.startswith("_sysconfigdata")

    def read(corpus: Corpus) -> Iterator[Document]:
        return _read_files(corpus, root, _walk(root, wanted, _STDLIB_LEFT_OUT, corpus))

    label = f"python-{platform.python_version()}-stdlib"
    return Corpus(label, read, bytes_max=bytes_max)


def directory_corpus(
    directory: str | os.PathLike[str], *, on_bad: OnBad = "skip", bytes_max: int | None = None
) -> Corpus:
    """Text files below the directory, and the `text` of each line of its `.jsonl` files."""
    root = Path(directory)
    if not root.is_dir():
        raise DataError(f"{root}: no such corpus directory")

    def wanted(path: Path) -> bool:
        return path.suffix.lower() in TEXT_SUFFIXES

    def read(corpus: Corpus) -> Iterator[Document]:
        return _read_files(corpus, root, _walk(root, wanted, frozenset(), corpus))

    return Corpus(root.resolve().name, read, on_bad=on_bad, bytes_max=bytes_max)


def open_corpus(source: str, *, on_bad: OnBad = "skip", bytes_max: int | None = None) -> Corpus:
    """The corpus that `--corpus` names: `stdlib` or a directory."""
    if source == "stdlib":
        return stdlib_corpus(STDLIB_BYTES if bytes_max is None else bytes_max)
    return directory_corpus(source, on_bad=on_bad, bytes_max=bytes_max)


def _walk(
    root: Path, wanted: Callable[[Path], bool], left_out: frozenset[str], corpus: Corpus
) -> list[Path]:
    """Files in the order of their names' digests."""

    def report(error: OSError) -> None:
        corpus.skip(str(error.filename), f"cannot be read: {error.strerror}")

    found = []
    for parent, directories, files in os.walk(root, onerror=report):
        directories[:] = [d for d in directories if d not in left_out and not d.startswith(".")]
        paths = (Path(parent, name) for name in files if not name.startswith("."))
        found += [path for path in paths if wanted(path) and path.is_file()]
    if not found:
        raise DataError(f"{root}: no text files found; give another directory with --corpus")
    return sorted(found, key=lambda path: _name_digest(_name(path, root)))


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _name_digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def is_held_out(name: str, fraction: float) -> bool:
    """Whether a document belongs to the held-out side: a pure function of its name."""
    key = hashlib.blake2b(
        name.encode("utf-8", "surrogateescape"), digest_size=8, person=b"held-out"
    ).digest()
    return int.from_bytes(key, "little") < fraction * (1 << 64)


def _read_files(corpus: Corpus, root: Path, paths: list[Path]) -> Iterator[Document]:
    for path in paths:
        name = _name(path, root)
        try:
            reason = _why_undecodable(path)
            if reason:
                corpus.skip(name, reason)
            elif path.suffix.lower() == ".jsonl":
                yield from _read_jsonl(corpus, path, name)
            else:
                yield from _read_pieces(path, name)
        except OSError as error:
            corpus.skip(name, f"cannot be read: {error.strerror}")


def _why_undecodable(path: Path) -> str | None:
    """Decided before the first document of a file is handed out."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    with open(path, "rb") as file:
        while True:
            chunk = file.read(1 << 20)
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                pending = len(error.object) - len(chunk)
                return f"not UTF-8 at byte {offset - pending + error.start}"
            if not chunk:
                return None
            offset += len(chunk)


def _read_pieces(path: Path, name: str) -> Iterator[Document]:
    with open(path, encoding="utf-8-sig") as file:
        number = 0
        while text := file.read(PIECE_CHARACTERS):
            if len(text) == PIECE_CHARACTERS and not text.endswith("\n"):
                text += file.readline(PIECE_CHARACTERS)
            if text.strip():
                yield Document(f"{name}#{number}" if number else name, text)
            number += 1


def _read_jsonl(corpus: Corpus, path: Path, name: str) -> Iterator[Document]:
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError):
                text = None
            if not isinstance(text, str):
                corpus.skip(f"{name}:{number}", 'not a JSON object with a "text" string')
            elif text.strip():
                # A lone surrogate is legal JSON and no text.
                yield Document(f"{name}:{number}", text.encode("utf-8", "replace").decode())
