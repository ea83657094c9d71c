"""Batches out of a directory: the right tokens, bounded memory and descriptors, bad files by name.

Method: files whose rows tell their number, written with numpy alone; damage is done to single
files.
"""

from __future__ import annotations

import os
import pickle
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.data.support import SEQ_LEN, VOCAB, make_directory, numbered_rows
from trainer.data import BadDataFile, DataChanged, DataError, TokenDataset

pytestmark = pytest.mark.req("T24")


def open_rows(path: Path, **changes: object) -> TokenDataset:
    settings: dict[str, object] = {"seq_len": SEQ_LEN, "vocab_size": VOCAB} | changes
    return TokenDataset.open(path, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["int32", "uint16"])
def test_inputs_and_labels_are_the_row_and_its_successor(tmp_path: Path, dtype: str) -> None:
    data = open_rows(make_directory(tmp_path / "d", [3, 2], dtype), shuffle=False)
    inputs, labels = data.batch(2, 5)
    rows = np.concatenate([numbered_rows(2, 3), numbered_rows(0, 2)])  # over the end of the epoch
    assert inputs.dtype == labels.dtype == np.int64
    assert inputs.flags.c_contiguous and labels.flags.c_contiguous
    assert np.array_equal(inputs, rows[:, :-1]) and np.array_equal(labels, rows[:, 1:])


@given(start=st.integers(0, 60), count=st.integers(1, 40), seed=st.integers(0, 5))
def test_a_batch_is_its_single_rows_where_the_order_puts_them(
    tmp_path_factory: pytest.TempPathFactory, start: int, count: int, seed: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "shared_rows"
    if not path.exists():
        make_directory(path, [3, 1, 4, 0, 5])
    with open_rows(path, seed=seed) as data:
        inputs, _ = data.batch(start, count)
        for number in range(count):
            place = data.order.place(start + number)
            name = data.fingerprint.entries[place.file].name
            assert np.array_equal(inputs[number], np.load(path / name)[place.row, :-1])


def test_longer_rows_are_cut_and_shorter_ones_refused(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "d", [3])
    assert open_rows(path, seq_len=2).batch(0, 1)[1].tolist() == [[1, 2]]
    with pytest.raises(BadDataFile, match=r"part_00000.npy: rows of 5 tokens: --seq-len 5 needs 6"):
        open_rows(path, seq_len=5)


def save(path: Path, array: object) -> None:
    np.save(path, np.asarray(array), allow_pickle=True)


def save_raw(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def cut(path: Path, size: int) -> None:
    os.truncate(path, path.stat().st_size + size if size < 0 else size)


ROWS = numbered_rows(0, 4)
BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "dtype int64": (lambda p: save(p, ROWS.astype("<i8")), "dtype <i8: expected int32"),
    "big endian": (lambda p: save(p, ROWS.astype(">i4")), "dtype >i4: expected int32"),
    "floats": (lambda p: save(p, ROWS.astype("<f4")), "dtype <f4: expected int32"),
    "one dimension": (lambda p: save(p, ROWS[0]), r"shape \(5,\): expected \(rows, seq_len \+ 1\)"),
    "row length": (lambda p: save(p, ROWS[:, :4]), "rows of 4 tokens: expected 5"),
    "columns": (lambda p: save(p, np.asfortranarray(ROWS)), "stored column by column"),
    "objects": (lambda p: save(p, np.array([[1, "a"]], object)), "pickled Python objects"),
    "a pickle": (lambda p: save_raw(p, pickle.dumps([1, 2, 3] * 9)), "not an .npy file"),
    "empty": (lambda p: save_raw(p, b""), "not an .npy file"),
    "truncated rows": (
        lambda p: cut(p, -3),
        "truncated: expected 208 bytes for 4 rows of 5, found",
    ),
    "truncated header": (lambda p: cut(p, 60), "truncated inside its header"),
    "appended": (lambda p: save_raw(p, p.read_bytes() + b"x"), "longer than its header says"),
    "id too large": (lambda p: save(p, ROWS + np.int32(48)), r"row 0, column 2: token id 50: expe"),
    "negative id": (lambda p: save(p, ROWS - np.int32(2)), r"row 0, column 0: token id -2: expe"),
    "header code": (
        lambda p: save_raw(p, p.read_bytes().replace(b"(4, 5)", b"exit()")),
        "unreadable .npy header",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, case: str) -> None:
    path = make_directory(tmp_path / "d", [4, 4, 4])
    damage, message = BAD_FILES[case]
    bad = path / "part_00001.npy"
    damage(bad)
    with pytest.raises(BadDataFile, match=message) as caught:
        open_rows(path)
    assert str(caught.value).startswith(str(bad))


def test_an_id_past_the_scan_is_still_caught_when_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_directory(tmp_path / "d", [3, 3])
    save(path / "part_00001.npy", np.full((3, 5), VOCAB, np.int32))
    monkeypatch.setattr("trainer.data.manifest.SCAN_LIMIT_BYTES", 10)
    data = open_rows(path, shuffle=False)
    assert data.fingerprint.kind == "sampled" and "only the first and last page" in data.warnings[0]
    assert data.batch(0, 3)[0].shape == (3, SEQ_LEN)
    with pytest.raises(BadDataFile, match=r"part_00001.npy: row 0, column 0: token id 50"):
        data.batch(0, 4)


def test_directories_without_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no readable data directory"):
        open_rows(tmp_path / "none")
    make_directory(tmp_path / "d" / "train", [0])
    with pytest.raises(DataError, match=r"no .npy files; did you mean .*train\?"):
        open_rows(tmp_path / "d")
    with pytest.raises(DataError, match="its 1 files hold no row"):
        open_rows(tmp_path / "d" / "train")


def test_a_file_that_changes_while_in_use_is_an_error(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "d", [4, 4])
    data = open_rows(path, shuffle=False)
    data.batch(0, 1)
    cut(path / "part_00000.npy", -20)
    with pytest.raises(BadDataFile, match=r"part_00000.npy: ends at row 3 of 4"):
        data.batch(3, 1)
    cut(path / "part_00001.npy", -20)
    with pytest.raises(BadDataFile, match="changed its size since"):
        data.batch(4, 1)


@pytest.mark.req("T3")
def test_a_vocabulary_far_too_large_is_told_and_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_directory(tmp_path / "d", [60])
    assert open_rows(path).warnings == ()
    assert open_rows(path, vocab_size=99).warnings == ()
    (warning,) = open_rows(path, vocab_size=100).warnings
    assert "no token id is above 49, but the vocabulary has 100" in warning
    assert capsys.readouterr() == ("", "")


@pytest.mark.req("T21")
def test_a_cursor_resumes_only_in_its_own_order(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "d", [4, 4])
    data = open_rows(path, seed=3)
    assert data.resume(data.cursor().advance(11)) == 11
    for other in (open_rows(path, seed=4), open_rows(path, seed=3, shuffle=False)):
        with pytest.raises(DataChanged, match="another order of rows"):
            other.resume(data.cursor(11))


def test_threads_and_children_read_the_right_rows(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "d", [7] * 6)
    data = open_rows(path, open_files_max=2)
    expected = [data.batch(row, 3)[0] for row in range(40)]
    wrong: list[int] = []

    def read() -> None:
        wrong.extend(r for r in range(40) if not np.array_equal(data.batch(r, 3)[0], expected[r]))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def read_many(path: Path, files: int) -> None:
    make_directory(path, [1] * files)
    before = set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, len(before) + 40), hard))
    try:
        with open_rows(path) as data:
            seen = np.concatenate([data.batch(row, 50)[0][:, 0] for row in range(0, files, 50)])
            assert len(data._open) <= 8
            resident = resident_bytes()
            for row in range(files, 2 * files, 50):
                data.batch(row, 50)
            assert resident_bytes() - resident < 8 << 20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert np.array_equal(np.bincount(seen), np.bincount(np.arange(files) % VOCAB))


def resident_bytes() -> int:
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_many_files_need_few_descriptors_and_flat_memory(tmp_path: Path) -> None:
    read_many(tmp_path / "d", 2_000)


@pytest.mark.long
def test_35000_files_need_few_descriptors_and_flat_memory(tmp_path: Path) -> None:
    read_many(tmp_path / "d", 35_000)
