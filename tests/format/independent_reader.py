"""A second reader of the format, written from shardstore/FORMAT.md alone.

It imports nothing of shardstore: what it reads is what the page says, so a store that it cannot
read, or reads differently, means that the page or the code is wrong. It only reads, knows version
1, and holds whole files in memory. Section numbers below are those of the page. Damage raises
`Damaged` with file and offset; the class `IndependentReader` is what tests use.
"""

import json
import re
from pathlib import Path

import xxhash

from tests.format.independent_formats import (
    ITEM_BYTES,
    Tensor,
    archive_tensors,
    check_label,
    pt_tensors,
    safetensors_tensors,
)
from tests.format.independent_log import (
    BLOCK,
    HEADER_BYTES,
    Damaged,
    Json,
    Segment,
    canonical,
    digest,
)

Reference = list[Json]
"""`[slot, epoch, counter, size, digest, head, format]`, section 4."""


class State:
    """Section 4.1: the state of an opening, changed by each record after it.

    A record that contradicts the state raises whatever the dictionaries raise.
    """

    def __init__(self, state: Json) -> None:
        self.base: Json = state["base"]
        self.origin: Json = state["origin"]
        self.branches: dict[str, list[Json]] = dict(state["branches"])
        self.commits: dict[int, Json] = {commit["seq"]: commit for commit in state["commits"]}
        self.current: str = state["current"]
        self.lines: list[list[Json]] = list(state["lines"])
        self.retention: Json = state["retention"]
        self.slots: dict[int, int] = {slot: count for slot, count in state["slots"]}
        self.snapshots: dict[str, Json] = {row["name"]: row for row in state["snapshots"]}
        self.undo: list[Json] = [dict(row) for row in state["undo"]]

    def apply(self, record: Json, chain: str) -> None:
        getattr(self, "_" + record["type"])(record, chain)
        for seq in record.get("unkeep", []):
            self.commits.pop(seq)
        for seq in record.get("forget", []):
            entry = next(row for row in self.undo if row["seq"] == seq)
            self.undo.remove(entry)
            self._count(entry["slots"], -1)

    def _commit(self, record: Json, chain: str) -> None:
        parent = self.commits[record["parent"]]["manifest"] if record["parent"] is not None else []
        manifest = {(shard, part): reference for shard, part, reference in parent}
        for shard, part in record["remove"]:
            del manifest[shard, part]
        manifest.update({(shard, part): reference for shard, part, reference in record["put"]})
        rows = [[shard, part, reference] for (shard, part), reference in sorted(manifest.items())]
        if digest(canonical(rows)) != record["manifest_digest"]:
            raise ValueError(f"record {record['seq']}: the manifest's digest disagrees")
        fields = ("blobs", "branch", "line", "metadata", "parent", "seq", "step", "time", "txn")
        self.commits[record["seq"]] = {
            **{field: record[field] for field in fields}, "chain": chain, "manifest": rows,
        }  # fmt: skip
        self.branches[record["branch"]] = [record["seq"], record["line"]]

    def _snapshot(self, record: Json, chain: str) -> None:
        fields = ("archived", "chain", "line", "name", "reference", "step", "time")
        row = {**{field: record[field] for field in fields}, "seq": record["target"]}
        self.snapshots[record["name"]] = row
        self._count(record["slots"], 1)

    def _archive(self, record: Json, chain: str) -> None:
        self.snapshots[record["name"]] |= {"reference": record["reference"], "archived": True}
        self._count(record["slots"], 1)
        self._count(record["released"], -1)

    def _branch(self, record: Json, chain: str) -> None:
        if record["name"] in (*self.branches, *self.snapshots):
            raise ValueError(f"record {record['seq']}: the name is taken")
        self._stand(record["name"], record["commit"], record["new_line"])

    def _base(self, record: Json, chain: str) -> None:
        self.base = record["base"]

    def _switch(self, record: Json, chain: str) -> None:
        self._remember(record, self.current, commit=self.branches[self.current][0])
        assert record["name"] in self.branches
        self.current = record["name"]

    def _delete(self, record: Json, chain: str) -> None:
        name = record["name"]
        if name in self.snapshots:
            row = self.snapshots.pop(name)
            self._remember(record, name, snapshot=row, slots=record["slots"])
        else:
            assert name != self.current and record["slots"] == []
            self._remember(record, name, commit=self.branches.pop(name)[0])

    def _rewind(self, record: Json, chain: str) -> None:
        commit, branch = record["commit"], record["branch"]
        self._remember(record, branch, commit=self.branches[branch][0])
        self._stand(branch, commit, record["new_line"])

    def _stand(self, branch: str, commit: Json, new_line: list[Json]) -> None:
        self.commits[commit["seq"]] = commit
        self.lines.append(new_line)
        self.branches[branch] = [commit["seq"], new_line[0]]

    def _undo(self, record: Json, chain: str) -> None:
        entry = next(row for row in self.undo if row["seq"] == record["entry"])
        name, commit, snapshot = entry["name"], entry["commit"], entry["snapshot"]
        moved = self.current if entry["op"] == "switch" else name
        left = self.branches[moved][0] if entry["op"] != "delete" else None
        if snapshot:
            self.snapshots[name] = snapshot
        elif entry["op"] == "switch":
            assert name in self.branches
            self.current = name
        else:
            self._stand(name, self.commits[commit], record["new_line"])
        entry.update(commit=left, snapshot=None, slots=[], done=True)

    def _retention(self, record: Json, chain: str) -> None:
        self.retention = record["retention"]

    def _sync(self, record: Json, chain: str) -> None:
        """Changes nothing: what is before it is durable."""

    def _unkeep(self, record: Json, chain: str) -> None:
        """What it names goes, as it does with every record."""

    def _remember(self, record: Json, name: str, **kept: Json) -> None:
        entry = {"seq": record["seq"], "op": record["type"], "name": name, "done": False}
        self.undo.append({"commit": None, "snapshot": None, "slots": [], **entry, **kept})

    def same_as(self, summary: Json) -> bool:
        """Whether an opening states this. Lines that no ref can ask about it may leave out."""
        mine = {
            "branches": self.branches,
            "commits": [self.commits[seq] for seq in sorted(self.commits)],
            "current": self.current,
            "retention": self.retention,
            "base": self.base,
            "origin": self.origin,
            "slots": [[slot, self.slots[slot]] for slot in sorted(self.slots)],
            "snapshots": [self.snapshots[name] for name in sorted(self.snapshots)],
            "undo": self.undo,
        }
        rest = {key: value for key, value in summary.items() if key != "lines"}
        return canonical(rest) == canonical(mine) and all(
            line in self.lines for line in summary["lines"]
        )

    def _count(self, slots: list[int], by: int) -> None:
        for slot in slots:
            self.slots[slot] = self.slots.get(slot, 0) + by
            if not self.slots[slot]:
                del self.slots[slot]


def opening(segment: Segment) -> Json:
    """The record behind the copies, which are in its state already (3.2)."""
    record = segment.frames[segment.header.record["copies"]].record
    if record["type"] != "open":
        raise Damaged(segment.path, segment.header.end, "no opening record behind the copies")
    return record


def fold(segment: Segment) -> State:
    """The state after a segment's records (section 6)."""
    state = State(opening(segment)["state"])
    for frame in segment.frames[segment.header.record["copies"] + 1 :]:
        state.apply(frame.record, frame.chain)
    return state


class IndependentReader:
    """A store directory at the moment of construction. The steps are those of section 6."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uuid = self._check_store()
        names = {path.name[:20] for path in (root / "wal").glob("*.wal*")}
        self.segments = [root / "wal" / name for name in sorted(names)]
        if not self.segments or not self.segments[-1].exists():
            raise Damaged(root / "wal", 0, "no segment, or the newest is a compressed one (3.5)")
        self.segment = Segment(self.segments[-1])
        header = self.segment.header.record
        if header["version"] != 1:
            raise Damaged(self.segment.path, HEADER_BYTES, "another version than STORE")
        if header["uuid"] != self.uuid or header["index"] != int(self.segments[-1].stem, 16):
            raise Damaged(self.segment.path, HEADER_BYTES, "header of another store or segment")
        self.state = fold(self.segment)
        self.last_seq: int = self.segment.frames[-1].record["seq"]

    def _check_store(self) -> str:
        path = self.root / "STORE"
        text = path.read_bytes()
        body, _, last = text[:-1].rpartition(b"\n")
        body += b"\n"
        if last != b"digest " + digest(body).encode() or text[-1:] != b"\n":
            raise Damaged(path, len(body), "digest")
        version = re.match(rb"shardstore\nversion (\d+)\n", body)
        if version is None or int(version[1]) != 1:
            raise Damaged(path, 0, "another version or no shardstore")
        match = re.fullmatch(rb"shardstore\nversion 1\nuuid ([0-9a-f]{32})\n", body)
        if match is None:
            raise Damaged(path, 0, "lines")
        return match[1].decode()

    def commit(self, name: str = "head") -> Json | None:
        """The descriptor of the current branch's head, or of a branch or snapshot."""
        if name in self.state.snapshots:
            row = self.state.snapshots[name]
            commit = json.loads(self.load(row["reference"])["commit"].data)
            if [commit[key] for key in ("seq", "chain", "step", "line")] != [
                row[key] for key in ("seq", "chain", "step", "line")
            ]:
                raise Damaged(self.object_path(row["reference"]), 0, "another commit's manifest")
            return commit
        seq, _ = self.state.branches[self.state.current if name == "head" else name]
        return None if seq is None else self.state.commits[seq]

    def object_path(self, reference: Reference) -> Path:
        return self.root / "objects" / f"{reference[0]:06x}.{reference[6]}"

    def load(self, reference: Reference) -> dict[str, Tensor]:
        """Section 5: verifies everything that the file holds; returns the tensors by name."""
        path, storage_format = self.object_path(reference), reference[6]
        if not path.exists():
            raise Damaged(path, 0, "missing")
        data = path.read_bytes()
        if storage_format == "raw":
            return self._load_raw(path, data, reference)
        _, _, _, size, expected, head = reference[:6]
        if len(data) != size or digest(data) != expected:
            raise Damaged(path, 0, "length or content is not that of the reference")
        if xxhash.xxh3_64_hexdigest(data[:262_144]) != head:
            raise Damaged(path, 0, "beginning is not that of the reference")
        if storage_format == "archive":
            about, tensors = self._load_archive(path, data, reference)
        else:
            read = {"safetensors": safetensors_tensors, "pt": pt_tensors}[storage_format]
            about, tensors = read(path, data)
        check_label(path, about, reference, self.uuid)
        return {tensor.name: tensor for tensor in tensors}

    def _load_archive(
        self, path: Path, data: bytes, reference: Reference
    ) -> tuple[Json, list[Tensor]]:
        """Section 5.6, with the base that the reference names."""
        (base,) = reference[7:] or [None]
        named, tensors = None, {}
        if base is not None:
            if len(base) != 7 or base[6] not in ("raw", "archive"):
                raise Damaged(path, 0, "a base that is none")
            named = {"digest": base[4], "write": f"{base[1]:016x}-{base[2]:016x}"}
            tensors = self.load(base)
        return archive_tensors(path, data, named, tensors)

    def _load_raw(self, path: Path, data: bytes, reference: Reference) -> dict[str, Tensor]:
        """Section 5.1: verifies header region, tensors and padding."""
        _, _, _, size, expected, head, _ = reference
        start = 8 + int.from_bytes(data[:8], "little")
        region = data[:start]
        if start % BLOCK or len(data) != size or digest(region) != expected:
            raise Damaged(path, 0, "length or header region is not that of the reference")
        if xxhash.xxh3_64_hexdigest(data[start : start + 262_144]) != head:
            raise Damaged(path, start, "beginning of the data is not that of the reference")
        header = json.loads(region[8:])
        about = header.pop("__metadata__")
        check_label(path, about, reference, self.uuid)
        own = about["header"].encode()
        if region.count(own) != 1 or digest(region.replace(own, b"0" * 32)) != about["header"]:
            raise Damaged(path, 0, "digest of the header region in itself")
        digests = about["digests"].split(",") if about["digests"] else []
        tensors = self._tensors(path, data[start:], header, digests)
        return {tensor.name: tensor for tensor in tensors}

    def _tensors(self, path: Path, data: bytes, header: Json, digests: list[str]) -> list[Tensor]:
        rows = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        edges = [0, *(edge for _, row in rows for edge in row["data_offsets"]), len(data)]
        if any(edges[at] != edges[at + 1] for at in range(0, len(edges), 2)) or len(data) % BLOCK:
            raise Damaged(path, 0, "tensors and padding do not fill the data")
        found: list[Tensor] = []
        start = path.stat().st_size - len(data)
        for name, row in rows:
            begin, end = row["data_offsets"]
            raw = data[begin:end]
            count = ITEM_BYTES[row["dtype"]]
            for extent in row["shape"]:
                count *= extent
            if count != len(raw):
                raise Damaged(path, start + begin, f"{name}: bytes disagree with dtype and shape")
            if re.fullmatch(r"__pad_[0-9]+__", name):
                if any(raw):
                    raise Damaged(path, start + begin, "padding that is not zero")
                continue
            if begin % 64 or len(found) == len(digests) or digest(raw) != digests[len(found)]:
                raise Damaged(path, start + begin, f"tensor {name}")
            found.append(Tensor(name, row["dtype"], row["shape"], raw, digests[len(found)]))
        return found

    def parts(self, commit: Json) -> dict[tuple[str, str], dict[str, Tensor]]:
        return {(shard, part): self.load(ref) for shard, part, ref in commit["manifest"]}

    def state_digest(self, commit: Json | None) -> str:
        """Section 5.5."""
        rows = [
            [shard, part, tensor.name, tensor.dtype, tensor.shape, tensor.digest]
            for (shard, part), tensors in (self.parts(commit) if commit else {}).items()
            for tensor in tensors.values()
        ]
        return digest(b"".join(canonical(row) + b"\n" for row in sorted(rows)))

    def check_history(self) -> int:
        """Follows the predecessors back to the first segment (3.2); the number of segments."""
        newer, count = self.segment, 1
        while (cut := newer.header.record["predecessor"]) is not None:
            older = Segment(self.root / "wal" / f"{cut['index']:016x}.wal", cut["cut"])
            last = older.frames[-1]
            if (last.end, last.chain, last.record["seq"]) != (cut["cut"], cut["chain"], cut["seq"]):
                raise Damaged(newer.path, 0, "predecessor's end is not where the header says")
            state = fold(older)
            for frame in newer.frames[: newer.header.record["copies"]]:
                state.apply(frame.record, frame.chain)
            elsewhere = opening(newer)["reason"] in ("clone", "publish", "salvage")  # 4.2, 4.3
            if not elsewhere and not state.same_as(opening(newer)["state"]):
                raise Damaged(newer.path, newer.header.end, "the opening states another state")
            newer, count = older, count + 1
        return count
