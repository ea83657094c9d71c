"""What a reader does with a store of another version of the format (FORMAT.md section 9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shardstore
from shardstore import Store
from shardstore.catalog import find_mark
from shardstore.errors import CorruptionError, VersionError
from shardstore.format.digests import digest
from shardstore.format.names import FORMAT_VERSION
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.posix import PosixFileSystem
from shardstore.fsck import fsck
from shardstore.salvage import look
from shardstore.wal import writer
from tests.format.independent_log import Damaged, Segment, canonical
from tests.format.independent_reader import IndependentReader
from tests.support.stores import ROOT, commit, open_store, tree

LATER = FORMAT_VERSION + 1


def with_store_file(lines: str, *, right: bool = True) -> MemoryFileSystem:
    """A store of one commit, whose STORE says this."""
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
    body = lines.encode()
    text = body + f"digest {digest(body if right else b'')}\n".encode()
    file = fs.open(f"{ROOT}/STORE", "replace")
    file.pwrite(0, text)
    file.datasync()
    file.close()
    return fs


@pytest.mark.req("S28")
@pytest.mark.parametrize(
    ("version", "words"),
    [(0, r"version 0, .*'shardstore export'.*import"), (LATER, "install a newer shardstore")],
)
def test_another_version_is_refused_and_nothing_is_touched(version: int, words: str) -> None:
    fs = with_store_file(f"shardstore\nversion {version}\nwhatever there is then\n")
    before = tree(fs)
    calls: list[Any] = [
        *(lambda mode=mode: open_store(fs, mode) for mode in ("r", "r+", "a")),
        lambda: fsck(fs, ROOT),
        lambda: look(fs, ROOT),
    ]
    for call in calls:
        with pytest.raises(VersionError, match=words):
            call()
    after = tree(fs)
    assert {path for path in before if before[path] != after[path]} <= {f"{ROOT}/LOCK"}
    assert after.keys() == before.keys()


@pytest.mark.req("S28")
@pytest.mark.parametrize("version", [0, LATER])
def test_another_version_with_a_wrong_digest_is_damage(version: int) -> None:
    fs = with_store_file(f"shardstore\nversion {version}\nuuid {'0' * 32}\n", right=False)
    with pytest.raises(CorruptionError, match="damaged STORE"):
        open_store(fs, "r")
    assert not fsck(fs, ROOT).clean


@pytest.mark.req("S28")
def test_a_segment_of_another_version_than_store_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FORMAT_VERSION", LATER)
    fs, root = PosixFileSystem(), str(tmp_path / "run")
    with pytest.raises(CorruptionError, match=f"version of the format.*expected 1, found {LATER}"):
        Store.create(root)
    found = [finding for finding in fsck(fs, root).findings if finding.is_damage]
    assert found and "version" in found[0].line()
    with pytest.raises(Damaged, match="another version"):
        IndependentReader(Path(root))


@pytest.mark.req("S28")
def test_a_mark_of_another_version_is_passed_over(tmp_path: Path) -> None:
    fs, root = PosixFileSystem(), tmp_path / "run"
    with Store.create(root) as store:
        commit(store, 1)
    (path,) = (root / "catalog").glob("*.mark")
    said = json.loads(path.read_bytes().split(b"\n")[0])
    for version in (FORMAT_VERSION, LATER):
        body = canonical({**said, "version": version, "seq": 999}) + b"\n"
        path.write_bytes(body + digest(body).encode() + b"\n")
        if version == FORMAT_VERSION:
            with pytest.raises(CorruptionError, match="lost its end"):
                Store.open(root)
    with Store.open(root) as store:
        assert find_mark(fs, str(root), store.uuid) == (None, [path.name])


@pytest.mark.req("S28")
def test_one_number_stands_in_every_place(tmp_path: Path) -> None:
    page = Path(shardstore.__file__).with_name("FORMAT.md").read_text(encoding="utf-8")
    assert page.startswith(f"# The format, version {FORMAT_VERSION}\n")
    root = tmp_path / "run"
    with Store.create(root) as store:
        commit(store, 1)
    assert f"\nversion {FORMAT_VERSION}\n" in (root / "STORE").read_text()
    for path in (root / "wal").iterdir():
        assert Segment(path).header.record["version"] == FORMAT_VERSION
    (path,) = (root / "catalog").glob("*.mark")
    assert json.loads(path.read_bytes().split(b"\n")[0])["version"] == FORMAT_VERSION
    for path in (root / "objects").iterdir():
        assert f'"format":"shardstore.raw.{FORMAT_VERSION}"'.encode() in path.read_bytes()
