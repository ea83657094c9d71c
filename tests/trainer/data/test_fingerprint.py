"""Changed data is noticed and named, whether a manifest, a full reading or samples stand behind
it.

Method: one directory per kind of change; what the manifest cannot see is pinned as well.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.data.support import make_directory, numbered_rows
from trainer.data import (
    BadDataFile,
    DataChanged,
    DataError,
    DataFingerprint,
    compare_fingerprints,
    require_same_data,
)
from trainer.data.manifest import MANIFEST, survey, write_manifest

pytestmark = pytest.mark.req("T21", "T24")


def fingerprint(path: Path) -> DataFingerprint:
    return survey(path)[0]


def flip_in_the_middle(path: Path, keep_time: bool = False) -> None:
    """A change that neither size nor first and last page show."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    times = (status.st_atime_ns, status.st_mtime_ns + (0 if keep_time else 1_000_000_000))
    os.utime(path, ns=times)


def test_the_same_data_elsewhere_has_no_differences(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "d", [3, 4])
    old = fingerprint(path)
    shutil.copytree(path, tmp_path / "copy")
    write_manifest(tmp_path / "copy")
    new = fingerprint(tmp_path / "copy")
    assert old.kind == new.kind == "full"
    stored = json.loads(json.dumps(old.summary()))
    assert compare_fingerprints(old, new) == compare_fingerprints(stored, new.summary()) == []
    require_same_data(stored, new, "training data")


CHANGES: dict[str, Callable[[Path], object]] = {
    "part_00001.npy: file is gone": lambda d: (d / "part_00001.npy").unlink(),
    "part_00009.npy: file is new": lambda d: np.save(d / "part_00009.npy", numbered_rows(0, 1)),
    "part_00000.npy: content changed": lambda d: flip_in_the_middle(d / "part_00000.npy"),
    "part_00000.npy: size in bytes": lambda d: np.save(d / "part_00000.npy", numbered_rows(0, 9)),
}


@pytest.mark.parametrize("expected", CHANGES)
def test_changed_data_is_refused_by_name(tmp_path: Path, expected: str) -> None:
    path = make_directory(tmp_path / "d", [3000, 4])
    old = fingerprint(path)
    CHANGES[expected](path)
    differences = compare_fingerprints(old.to_json(), fingerprint(path))
    assert any(line.startswith(expected) for line in differences), differences
    with pytest.raises(DataChanged, match=f"training data d is not the data .*{expected}"):
        require_same_data(old, fingerprint(path), "training data d")


def test_a_summary_of_many_files_is_small_and_still_notices(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "d", [2] * 100)
    old = fingerprint(path).summary()
    assert "entries" not in old and len(json.dumps(old)) < 400
    np.save(path / "part_00050.npy", numbered_rows(7, 2))
    (difference,) = compare_fingerprints(old, fingerprint(path))
    assert difference.startswith("sample digest")
    (path / "part_00050.npy").unlink()
    named = compare_fingerprints(old, fingerprint(path))
    assert named == ["files: 100 before, 99 now", "rows: 200 before, 198 now"]


def test_samples_cover_both_ends_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.manifest.SCAN_LIMIT_BYTES", 10)
    path = make_directory(tmp_path / "d", [3000])
    file = path / "part_00000.npy"
    old = fingerprint(path)
    assert old.kind == "sampled" and old.max_id is None
    for offset in (200, file.stat().st_size - 4):
        content = bytearray(file.read_bytes())
        content[offset] ^= 1
        file.write_bytes(content)
        new = fingerprint(path)
        assert compare_fingerprints(old, new) == ["part_00000.npy: content changed"]
        old = new


def test_what_is_no_fingerprint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a data fingerprint"):
        compare_fingerprints({"rows": 1}, {"rows": 1})


MANIFEST_CHANGES: dict[str, Callable[[Path], object]] = {
    "the file is gone": lambda d: (d / "part_00001.npy").unlink(),
    "the file is not listed": lambda d: np.save(d / "part_00009.npy", numbered_rows(0, 1)),
    "its content changed": lambda d: flip_in_the_middle(d / "part_00000.npy"),
    "sample": lambda d: np.save(d / "part_00001.npy", numbered_rows(1, 4)),
    "size": lambda d: np.save(d / "part_00001.npy", numbered_rows(0, 9)),
}


@pytest.mark.parametrize("message", MANIFEST_CHANGES)
def test_data_that_is_not_what_its_manifest_says_is_refused(tmp_path: Path, message: str) -> None:
    path = make_directory(tmp_path / "d", [3000, 4])
    write_manifest(path)
    MANIFEST_CHANGES[message](path)
    with pytest.raises(DataChanged, match=rf"part_0000\d.npy: not what {MANIFEST} says: {message}"):
        survey(path)
    write_manifest(path)
    assert survey(path)[1] == []


def test_a_manifest_saves_the_reading_and_verify_does_not(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "d", [3000, 4])
    before = write_manifest(path)
    read: list[int] = []
    survey(
        path, progress=lambda what, done, total: read.append(done) if what == "reading" else None
    )
    assert read == []
    # What the documentation says is not noticed at an opening: same size, time and end pages.
    flip_in_the_middle(path / "part_00000.npy", keep_time=True)
    assert compare_fingerprints(before, survey(path)[0]) == []
    with pytest.raises(DataChanged, match="its content changed"):
        survey(path, scan="full")


def test_touched_files_are_read_again_and_that_is_told(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "d", [3, 4])
    before = write_manifest(path)
    os.utime(path / "part_00001.npy", (1, 1))
    after, warnings = survey(path)
    assert compare_fingerprints(before, after) == [] and after.kind == "full"
    assert "1 files have other times" in warnings[0]


def test_ids_recorded_as_too_large_are_refused_with_their_row(tmp_path: Path) -> None:
    from trainer.data import TokenDataset

    path = make_directory(tmp_path / "d", [3, 4])
    write_manifest(path)
    with pytest.raises(BadDataFile, match=r"part_00001.npy: row 3, column 4: token id 10"):
        TokenDataset.open(path, seq_len=4, vocab_size=10)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"format": 2}'])
def test_a_damaged_manifest_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = make_directory(tmp_path / "d", [3])
    (path / MANIFEST).write_bytes(content)
    with pytest.raises(DataError, match=MANIFEST):
        survey(path)


def test_a_changed_manifest_is_noticed(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "d", [3])
    write_manifest(path)
    text = (path / MANIFEST).read_text().replace('"max_id": 6', '"max_id": 5')
    (path / MANIFEST).write_text(text)
    with pytest.raises(DataError, match="damaged"):
        survey(path)
