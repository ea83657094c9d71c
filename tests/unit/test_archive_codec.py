"""Archived objects as bytes: packing and unpacking, hostile files, files that another hand made.

Whatever the bytes are, decoding raises CorruptionError or gives the tensors that were declared. The
caller compares the file's digest first; here that is left out, as if a forger had got past it.
"""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shardstore.codecs import archive, foreign, packing
from shardstore.codecs.archive import Base
from shardstore.errors import CorruptionError
from shardstore.format.archive_file import DELTA, PACKED, PIECE_BYTES, PLAIN
from shardstore.format.layout import parse_header
from shardstore.format.manifest import ObjectRef
from shardstore.workers import InlineWorkers, make_workers
from tests.support.objects import DTYPES, bytes_of, make_file, make_label, reseal, tensor_of

WORKERS = InlineWorkers()
REFERENCE = ObjectRef(7, 1, 5, 4096, "d" * 32, "0" * 16, "raw")


def trained(seed: int, count: int = 40_000) -> torch.Tensor:
    """Numbers as weights have them: the exponents are alike, the rest is noise."""
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 0.02


def near(tensor: torch.Tensor) -> torch.Tensor:
    """The same some steps later: the high bytes are as they were."""
    return tensor * (1 + 1e-5 * trained(5, tensor.numel()).reshape(tensor.shape))


TENSORS = {
    "w": trained(1).reshape(200, 200),
    "noise": tensor_of("U8", (3000,), 2),
    "none": tensor_of("F32", (0, 3), 2),
    "n": tensor_of("I64", (), 3),
    "zeros": torch.zeros(1000, dtype=torch.float64),
}
LATER = {**TENSORS, "w": near(TENSORS["w"])}


def parsed(tensors: dict[str, torch.Tensor]) -> tuple[memoryview, Any]:
    data = memoryview(make_file(tensors))
    return data, parse_header(data[: 8 + int.from_bytes(data[:8], "little")], file="f")


def base_of(tensors: dict[str, torch.Tensor]) -> Base:
    data, header = parsed(tensors)
    return Base(REFERENCE, header.layout, data)


def encoded(
    tensors: dict[str, torch.Tensor] = TENSORS,
    base: dict[str, torch.Tensor] | None = None,
    level: int = 1,
    workers: Any = WORKERS,
) -> bytes:
    data, header = parsed(tensors)
    other = None if base is None else base_of(base)
    pieces, used = archive.encode(
        data, header.layout, header.label, header.digests, other, level, workers
    )
    assert not used or base is not None
    return b"".join(pieces)


def decoded(
    data: bytes, base: dict[str, torch.Tensor] | None = None, workers: Any = WORKERS
) -> dict[str, bytes]:
    view = memoryview(data)
    header = archive.parse(view, file="f")
    assert header is not None
    archive.check_frames(view, header, file="f")
    memory = memoryview(bytearray(b"\xee" * header.object.layout.total_bytes))
    other = None if base is None else base_of(base)
    archive.decode(view, header, other, memory, workers, file="f")
    assert header.object.label == make_label()
    layout = header.object.layout
    assert not any(any(memory[begin:end]) for begin, end in layout.pads)
    return {e.spec.name: bytes(memory[e.begin : e.end]) for e in layout.tensors}


def members_of(data: bytes) -> dict[str, Any]:
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def methods(data: bytes) -> list[int]:
    return [method for _, method, _ in members_of(data)["pieces"]]


def rewritten(data: bytes, change: Any, frames: bytes | None = None) -> bytes:
    """With changed members, and a digest of their own that is right."""
    begin = 8 + int.from_bytes(data[:8], "little")
    members = members_of(data)
    change(members)
    text = json.dumps(members, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    header = reseal(len(text).to_bytes(8, "little") + text)
    return header + (data[begin:] if frames is None else frames)


def content(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: bytes_of(tensor) for name, tensor in tensors.items()}


@pytest.mark.req("S20")
def test_an_object_comes_back_and_takes_less_room() -> None:
    data = encoded()
    assert decoded(data) == content(TENSORS)
    assert methods(data) == [PACKED, PLAIN, PLAIN, PACKED]  # noise and a single number do not pack
    assert len(data) < 0.92 * sum(tensor.nbytes for tensor in TENSORS.values())
    assert decoded(encoded({})) == {}


@pytest.mark.req("S20")
def test_a_difference_is_taken_where_it_pays_and_only_there() -> None:
    alone, against = encoded(LATER), encoded(LATER, TENSORS)
    assert decoded(against, TENSORS) == content(LATER)
    # noise is the same in both: the difference is zeros; zeros do not get better
    assert methods(against) == [DELTA, DELTA, PLAIN, PACKED]
    assert len(against) < 0.7 * len(alone)
    assert members_of(against)["base"] == {"digest": "d" * 32, "write": f"{1:016x}-{5:016x}"}
    one = {"n": torch.arange(500), "w": TENSORS["w"]}  # only a small part of it pays
    assert (
        members_of(encoded(one, {"n": torch.arange(500), "w": trained(9).reshape(200, 200)}))[
            "base"
        ]
        is None
    )
    far = {"w": trained(9).reshape(200, 200)}
    assert methods(encoded({"w": LATER["w"]}, far)) == [PACKED]
    assert members_of(encoded({"w": LATER["w"]}, far))["base"] is None


@pytest.mark.req("S20")
def test_a_base_of_another_kind_is_none() -> None:
    for other in ({"w": TENSORS["w"].reshape(-1)}, {"w": TENSORS["w"].view(torch.int32)}, {}):
        assert DELTA not in methods(encoded(LATER, other))


@pytest.mark.req("S20")
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_in_several_pieces(dtype: str) -> None:
    size = torch.empty(0, dtype=DTYPES[dtype]).element_size()
    tensor = tensor_of(dtype, (PIECE_BYTES // size + 17,), 4)
    if dtype != "BOOL":  # random bits in every second element, so that some of it packs
        tensor[::2] = 0
    changed = tensor.clone()
    changed[5] = 1
    workers = make_workers(3)
    try:
        alone = encoded({"t": tensor}, workers=workers)
        against = encoded({"t": changed}, {"t": tensor}, workers=workers)
        assert len(methods(alone)) == 2 and DELTA in methods(against)
        assert decoded(alone, workers=workers) == content({"t": tensor})
        assert decoded(against, {"t": tensor}, workers) == content({"t": changed})
    finally:
        workers.close()


@pytest.mark.req("S20")
def test_higher_levels_read_the_same() -> None:
    for level in (1, 9, 19):
        assert decoded(encoded(level=level)) == content(TENSORS)


@pytest.mark.req("S11", "S20")
@given(st.data())
def test_a_changed_file_is_refused_and_the_piece_named(data: st.DataObject) -> None:
    good = encoded(LATER, TENSORS)
    begin = 8 + int.from_bytes(good[:8], "little")
    in_frames = data.draw(st.booleans())
    at = data.draw(st.integers(begin, len(good) - 1) if in_frames else st.integers(0, begin - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    found = list(foreign.find_damage("archive", memoryview(bad), file="f"))
    assert len(found) == 1 and found[0].what.startswith("piece 0 of tensor '") == in_frames
    try:
        assert decoded(bytes(bad), TENSORS) == content(LATER)  # a bit that zstd does not look at
        assert in_frames
    except CorruptionError as error:
        assert error.file == "f" and ("tensor" in error.what or not in_frames)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decoded(data)
    for error in foreign.find_damage("archive", memoryview(data), file="f"):
        assert error.file == "f"


@pytest.mark.req("S11", "S20")
def test_a_file_that_is_cut_off_is_refused_everywhere() -> None:
    good = encoded()
    for end in [*range(0, len(good), 997), len(good) - 1]:
        with pytest.raises(CorruptionError):
            decoded(good[:end])
    with pytest.raises(CorruptionError, match="length is wrong"):
        decoded(good + b"\0")


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(more=1),
        lambda m: m.update(base={"digest": "d" * 32, "write": f"{1:016x}-{5:016x}"}),
        lambda m: m.update(base=5),
        lambda m: m.update(base={"digest": "d" * 31, "write": ""}),
        lambda m: m.update(tensors=7),
        lambda m: m["tensors"].pop(),
        lambda m: m["tensors"].append(m["tensors"][0]),
        lambda m: m["tensors"][0].__setitem__(0, "__pad_0__"),
        lambda m: m["tensors"][0].__setitem__(0, 3),
        lambda m: m["tensors"][0].__setitem__(1, "F33"),
        lambda m: m["tensors"][0].__setitem__(1, "F64"),
        lambda m: m["tensors"][0].__setitem__(2, [-200, -200]),
        lambda m: m["tensors"][0].__setitem__(2, [2**62, 2**62]),
        lambda m: m["tensors"][0].__setitem__(2, [2**40]),
        lambda m: m["pieces"].pop(),
        lambda m: m["pieces"].append([1, 0, "0" * 16]),
        lambda m: m["pieces"][0].__setitem__(0, -1),
        lambda m: m["pieces"][0].__setitem__(0, 2**40),
        lambda m: m["pieces"][0].__setitem__(0, True),
        lambda m: m["pieces"][0].__setitem__(1, 3),
        lambda m: m["pieces"][0].__setitem__(1, DELTA),
        lambda m: m["pieces"][0].__setitem__(1, PLAIN),
        lambda m: m["pieces"][0].__setitem__(2, "x" * 16),
        lambda m: m["__metadata__"].update(format="shardstore.raw.1"),
        lambda m: m["__metadata__"].update(digests=""),
    ],
)
def test_headers_that_no_store_wrote_are_refused(change: Any) -> None:
    """With a digest of their own that is right."""
    good = encoded()
    assert decoded(rewritten(good, lambda members: None)) == content(TENSORS)
    with pytest.raises(CorruptionError):
        decoded(rewritten(good, change))


@pytest.mark.req("S11", "S20")
def test_a_frame_that_grows_without_end_takes_no_room() -> None:
    """A frame says one size and holds another, or says what no piece has."""
    tensors = {"w": torch.zeros(1 << 18)}
    good = encoded(tensors)
    huge = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 << 20))
    lying = bytearray(zstandard.ZstdCompressor().compress(bytes(64 << 20)))
    at = lying.index((64 << 20).to_bytes(4, "little"))
    lying[at : at + 4] = (1 << 20).to_bytes(4, "little")
    twice = zstandard.ZstdCompressor().compress(bytes(1 << 20)) * 2
    tracemalloc.start()
    try:
        for frame in (huge, stream, bytes(lying), twice):
            size = len(frame)
            bad = rewritten(good, lambda m, n=size: m["pieces"][0].__setitem__(0, n), frame)
            tracemalloc.reset_peak()
            with pytest.raises(CorruptionError, match="tensor 'w'"):
                decoded(bad)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_declared_giant_without_frames_is_refused_before_memory_is_made() -> None:
    """Every piece is declared, and each frame is one of a small piece."""
    frame = zstandard.ZstdCompressor().compress(b"x" * 100)
    row = [len(frame), PACKED, "0" * 16]
    count = 5000

    def change(members: dict[str, Any]) -> None:
        members["tensors"] = [["w", "U8", [PIECE_BYTES * count]]]
        members["pieces"] = [row] * count
        members["__metadata__"]["digests"] = "0" * 32

    bad = memoryview(rewritten(encoded(), change, frame * count))
    header = archive.parse(bad, file="f")
    assert header is not None and header.object.layout.total_bytes > 20e9
    with pytest.raises(CorruptionError, match="cannot be unpacked"):
        archive.check_frames(bad, header, file="f")


@pytest.mark.req("S11", "S20")
def test_the_wrong_base_never_gives_tensors() -> None:
    data = encoded(LATER, TENSORS)
    for wrong in ({**TENSORS, "w": TENSORS["w"] + 1}, {"noise": TENSORS["noise"]}, {}, None):
        with pytest.raises(CorruptionError):
            decoded(data, wrong)


def test_shuffling_is_what_the_format_says() -> None:
    elements = np.arange(4, dtype="<u4") * 0x01010101
    elements = np.tile(elements, 300)
    piece = memoryview(elements.tobytes())
    method, frame, _ = packing.pack(piece, None, 4, 1)
    assert method == PACKED
    content = zstandard.ZstdDecompressor().decompress(frame)
    assert content == b"".join(bytes(piece[byte::4]) for byte in range(4))
