"""Makes a store and writes down, beside it, what it has to hold.

Nothing of what is written down is read back from the store: tensors come from a formula
(`content`), and what names, moves and removals do to heads and parts is followed here. Only the
sequence numbers are what the calls return when they are made.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from shardstore import Retention, Settings, Store
from shardstore.format.placement import TensorSpec
from tests.format.golden_fs import ROOT, GoldenFileSystem

Part = tuple[str, str]
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]
"""dtype and shape by name."""
Expected = dict[str, Any]

SETTINGS: dict[str, Any] = {"prewrite_bytes": 4096, "host_budget_bytes": 0}
_PERIOD = 3584
_CHANGED = 16
"""Every so many bytes one depends on the step: steps differ by a little, as in training."""


def content(step: int, part: Part, name: str, spec: TensorSpec) -> bytes:
    """The formula: the bytes of a tensor that a step writes."""
    own = zlib.crc32("/".join((*part, name)).encode())
    row = bytearray((i * i // 7 + 13 * i + own) % 256 for i in range(_PERIOD))
    for i in range(0, _PERIOD, _CHANGED):
        row[i] = (row[i] + 11 * step) % 256
    if spec.dtype == "BOOL":
        row = bytearray(value % 2 for value in row)
    return bytes(row) * (spec.nbytes // _PERIOD) + bytes(row[: spec.nbytes % _PERIOD])


class Script:
    """One store, its changes, and what they lead to."""

    def __init__(self, fs: GoldenFileSystem, name: str) -> None:
        self.fs = fs
        self.root = f"{ROOT}/{name}"
        self.heads: dict[str, Expected | None] = {"main": None}
        self.current = "main"
        self.snapshots: dict[str, Expected] = {}
        self.archived: set[str] = set()
        self.changes: list[list[str]] = []
        """What `undo` knows of, oldest first: operation and name, "done" where it was undone."""
        self.history: list[str] = []
        """Records that are work, as `type` or `commit step`."""
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    @property
    def head(self) -> Expected:
        head = self.heads[self.current]
        assert head is not None
        return head

    def open(self, storage_format: str = "raw", **settings: Any) -> None:
        self._tick()
        chosen = Settings(**{**SETTINGS, **settings})
        self._store = Store.open(self.root, "a", fs=self.fs, settings=chosen, format=storage_format)

    def close(self) -> None:
        self._tick()
        self.store.close()

    def commit(
        self,
        step: int,
        parts: Mapping[Part, Tensors],
        *,
        remove: Iterable[Part] = (),
        metadata: Mapping[str, Any] | None = None,
        blobs: Mapping[str, bytes] | None = None,
    ) -> Expected:
        """Writes `parts`, removes some, keeps the rest."""
        self._tick()
        head = self.heads[self.current]
        holds: dict[Part, Any] = {} if head is None else dict(head["parts"])
        with self.store.begin(step) as txn:
            for part, tensors in parts.items():
                specs = [TensorSpec(name=n, dtype=d, shape=s) for n, (d, s) in tensors.items()]
                checkout = txn.blank(*part, specs)
                holds[part] = []
                for spec in specs:
                    data = content(step, part, spec.name, spec)
                    checkout.raw(spec.name)[:] = data
                    found = hashlib.sha256(data).hexdigest()
                    holds[part].append([spec.name, spec.dtype, found, *spec.shape])
                txn.stage(*part, checkout, donate=True)
            for part in remove:
                txn.remove(*part)
                del holds[part]
            txn.keep_rest()
            made = txn.commit(metadata=metadata, blobs=blobs)
        self.history.append(f"commit {step}")
        commit = {
            "seq": made.seq,
            "step": step,
            "branch": self.current,
            "time": self.fs.moment,
            "metadata": dict(metadata or {}),
            "blobs": {name: value.hex() for name, value in (blobs or {}).items()},
            "parts": holds,
        }
        self.heads[self.current] = commit
        return commit

    def snapshot(self, name: str) -> None:
        self._tick()
        self.store.snapshot(name)
        self.snapshots[name] = {**self.head, "named": self.fs.moment}
        self.history.append("snapshot")

    def archive(self, name: str, **how: Any) -> None:
        self._tick()
        self.store.archive(name, **how)
        self.archived.add(name)
        self.history.append("archive")

    def branch(self, name: str) -> None:
        self._tick()
        self.store.branch(name)
        self.heads[name] = self.head
        self.history.append("branch")

    def switch(self, name: str) -> None:
        self._tick()
        self.store.switch(name)
        self._leave("switch", self.current)
        self.current = name

    def rewind(self, name: str) -> None:
        self._tick()
        self.store.rewind(name)
        self._leave("rewind", self.current)
        self.heads[self.current] = self.snapshots[name]

    def delete(self, name: str) -> None:
        self._tick()
        self.store.delete(name)
        self._leave("delete", name)
        (self.snapshots if name in self.snapshots else self.heads).pop(name)

    def undo_rewind(self, head: Expected) -> None:
        """Undo the newest change, a rewind, which left that commit."""
        self._tick()
        self.store.undo()
        op, name = self.changes[-1]
        assert op == "rewind"
        self.changes[-1].append("done")
        self.heads[name] = head
        self.history.append("undo")

    def retain(self, retention: Retention) -> None:
        self._tick()
        self.store.set_retention(retention)
        self.history.append("retention")

    def collect(self) -> None:
        """What the retention does not ask for goes, by a record of its own; it has to be some."""
        self._tick()
        assert self.store.gc(everything=True).unkept
        self.history.append("unkeep")

    def publish(self, name: str) -> None:
        self._tick()
        self.store.publish(f"{ROOT}/{name}")

    def state(self, *kept: Expected) -> Expected:
        """What the store has to show now. `kept` are its commits that can be named by number."""
        return {
            "uuid": self.store.uuid,
            "current": self.current,
            "heads": {
                name: None if head is None else head["seq"]
                for name, head in sorted(self.heads.items())
            },
            "snapshots": {
                name: {
                    "archived": name in self.archived,
                    "time": commit["named"],
                    "commit": spelled(commit),
                }
                for name, commit in sorted(self.snapshots.items())
            },
            "kept": [spelled(commit) for commit in sorted(kept, key=lambda one: int(one["seq"]))],
            "undoable": [change for change in self.changes[-3:] if len(change) == 2],
            "history": list(self.history),
        }

    def _leave(self, op: str, name: str) -> None:
        self.changes.append([op, name])
        self.history.append(op)

    def _tick(self) -> None:
        self.fs.moment += 1.5


def spelled(commit: Expected) -> Expected:
    """A commit as JSON can say it."""
    parts = [
        {"shard": part[0], "part": part[1], "tensors": tensors}
        for part, tensors in sorted(commit["parts"].items())
    ]
    return {**{key: commit[key] for key in commit if key != "named"}, "parts": parts}
