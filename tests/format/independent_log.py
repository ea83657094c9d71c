"""The log's half of the second reader: frames, their order, and the tail (FORMAT.md section 3).

Written from shardstore/FORMAT.md alone; imports nothing of shardstore. `independent_reader` folds
the records and reads objects. Damage raises `Damaged` with file and offset.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
import zstandard

Json = Any

BLOCK, SECTOR, WORD = 4096, 512, 8
ZERO_DIGEST = "0" * 32
HEADER_BYTES = 123


class Damaged(Exception):
    """What a reader MUST NOT hand out: the file, where in it, and what disagrees."""

    def __init__(self, file: Path, offset: int, what: str) -> None:
        super().__init__(f"{file} at {offset}: {what}")
        self.file, self.offset, self.what = file, offset, what


def digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def canonical(value: Json) -> bytes:
    """Section 1: ASCII, no spaces, sorted keys."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return text.encode("ascii")


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that is valid by itself (3.1); whether it stands in its place is judged apart."""

    magic: bytes
    offset: int
    blocks: int
    predecessor: str
    log_synced: int
    record: Json
    record_bytes: bytes

    @property
    def end(self) -> int:
        return self.offset + self.blocks * BLOCK

    @property
    def chain(self) -> str:
        return digest(bytes.fromhex(self.predecessor) + self.record_bytes)


class Segment:
    """The bytes of one segment; the end of the file counts as zeros, so some are appended.

    With `cut` (that of the successor's header) only what lies before it counts.
    """

    def __init__(self, path: Path, cut: int | None = None) -> None:
        if not path.exists():  # both there: the plain one counts (3.5)
            path = path.with_name(path.name + ".zst")
        self.path = path
        data = path.read_bytes()
        data = (unpacked(path, data) if path.suffix == ".zst" else data)[:cut]
        self.data = data + bytes(-len(data) % BLOCK)
        header = self._envelope(0, None)
        if header is None or header.magic != b"SSWH":
            raise Damaged(path, 0, "no segment header")
        self.header = header
        self.salt: bytes = header.record["salt"].encode()
        if self.data[23:39] != self.salt:
            raise Damaged(path, 23, "salt of the envelope is not that of the header's record")
        self.tail = "clean"
        self.frames = self._frames()

    def length_at(self, at: int) -> int | None:
        """Blocks of the frame that begins here, or None where its length check fails."""
        head = self.data[at : at + 22]
        if not re.fullmatch(rb"SS(FR|WH) [0-9a-f]{8} [0-9a-f]{8}", head):
            return None
        if b"%08x" % (xxhash.xxh3_64_intdigest(head[:13]) & 0xFFFFFFFF) != head[14:22]:
            return None
        return -(-(HEADER_BYTES + int(head[5:13], 16) + 1) // BLOCK)

    def _envelope(self, at: int, salt: bytes | None) -> Frame | None:
        blocks = self.length_at(at)
        if blocks is None or at + blocks * BLOCK > len(self.data):
            return None
        raw = self.data[at : at + blocks * BLOCK]
        pattern = rb"SS.. .{8} .{8} ([0-9a-f]{16}) ([0-9a-f]{32}) ([0-9a-f]{16}) ([0-9a-f]{32})\n"
        match = re.fullmatch(pattern, raw[:HEADER_BYTES], re.DOTALL)
        length = int(raw[5:13], 16)
        if match is None or digest(raw[:90] + raw[122:]).encode() != match[4]:
            return None
        fill = raw[HEADER_BYTES + length + 1 :]
        if raw[HEADER_BYTES + length] != 0x0A or (fill and fill != b" " * (len(fill) - 1) + b"\n"):
            return None
        if (salt is not None and match[1] != salt) or 0 in raw:
            return None
        record = raw[HEADER_BYTES : HEADER_BYTES + length]
        synced = int(match[3], 16)
        return Frame(raw[:4], at, blocks, match[2].decode(), synced, json.loads(record), record)

    def _frames(self) -> list[Frame]:
        """The valid frames in order (3.1, 3.2); judges what stands behind the last one."""
        header, frames = self.header.record, []
        predecessor = header["predecessor"]
        opening = self._envelope(self.header.end, self.salt)
        reason = None if opening is None else opening.record.get("reason")
        chain, seq = ZERO_DIGEST, header["first_seq"]
        if predecessor is not None:
            chain = predecessor["chain"]
            if seq != predecessor["seq"] + 1 and not (
                reason in ("publish", "salvage") and seq > predecessor["seq"]
            ):
                raise Damaged(self.path, 0, "first_seq does not follow the predecessor's last seq")
        if self.header.predecessor != chain:
            raise Damaged(self.path, 40, "the header's envelope names another predecessor")
        at = self.header.end
        while at < len(self.data):
            frame = self._envelope(at, self.salt)
            if frame is None or frame.magic != b"SSFR" or frame.predecessor != chain:
                break
            if frame.record["seq"] != seq:
                break
            frames.append(frame)
            at, chain, seq = frame.end, frame.chain, seq + 1
        if len(frames) <= header["copies"]:
            raise Damaged(self.path, at, "damage before the opening record, which was synced (3.2)")
        self._judge_tail(at, seq)
        return frames

    def _judge_tail(self, start: int, seq: int) -> None:
        """Section 3.3. A later frame can only be valid by itself: what it follows is lost.

        No interrupted append leaves a frame with a sequence number that was appended before.
        """
        if not any(self.data[start:]):
            return
        for at in range(start, len(self.data), BLOCK):
            frame = self._envelope(at, self.salt)
            if frame is not None and frame.log_synced >= seq:
                raise Damaged(self.path, start, f"frame {seq} was synced and is bad")
        at = behind = start
        while at < len(self.data):
            if not any(self.data[at : at + BLOCK]):
                at += BLOCK
                continue
            frame = self._envelope(at, self.salt) if at > start else None
            if frame and (frame.magic != b"SSFR" or frame.record["seq"] <= seq):
                frame = None
            end = frame.end if frame else self._region_end(at)
            lost = bytes(at - behind)  # zero blocks may be the lost beginning of the region
            region = lost + self.data[at:end].ljust(end - at, b"\0")  # the file's end is zeros too
            if frame is None and not looks_torn(region):
                raise Damaged(self.path, start, "bytes that no interrupted write leaves")
            at = behind = end
        self.tail = "torn"

    def _region_end(self, at: int) -> int:
        blocks = self.length_at(at)
        if blocks is not None:
            return at + blocks * BLOCK
        end = at + BLOCK
        while end < len(self.data) and any(self.data[end : end + BLOCK]):
            end += BLOCK
        return end


def unpacked(path: Path, data: bytes) -> bytes:
    """Section 3.5: one zstd frame with content size and checksum, nothing behind it."""
    try:
        parameters = zstandard.get_frame_parameters(data)
        if not parameters.has_checksum or parameters.content_size > 2**30:
            raise Damaged(path, 0, "a frame without checksum or with too large a size")
        frame = zstandard.ZstdDecompressor().decompressobj()
        content = frame.decompress(data)
    except zstandard.ZstdError as error:
        raise Damaged(path, 0, str(error)) from error
    if not frame.eof or frame.unused_data or len(content) != parameters.content_size:
        raise Damaged(path, 0, "not exactly one frame")
    return content


def looks_torn(region: bytes) -> bool:
    """Rule 4 of 3.3: words all zero or free of zeros, and a zero sector or a zero last word."""
    words = (region[at : at + WORD] for at in range(0, len(region), WORD))
    if not all(0 not in word or not any(word) for word in words):
        return False
    sectors = (region[at : at + SECTOR] for at in range(0, len(region), SECTOR))
    return not any(region[-WORD:]) or any(not any(sector) for sector in sectors)
