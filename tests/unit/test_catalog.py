"""The catalog: what it says equals what the log says, and no damage of it misleads or kills.

Goal: history is the same with the catalog, without it, and with any byte of it flipped, cut or
replaced by an older one; a log that lost its end is refused loudly; nothing that fails here fails a
commit. Method: real directories and small limits; LMDB's own files are damaged behind its back.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardstore import upkeep
from shardstore.catalog import CatalogError, find_mark, index, open_index
from shardstore.context import Settings
from shardstore.errors import CorruptionError
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fs.posix import PosixFileSystem
from shardstore.fsck import fsck
from shardstore.history import read_history, read_step
from shardstore.store import Store
from shardstore.wal import compress, reader
from tests.support.stores import commit, expected, open_store, values

FS = PosixFileSystem()
SMALL = Settings(prewrite_bytes=16384, commits_per_segment=4)
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is due at every roll."""
    monkeypatch.setattr(upkeep, "INDEX_RECORDS_MIN", 1)
    monkeypatch.setattr(compress.compress_segments, "__kwdefaults__", {"bytes_min": 0})
    monkeypatch.setattr(compress.is_due, "__kwdefaults__", {"bytes_min": 0})


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """Twenty-one steps, a snapshot, a rewind, two openings; compressed and indexed."""
    path = str(tmp_path / "run")
    _work(path, range(1, 16), snapshot=7)
    with Store.open(path, "r+", settings=SMALL) as store:
        store.branch("side", "s")
        store.delete("side")
        store.rewind("s")
    _work(path, range(8, 21))
    yield path


def _work(path: str, steps: range, snapshot: int | None = None, **options: Any) -> None:
    with Store.open(path, "a", settings=SMALL, **options) as store:
        for step in steps:
            commit(store, step, metadata={"loss": 1.0 / step, "long": "x" * (step * 700)})
            if step == snapshot:
                store.snapshot("s")


def _rows(path: str, *, commits_only: bool = False) -> Rows:
    return [e.to_json() for e in read_history(FS, path, commits_only=commits_only)]


def _without(path: str) -> Rows:
    """What the log alone says."""
    shutil.move(f"{path}/catalog", f"{path}.catalog")
    rows = _rows(path)
    shutil.move(f"{path}.catalog", f"{path}/catalog")
    return rows


def _file(path: str, ending: str) -> Path:
    (found,) = Path(path, "catalog").glob(f"*.{ending}")
    return found


def _reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Segments that are read from now on."""
    read: list[int] = []
    plain = reader.read_segment_bytes

    def noting(fs: Any, root: str, number: int) -> tuple[str, bytes]:
        read.append(number)
        return plain(fs, root, number)

    monkeypatch.setattr(reader, "read_segment_bytes", noting)
    return read


@pytest.mark.req("S22")
def test_history_is_the_same_with_and_without(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = _without(root)
    assert len(alone) > 30 and {row["type"] for row in alone} >= {"open", "rewind", "snapshot"}
    read = _reads(monkeypatch)
    assert _rows(root) == alone
    last = reader.list_segments(FS, root)[-1]
    assert set(read) < set(range(last + 1)), "long metadata is read from the log, the rest is not"
    assert last in read and 0 not in read
    names = os.listdir(f"{root}/wal")
    assert sum(name.endswith(".zst") for name in names) == len(names) - 2


@pytest.mark.req("S22")
def test_a_step_is_found_without_reading_the_log(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _reads(monkeypatch)
    entries = read_step(FS, root, 8)
    assert [entry.status for entry in entries] == ["effective", "rewound"]
    assert set(read) == {reader.list_segments(FS, root)[-1]}
    assert [e.to_json() for e in entries] == [r for r in _without(root) if r["step"] == 8
                                              and r["type"] == "commit"]  # fmt: skip
    (newest,) = read_step(FS, root, 20)
    assert newest.effective
    assert len(read_step(FS, root, 15)) == 2, "long metadata comes from the log"
    assert read_step(FS, root, 99) == []


@pytest.mark.req("S4")
def test_no_flipped_byte_changes_what_history_says(root: str) -> None:
    alone, chosen = _without(root), random.Random(1)
    for ending, count in (("mdb", 60), ("mark", 60)):
        path = _file(root, ending)
        whole = path.read_bytes()
        places = [*range(0, 40), *(chosen.randrange(len(whole)) for _ in range(count))]
        for at in places:
            path.write_bytes(whole[:at] + bytes([whole[at % len(whole)] ^ 0x20]) + whole[at + 1 :])
            assert _rows(root) == alone, f"{ending} at {at}"
        for size in (0, 1, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            assert _rows(root) == alone, f"{ending} cut to {size}"
            report = fsck(FS, root)
            assert report.clean
            assert any("catalog" in finding.what for finding in report.findings), ending
        path.write_bytes(whole)
    assert not any("catalog" in finding.what for finding in fsck(FS, root).findings)


@pytest.mark.req("S4")
def test_every_flipped_byte_of_a_mark_is_found(root: str) -> None:
    check_flips(root, _file(root, "mark"))


@pytest.mark.long
@pytest.mark.req("S4")
def test_every_flipped_byte_of_an_index_is_found(root: str) -> None:
    """By plain reads, before anybody maps the file."""
    check_flips(root, _file(root, "mdb"))


def check_flips(root: str, path: Path) -> None:
    whole, uuid = path.read_bytes(), _uuid(root)
    known, _ = find_mark(FS, root, uuid)
    assert known is not None and known.index is not None
    with path.open("r+b", buffering=0) as file:
        for at in range(len(whole)):
            file.seek(at)
            file.write(bytes([whole[at] ^ (1 << at % 8)]))
            if path.suffix == ".mark":
                assert find_mark(FS, root, uuid)[0] is None
            else:
                with pytest.raises(CatalogError), open_index(FS, root, known.index):
                    pass
            file.seek(at)
            file.write(whole[at : at + 1])
    assert path.read_bytes() == whole


@pytest.mark.req("S4")
@pytest.mark.parametrize("ending", ["mdb", "mark"])
def test_a_writer_makes_a_damaged_catalog_anew(root: str, ending: str) -> None:
    path = _file(root, ending)
    path.write_bytes(bytes(len(path.read_bytes())))
    _work(root, range(21, 27))
    mark, bad = find_mark(FS, root, _uuid(root))
    assert mark is not None and mark.index is not None and not bad
    assert mark.index.seq == reader.read_log(FS, root).segment.header["predecessor"]["seq"]
    assert not any("catalog" in finding.what for finding in fsck(FS, root).findings)
    assert _rows(root) == _without(root)


@pytest.mark.req("S4")
def test_a_damaged_index_is_not_built_upon(root: str) -> None:
    """A byte of one row, in a file that LMDB opens without a word: what is added goes elsewhere."""
    path = _file(root, "mdb")
    whole = path.read_bytes()
    at = whole.index(b'"loss"') + 1
    path.write_bytes(whole[:at] + b"m" + whole[at + 1 :])
    _work(root, range(21, 27))
    assert not any("catalog" in finding.what for finding in fsck(FS, root).findings)
    assert _rows(root) == _without(root)


def _uuid(root: str) -> str:
    with Store.open(root) as store:
        return store.uuid


def test_a_row_that_is_wrong_is_read_from_the_log(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a bug would make it: the file's digest is right, a row is not."""
    alone, put = _without(root), index._put

    def wrong(transaction: Any, record: Any, before: str) -> None:
        put(transaction, record, "0" * 32 if record.seq == 9 else before)

    monkeypatch.setattr(index, "_put", wrong)
    shutil.rmtree(f"{root}/catalog")
    _work(root, range(0))
    mark, _ = find_mark(FS, root, _uuid(root))
    assert mark is not None and mark.index is not None
    with open_index(FS, root, mark.index) as opened, pytest.raises(CatalogError, match="record 8"):
        opened.check_rows()
    assert _rows(root)[-len(alone) :] == alone
    assert any("damaged (record 8" in finding.what for finding in fsck(FS, root).findings)


@pytest.mark.req("S4")
def test_a_log_that_was_cut_off_is_refused(root: str) -> None:
    """Whole frames gone with the end of the file look like an append that never was."""
    newest = max(Path(root, "wal").glob("*.wal"))
    whole = newest.read_bytes()
    frames = len(whole.rstrip(b"\0")) // 4096
    newest.write_bytes(whole[: (frames - 1) * 4096])
    _refused(root)
    newest.write_bytes(whole)
    assert fsck(FS, root).clean
    newest.write_bytes(whole[: (frames - 1) * 4096])
    shutil.rmtree(f"{root}/catalog")  # what the message says: accept what is left
    with Store.open(root, "r+") as store:
        commit(store, 99)


@pytest.mark.req("S4")
def test_a_newest_segment_that_is_missing_is_noticed(root: str) -> None:
    max(Path(root, "wal").glob("*.wal")).unlink()
    _refused(root)


def _refused(root: str) -> None:
    before = sorted(os.listdir(f"{root}/wal"))
    for mode in ("r", "r+", "a"):
        with pytest.raises(CorruptionError, match=r"lost its end.*remove .*/catalog"):
            Store.open(root, mode)  # type: ignore[arg-type]
    damage = [finding for finding in fsck(FS, root).findings if finding.is_damage]
    assert len(damage) == 1 and "lost its end" in damage[0].what
    assert sorted(os.listdir(f"{root}/wal")) == before


def test_an_older_catalog_is_behind_and_no_more(root: str) -> None:
    shutil.copytree(f"{root}/catalog", f"{root}.older")
    _work(root, range(21, 30))
    alone = _without(root)
    shutil.rmtree(f"{root}/catalog")
    shutil.copytree(f"{root}.older", f"{root}/catalog")
    assert _rows(root) == alone
    assert fsck(FS, root).clean
    _work(root, range(30, 32))
    assert _rows(root) == _without(root)


def test_a_catalog_of_another_store_is_not_believed(root: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    _work(other, range(1, 60))
    shutil.rmtree(f"{root}/catalog")
    shutil.copytree(f"{other}/catalog", f"{root}/catalog")
    alone = _without(root)
    assert _rows(root) == alone
    assert any("another store" in finding.what for finding in fsck(FS, root).findings)
    _work(root, range(21, 23))
    assert not any("another store" in finding.what for finding in fsck(FS, root).findings)


def test_a_kill_between_log_and_catalog_leaves_it_behind(root: str) -> None:
    """The log is ahead of the mark by what was committed since: nothing to do, nothing lost."""
    shutil.copytree(f"{root}/catalog", f"{root}.before")
    _work(root, range(21, 33))
    shutil.rmtree(f"{root}/catalog")
    os.rename(f"{root}.before", f"{root}/catalog")
    with Store.open(root, "r+", settings=SMALL) as store:
        assert values(store) == expected(32)
    assert fsck(FS, root).clean


@pytest.mark.req("S4")
@pytest.mark.parametrize(
    "op", ["open_create", "open_replace", "rename", "make_directory", "pwrite"]
)
def test_a_catalog_that_cannot_be_written_fails_no_commit(tmp_path: Path, op: str) -> None:
    root = str(tmp_path / "run")
    faulty = FaultyFileSystem(FS)
    faulty.fail(op, "*/catalog*", times=None, error=errno.ENOSPC)
    faulty.fail(op, "*/tmp.zst", times=None, error=errno.ENOSPC)
    _work(root, range(1, 20), fs=faulty)
    with Store.open(root) as store:
        assert values(store) == expected(19)
    left = os.listdir(f"{root}/catalog") if os.path.exists(f"{root}/catalog") else []
    assert "tmp.mdb" not in left and "tmp.zst" not in os.listdir(f"{root}/wal")
    assert len(_rows(root, commits_only=True)) == 19
    _work(root, range(20, 22))
    assert _file(root, "mdb")


@pytest.mark.req("S21")
def test_readers_write_nothing(root: str) -> None:
    before = _tree(root)
    _rows(root)
    read_step(FS, root, 3)
    fsck(FS, root)
    Store.open(root).close()
    assert _tree(root) == before


def _tree(root: str) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in Path(root).rglob("*")
    }


def test_a_copy_is_not_asked_whether_its_log_reaches_the_mark(root: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy")
    shutil.copytree(root, copy)
    newest = max(Path(copy, "wal").glob("*.wal"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole.rstrip(b"\0")) - 4096])
    Store.open(copy).close()
    Store.open(copy, "r+").close()
    assert fsck(FS, copy).clean


def test_without_real_files_there_is_no_catalog() -> None:
    fs = MemoryFileSystem()
    with open_store(fs, settings=SMALL) as store:
        for step in range(1, 20):
            commit(store, step)
    assert "catalog" not in fs.list_directory("run")
    assert len(list(read_history(fs, "run"))) == 19


def test_a_mark_names_nothing_that_a_power_cut_could_take(tmp_path: Path) -> None:
    """Deferred commits are in the log and not durable: no mark may demand them."""
    root = str(tmp_path / "run")
    store = Store.open(root, "a", settings=Settings(durability="deferred", commits_per_segment=99))
    opened, _ = find_mark(FS, root, store.uuid)
    for step in (1, 2, 3):
        commit(store, step)
    writer = store._session.pipeline.protocol.writer
    assert opened is not None and writer.proven == (opened.seq, opened.chain)
    assert writer.seq == opened.seq + 3
    store.close()  # makes them durable
    closed, _ = find_mark(FS, root, store.uuid)
    assert closed is not None and closed.seq > opened.seq + 2
