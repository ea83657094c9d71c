"""Stores of every version that was ever released stay what they are, and readable.

Goal: no change of the code takes a stored step away from anybody. Method: small stores, made once
for each version (`golden_stores`) and never changed, are read by the store, by the independent
reader and by fsck, used for writing, and, those of this version, made again byte for byte.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import shardstore
from shardstore import Commit, Ref, Store
from shardstore.codecs import packing
from shardstore.errors import CorruptionError
from shardstore.format import names, packed
from shardstore.format.placement import DTYPE_SIZES
from shardstore.fs.posix import PosixFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import fsck
from shardstore.history import read_history
from tests.format.golden_fs import ROOT, GoldenFileSystem
from tests.format.golden_script import Expected
from tests.format.golden_stores import (
    GOLDEN,
    Recipe,
    archived,
    encoder_versions,
    file_digests,
    long_log,
    main,
    make,
    read_expected,
)
from tests.format.independent_log import Segment
from tests.format.independent_reader import IndependentReader

STORES = sorted(path.parent for path in GOLDEN.glob("v*/*/expected.json"))
NEWEST = GOLDEN / f"v{names.FORMAT_VERSION}"
NOT_WORK = ("open", "sync", "base")
ENCODED = {
    "torch": ("objects/", "wal/", "catalog/"),
    "archived": ("objects/", "wal/", "catalog/"),
    "long": (".zst", ".mdb", ".mark"),
}
"""Files in which other libraries have a say, or that hold a digest of such a file."""

pytestmark = pytest.mark.req("S28")
each = pytest.mark.parametrize(
    "golden", STORES, ids=[f"{path.parent.name}/{path.name}" for path in STORES]
)


def rows_of(loaded: Any) -> list[list[Any]]:
    """The tensors of a loaded part as `golden_script` spells them."""
    return [
        [
            spec.name,
            spec.dtype,
            hashlib.sha256(loaded.raw(spec.name)).hexdigest(),
            *spec.shape,
        ]
        for spec in loaded.specs
    ]


def plain(value: Any) -> Any:
    """What JSON makes of it; NaN equals itself."""
    return json.dumps(value, sort_keys=True)


def check_commit(store: Store, expected: Expected, ref: Ref) -> None:
    commit: Commit = store.commit_of(ref)
    for field in ("seq", "step", "branch", "time", "metadata"):
        assert plain(getattr(commit, field)) == plain(expected[field]), (ref, field)
    assert {name: blob.hex() for name, blob in commit.blobs.items()} == expected["blobs"]
    assert commit.parts == {(part["shard"], part["part"]) for part in expected["parts"]}
    for part in expected["parts"]:
        with store.load(part["shard"], part["part"], ref) as loaded:
            assert rows_of(loaded) == part["tensors"], (ref, part["shard"], part["part"])


def check_state(store: Store, state: Expected) -> None:
    """Everything that the public face shows is what was written."""
    assert store.uuid == state["uuid"]
    assert store.current_branch == state["current"]
    assert {branch.name: branch.seq for branch in store.branches} == state["heads"]
    shown = {snapshot.name: (snapshot.archived, snapshot.time) for snapshot in store.snapshots}
    assert shown == {
        name: (snapshot["archived"], snapshot["time"])
        for name, snapshot in state["snapshots"].items()
    }
    assert [commit.seq for commit in store.kept] == [commit["seq"] for commit in state["kept"]]
    undoable = [[change.op, change.name] for change in reversed(store.undoable)]
    assert undoable == state["undoable"]
    for commit in state["kept"]:
        check_commit(store, commit, Ref.seq(commit["seq"]))
    for name, snapshot in state["snapshots"].items():
        check_commit(store, snapshot["commit"], Ref.name(name))


def history(fs: FileSystem, root: str) -> list[str]:
    """Records that are work, as `golden_script` spells them."""
    entries = read_history(fs, root, commits_only=False, oldest_first=True)
    return [
        f"commit {entry.step}" if entry.type == "commit" else entry.type
        for entry in entries
        if entry.type not in NOT_WORK
    ]


@pytest.fixture
def copy(golden: Path, tmp_path: Path) -> Path:
    """A copy to work with, under the name that the store had when it was made."""
    return shutil.copytree(golden / "store", tmp_path / golden.name)


def version_of(golden: Path) -> int:
    """Its directory is called v1, or v1-1 where writers of version 1 have changed since."""
    return int(golden.parent.name.removeprefix("v").partition("-")[0])


def test_there_are_golden_stores_of_every_version() -> None:
    versions = {version_of(path) for path in STORES}
    assert versions == set(range(1, names.FORMAT_VERSION + 1))
    assert sorted(GOLDEN.glob("*/*")) == STORES
    for path in STORES:
        assert read_expected(path)["version"] == version_of(path)


@each
def test_no_byte_has_changed(golden: Path) -> None:
    assert file_digests(golden / "store") == read_expected(golden)["files"]


@each
def test_every_value_reads_as_it_was_written(golden: Path, copy: Path) -> None:
    expected = read_expected(golden)
    with Store.open(copy) as store:
        check_state(store, expected["state"])
    assert history(PosixFileSystem(), str(copy)) == expected["state"]["history"]
    assert file_digests(copy) == expected["files"], "reading has changed a byte"


@each
def test_where_it_was_written_what_was_not_synced_counts_too(golden: Path, copy: Path) -> None:
    """Same boot, same file STORE: the state is that of the last valid record (rule 4)."""
    fs, state = GoldenFileSystem(copy.parent, "reader"), read_expected(golden)["state"]
    with Store.open(f"{ROOT}/{copy.name}", fs=fs) as store:
        check_state(store, state.get("tail", state))


@each
def test_the_independent_reader_agrees(golden: Path) -> None:
    state = read_expected(golden)["state"]
    state = state.get("tail", state)
    reader = IndependentReader(golden / "store")
    reader.check_history()
    assert {name: seq for name, (seq, _) in reader.state.branches.items()} == state["heads"]
    assert sorted(reader.state.commits) == [commit["seq"] for commit in state["kept"]]
    assert reader.state.snapshots.keys() == state["snapshots"].keys()
    pairs = [(reader.state.commits[commit["seq"]], commit) for commit in state["kept"]]
    pairs += [(reader.commit(name), row["commit"]) for name, row in state["snapshots"].items()]
    for found, commit in pairs:
        for field in ("seq", "step", "branch", "time", "metadata"):
            assert plain(found[field]) == plain(commit[field])
        blobs = {name: base64.b64decode(text).hex() for name, text in found["blobs"].items()}
        assert blobs == commit["blobs"]
        parts = reader.parts(found)
        assert [list(part) for part in sorted(parts)] == [
            [part["shard"], part["part"]] for part in commit["parts"]
        ]
        for part in commit["parts"]:
            tensors = parts[part["shard"], part["part"]].values()
            assert [
                [one.name, one.dtype, hashlib.sha256(one.data).hexdigest(), *one.shape]
                for one in tensors
            ] == part["tensors"]


@each
def test_a_deep_check_finds_nothing(golden: Path, copy: Path) -> None:
    report = fsck(PosixFileSystem(), str(copy), deep=True)
    assert report.clean, report.findings
    assert report.objects and report.bytes_read
    assert file_digests(copy) == read_expected(golden)["files"], "checking has changed a byte"


@each
def test_a_copy_goes_on(golden: Path, copy: Path) -> None:
    state = read_expected(golden)["state"]
    with Store.open(copy, "r+") as store:
        check_state(store, state)
        assert store.head is not None
        with store.begin(store.head.step + 1) as txn:
            with store.load(*sorted(store.head.parts)[0]) as loaded:
                checkout = txn.blank("new", "params", loaded.specs)
                for spec in loaded.specs:
                    checkout.raw(spec.name)[:] = loaded.raw(spec.name)
                rows = rows_of(loaded)
            txn.stage("new", "params", checkout, donate=True)
            txn.keep_rest()
            made = txn.commit(metadata={"loss": math.inf})
        store.snapshot("new")
    with Store.open(copy) as store:
        assert store.commit_of("new").seq == made.seq
        with store.load("new", "params", "new") as loaded:
            assert rows_of(loaded) == rows
        for name, snapshot in state["snapshots"].items():
            check_commit(store, snapshot["commit"], Ref.name(name))
    report = fsck(PosixFileSystem(), str(copy), deep=True)
    assert report.clean, report.findings
    IndependentReader(copy).check_history()


def differing(made: Path, golden: Path) -> set[str]:
    """Files of a store that are not those of the golden one."""
    ours, theirs = file_digests(made / "store"), read_expected(golden)["files"]
    return {path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path)}


def is_encoded(name: str, file: str) -> bool:
    return any(file.startswith(way) or file.endswith(way) for way in ENCODED.get(name, ()))


def test_this_version_is_made_again_byte_for_byte(tmp_path: Path) -> None:
    """What depends on another version of a library than the one that made it holds equal values."""
    assert main(["--version", str(names.FORMAT_VERSION), str(tmp_path / "made")]) == 0
    again = sorted(path.name for path in (tmp_path / "made").iterdir())
    assert again == sorted(path.name for path in NEWEST.iterdir())
    for name in again:
        made, golden = tmp_path / "made" / name, NEWEST / name
        assert read_expected(made)["state"] == read_expected(golden)["state"], name
        changed = differing(made, golden)
        if encoder_versions(name) != read_expected(golden)["encoders"]:
            changed = {file for file in changed if not is_encoded(name, file)}
        assert not changed, f"{name}: {sorted(changed)}"
        with Store.open(made / "store") as store:
            check_state(store, read_expected(golden)["state"])


@pytest.mark.parametrize(("name", "recipe"), [("long", long_log), ("archived", archived)])
def test_another_encoder_leaves_other_bytes_and_equal_values(
    name: str, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above allows where versions differ, and no more."""
    compress = packing._compress
    monkeypatch.setattr(packed, "_LEVEL", 19)
    monkeypatch.setattr(packing, "_compress", lambda data, width, _: compress(data, width, 19))
    make(tmp_path / "made", (recipe,))
    made, golden = tmp_path / "made" / name, NEWEST / name
    changed = differing(made, golden)
    assert changed and all(is_encoded(name, file) for file in changed)
    with Store.open(made / "store") as store:
        check_state(store, read_expected(golden)["state"])


def test_they_have_one_of_everything() -> None:
    """Each kind of record, opening and object that FORMAT.md knows is in one of this version."""
    page = Path(shardstore.__file__).with_name("FORMAT.md").read_text("utf-8")
    table = page.partition("| type | fields |")[2].partition("### 4.1")[0]
    kinds, reasons, methods, told, copies = set(), set(), set(), 0, 0
    for path in sorted(NEWEST.glob("*/store/wal/*")):
        segment = Segment(path)
        copies += segment.header.record["copies"]
        for record in (frame.record for frame in segment.frames):
            kinds.add(record["type"])
            reasons.add(record.get("reason"))
            told += bool(record.get("history"))
    assert kinds == set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE))
    (spelled,) = re.findall(r"reason \(([^)]*)\)", table)
    assert reasons - {None} == set(re.findall(r"`(\w+)`", spelled))
    assert copies and told
    for path in NEWEST.glob("*/store/objects/*.archive"):
        length = int.from_bytes(path.read_bytes()[:8], "little")
        header = json.loads(path.read_bytes()[8 : 8 + length])
        methods |= {method for _, method, _ in header["pieces"]}
    assert methods == {0, 1, 2}
    endings = {path.suffix[1:] for path in NEWEST.glob("*/store/objects/*")}
    assert endings == set(names.ALL_FORMATS)
    for pattern in ("wal/*.wal.zst", "catalog/*.mdb", "quarantine/*/REASON"):
        assert list(NEWEST.glob(f"*/store/{pattern}")), pattern
    tensors = [
        tensor
        for path in NEWEST.iterdir()
        for commit in read_expected(path)["state"]["kept"]
        for part in commit["parts"]
        for tensor in part["tensors"]
    ]
    assert {tensor[1] for tensor in tensors} == DTYPE_SIZES.keys()


@pytest.mark.parametrize("file", ["STORE", "objects/000003.raw", "wal/0000000000000000.wal"])
def test_a_flipped_bit_is_noticed(file: str, tmp_path: Path) -> None:
    """The first two tests are worth something."""
    golden = NEWEST / "everyday"
    copy = shutil.copytree(golden, tmp_path / "everyday")
    data = bytearray((copy / "store" / file).read_bytes())
    data[-1 if file == "STORE" else 4096] ^= 1
    (copy / "store" / file).write_bytes(data)
    assert differing(copy, golden) == {file}
    with pytest.raises(CorruptionError), Store.open(copy / "store") as store:
        check_state(store, read_expected(golden)["state"])
        history(PosixFileSystem(), str(copy / "store"))
