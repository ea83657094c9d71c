"""What is whole in itself and not what it should be is refused: forged frames, objects, headers.

Goal: each check holds by itself, also where all the others would let the bytes pass. Method: bytes
are made with every other digest right; `tests/crash/checks.py` leaves each check out in turn.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import torch

from shardstore.buffers import BufferPool
from shardstore.catalog import Mark
from shardstore.codecs import foreign
from shardstore.conversion import convert
from shardstore.errors import CorruptionError
from shardstore.format.digests import canonical_json, digest
from shardstore.format.frames import (
    HEADER_MAGIC,
    RECORD_MAGIC,
    BadFrame,
    Frame,
    build_frame,
    parse_frame,
)
from shardstore.format.layout import object_digest, parse_header
from shardstore.format.manifest import ObjectRef
from shardstore.format.placement import label_fields
from shardstore.fs.memory import MemoryFileSystem
from shardstore.fsck.catalog_check import check_catalog
from shardstore.objects import check_header
from shardstore.salvage import look
from shardstore.wal.follower import LogFollower
from shardstore.wal.reader import read_bytes, read_log, read_segment
from tests.support.objects import bytes_of, make_file, make_label, reseal
from tests.support.stores import ROOT, commit, open_store
from tests.unit.fsck_support import WAL, built, change, damages, newest

ZEROS = "0" * 32
FORGED: dict[str, dict[str, Any]] = {
    "salt": {"salt": "0" * 16},
    "predecessor": {"predecessor": "1" * 32},
    "seq": {"seq": 1},
}
"""What is wrong in a frame; `seq` is added to the record's number."""


def forged(frame: Frame, **changes: Any) -> bytes:
    """The frame with another envelope or record; all that it says of itself is right."""
    record = json.loads(frame.record)
    if "seq" in changes:
        record["seq"] += changes.pop("seq")
    fields = {"salt": frame.salt, "predecessor": frame.predecessor, "log_synced": frame.log_synced}
    return build_frame(frame.magic, **{**fields, **changes}, record=canonical_json(record))


@pytest.mark.req("S3", "S11")
@pytest.mark.parametrize("what", FORGED)
def test_a_whole_frame_that_does_not_follow_is_refused(what: str) -> None:
    """By whoever opens the store, and by fsck."""
    fs = built()
    last = read_log(fs, ROOT).segment.records[-1]
    change(fs, newest(fs), last.frame.offset, forged(last.frame, **FORGED[what]))
    for mode in ("r", "r+"):
        with pytest.raises(CorruptionError) as caught:
            open_store(fs, mode)
        assert (caught.value.file, caught.value.offset) == (newest(fs), last.frame.offset)
    assert [(f.file, f.offset) for f in damages(fs)] == [(newest(fs), last.frame.offset)]


@pytest.mark.req("S4", "S13")
@pytest.mark.parametrize("what", FORGED)
def test_fsck_finds_a_frame_that_does_not_follow_in_an_old_segment(what: str) -> None:
    """No opening reads it: nobody but fsck will say so."""
    fs = built()
    path = f"{WAL}/{0:016x}.wal"
    last = read_segment(fs, ROOT, 0).records[-1]
    change(fs, path, last.frame.offset, forged(last.frame, **FORGED[what]))
    assert (path, last.frame.offset) in [(f.file, f.offset) for f in damages(fs)]


@pytest.mark.req("S3", "S8")
@pytest.mark.parametrize("what", FORGED)
def test_a_follower_takes_over_only_what_follows(what: str) -> None:
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        view = read_log(fs, ROOT)
        follower = LogFollower(fs, ROOT, str(view.segment.header["uuid"]), view)
        commit(store, 2)
        last = read_log(fs, ROOT).segment.records[-1]
        change(fs, newest(fs), last.frame.offset, forged(last.frame, **FORGED[what]))
        with pytest.raises(CorruptionError):
            follower.state()
        change(fs, newest(fs), last.frame.offset, forged(last.frame))


@pytest.mark.req("S3", "S11")
def test_a_length_whose_check_is_wrong_is_refused() -> None:
    """The frame's digest is right: a length is believed only by its own check."""
    good = build_frame(RECORD_MAGIC, salt="5" * 16, predecessor=ZEROS, log_synced=0, record=b"{}")
    assert isinstance(parse_frame(good, 0), Frame)
    before, after = good[:14] + b"00000000" + good[22:90], good[122:]
    found = parse_frame(before + digest(before, after).encode() + after, 0)
    assert isinstance(found, BadFrame) and found.what == "length check of the frame"


@pytest.mark.req("S13")
def test_fsck_finds_a_header_that_does_not_follow() -> None:
    """A segment's header names its predecessor twice; whoever opens the store reads one of them."""
    fs = built()
    header = parse_frame(read_bytes(fs, newest(fs)), 0)
    assert isinstance(header, Frame) and header.magic == HEADER_MAGIC
    record = json.loads(header.record)
    record["predecessor"]["chain"] = ZEROS
    frame = build_frame(
        HEADER_MAGIC,
        salt=header.salt,
        predecessor=header.predecessor,
        log_synced=header.log_synced,
        record=canonical_json(record),
    )
    change(fs, newest(fs), 0, frame)
    found = damages(fs)
    assert any("segment header: chain hash" in f.what and f.file == newest(fs) for f in found)


@pytest.mark.req("S11")
def test_an_object_of_another_part_is_refused() -> None:
    """The manifest names it, digest and all, for a part whose it is not."""
    data = memoryview(make_file({"w": torch.ones(3)}))
    region = data[: 8 + int.from_bytes(data[:8], "little")]
    reference = ObjectRef(0, 1, 1, len(data), object_digest(region), "0" * 16, "raw")
    names = ("block_000", "params")
    assert check_header(region, names, reference, "f", "object").label == make_label()
    with pytest.raises(CorruptionError, match="names in the header"):
        check_header(region, ("block_001", "params"), reference, "f", "object")


@pytest.mark.req("S9", "S11")
def test_an_older_header_of_the_same_part_is_refused() -> None:
    """Whoever asks for the header alone reads the file's beginning, whose digest the log has."""
    fs = MemoryFileSystem()
    with open_store(fs, format="safetensors") as store:
        commit(store, 1)
        old = read_bytes(fs, f"{ROOT}/{store._find('head').manifest['a', 'params'].file}")
        commit(store, 2)
        path = f"{ROOT}/{store._find('head').manifest['a', 'params'].file}"
        assert store.size_of("a", "params") > 0
        change(fs, path, 0, old)
        with pytest.raises(CorruptionError, match="digest of the beginning"):
            store.tensors()


@pytest.mark.req("S9", "S11")
@pytest.mark.parametrize("storage_format", ["safetensors", "pt"])
def test_a_digest_too_few_is_refused(storage_format: str) -> None:
    tensors = {"a": torch.ones(3), "b": torch.zeros(2)}
    digests = [digest(bytes_of(tensor)) for tensor in tensors.values()]
    pool = BufferPool()

    def decoded(data: bytes) -> None:
        foreign.decode(storage_format, memoryview(data), pool.acquire, file="f")[0].release()

    decoded(_foreign(storage_format, tensors, digests))
    with pytest.raises(CorruptionError, match="list of digests"):
        decoded(_foreign(storage_format, tensors, digests[:1]))


def _foreign(storage_format: str, tensors: dict[str, torch.Tensor], digests: list[str]) -> bytes:
    data = memoryview(make_file(tensors))
    header = parse_header(data[: 8 + int.from_bytes(data[:8], "little")], file="f")
    if storage_format == "pt":
        stream = io.BytesIO()
        torch.save({"__metadata__": label_fields(make_label(), digests, "pt"), **tensors}, stream)
        return stream.getvalue()
    args = (data, header.layout, header.label)
    whole = b"".join(foreign.encode(storage_format, *args, header.digests))
    begin = 8 + int.from_bytes(whole[:8], "little")
    text = whole[8:begin].replace(",".join(header.digests).encode(), ",".join(digests).encode())
    text = text.rstrip().ljust(-(-len(text.rstrip()) // 8) * 8)
    return reseal(len(text).to_bytes(8, "little") + text) + whole[begin:]


@pytest.mark.req("S9")
def test_a_conversion_that_changes_the_state_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a codec with a bug would: what is written is whole, and another tensor."""
    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
    encode = foreign.encode

    def wrong(kind: str, view: memoryview, layout: Any, label: Any, digests: Any) -> Any:
        entry = layout.tensors[0]
        view[entry.begin : entry.begin + 1] = b"\x01"
        found = [digest(view[e.begin : e.end]) for e in layout.tensors]
        return encode(kind, view, layout, label, found)

    monkeypatch.setattr(foreign, "encode", wrong)
    with (
        open_store(fs, format="safetensors") as store,
        pytest.raises(CorruptionError, match="converted state differs"),
    ):
        convert(store, lambda _count: None)


def with_a_manifest_of_another_commit() -> tuple[MemoryFileSystem, str]:
    """The object of snapshot `late`, whose path is given, is the one that its record names, and
    tells of another commit."""
    fs = built()
    view = read_log(fs, ROOT)
    early, late = (view.state.snapshots[name] for name in ("early", "late"))
    last = view.segment.records[-1]
    body = json.loads(last.frame.record)
    assert (body["type"], body["name"]) == ("snapshot", "late")
    record = canonical_json({**body, "target": early.seq, "step": early.step})
    frame = build_frame(
        RECORD_MAGIC,
        salt=last.frame.salt,
        predecessor=last.frame.predecessor,
        log_synced=last.frame.log_synced,
        record=record,
    )
    change(fs, newest(fs), last.frame.offset, frame)
    return fs, f"{ROOT}/{late.reference.file}"


@pytest.mark.req("S5", "S13")
def test_fsck_finds_a_manifest_of_another_commit() -> None:
    fs, path = with_a_manifest_of_another_commit()
    (found,) = damages(fs)
    assert "manifest of snapshot 'late' is that of another commit" in found.what
    assert found.file == path


@pytest.mark.req("S5", "S12")
def test_a_salvage_does_not_take_a_manifest_of_another_commit() -> None:
    fs, _ = with_a_manifest_of_another_commit()
    told = "\n".join(look(fs, ROOT).lines())
    assert "its manifest object is that of another commit" in told


@pytest.mark.req("S4", "S13")
def test_fsck_notes_a_catalog_of_another_history() -> None:
    fs = built()
    view = read_log(fs, ROOT)
    last = view.segment.records[-1]
    uuid = str(view.segment.header["uuid"])
    good, bad = (Mark(uuid=uuid, seq=last.seq, chain=chain) for chain in (last.chain, ZEROS))
    assert check_catalog(fs, ROOT, (good, []), view) == []
    (note,) = check_catalog(fs, ROOT, (bad, []), view)
    assert "another history" in note.what and not note.is_damage
