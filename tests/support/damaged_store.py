"""A small store after a clean close, and the means to damage it and put it back.

Nothing here judges: `read` opens and loads everything that the store names, and compares it with
what was written when it was healthy. Files are changed in place, so that the store stays the one
that its log knows, and no copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardstore import Ref, Store
from shardstore.context import Settings
from shardstore.errors import CorruptionError

SETTINGS = Settings(prewrite_bytes=16384)
Bytes = dict[tuple[str, str, str], bytes]
"""(shard, part, tensor) -> the tensor's bytes"""


def tensors(step: int) -> dict[str, Any]:
    """Sizes that leave gaps of padding between tensors and behind the last."""
    draw = np.random.default_rng(step)
    return {
        "w": draw.integers(1, 255, 100, dtype=np.uint8),
        "b": draw.standard_normal(25).astype(np.float32),
        "none": np.zeros((0, 2), np.float16),
    }


def everything(store: Store, ref: Ref) -> Bytes:
    found: Bytes = {}
    for shard, part in store.commit_of(ref).parts:
        with store.load(shard, part, ref) as loaded:
            found.update({(shard, part, name): bytes(loaded.raw(name)) for name in loaded.names})
    return found


@dataclass(slots=True)
class HealthyStore:
    """A closed store of three openings, and what it holds.

    The newest segment begins with the state of step 6 and goes on with steps 7 and 8; step 3 is
    the snapshot `kept`; the part `still` is as step 1 wrote it.
    """

    root: Path
    files: dict[Path, bytes] = field(default_factory=dict)
    commits: dict[int, Bytes] = field(default_factory=dict)
    """seq -> its tensors"""
    ids: dict[int, str] = field(default_factory=dict)
    head: int = 0
    kept: int = 0
    older_slots: dict[Path, set[bytes]] = field(default_factory=dict)
    """Every content that a slot's file had before the last."""

    @classmethod
    def make(cls, root: Path) -> HealthyStore:
        made = cls(root)
        for steps in ((1, 2, 3), (4, 5, 6), (7, 8)):
            with Store.open(root, "a", settings=SETTINGS) as store:
                for step in steps:
                    made._commit(store, step)
                if 3 in steps:
                    made.kept = store.snapshot("kept").seq
        made.files = made._read_files()
        for path, contents in made.older_slots.items():
            contents.discard(made.files[path])
        return made

    def _commit(self, store: Store, step: int) -> None:
        with store.begin(step=step) as txn:
            txn.stage("a", "params", tensors(step))
            txn.stage("b", "params", tensors(100 + step))
            if step == 1:
                txn.stage("still", "p", tensors(0))
            txn.keep_rest()
            self.head = txn.commit(metadata={"step": step}).seq
        assert store.head is not None
        self.commits[self.head], self.ids[self.head] = everything(store, Ref.head), store.head.id
        for path in self.root.glob("objects/*"):
            self.older_slots.setdefault(path, set()).add(path.read_bytes())

    def _read_files(self) -> dict[Path, bytes]:
        found = (path for path in self.root.rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in found if path.name != "LOCK"}

    def unchanged(self, path: Path, content: bytes | None) -> bool:
        """Whether the files are as they were, but for one that was damaged."""
        changed = {**self.files, path: content}
        return self._read_files() == {p: c for p, c in changed.items() if c is not None}

    def restore(self) -> None:
        now = self._read_files()
        for path in now.keys() - self.files.keys():
            path.unlink()
        for path, content in self.files.items():
            if now.get(path) != content:
                path.write_bytes(content)

    @property
    def segment(self) -> Path:
        """The newest segment of the log."""
        return max(self.root.glob("wal/*.wal"))

    def read(self, mode: Literal["r", "r+"]) -> int | CorruptionError:
        """The head's seq, where all that the store hands out is right; else the refusal."""
        try:
            with Store.open(self.root, mode, settings=SETTINGS) as store:
                head = store.head
                assert head is not None and head.id == self.ids[head.seq]
                assert everything(store, Ref.head) == self.commits[head.seq]
                assert store.commit_of("kept").id == self.ids[self.kept]
                assert everything(store, Ref.name("kept")) == self.commits[self.kept]
                assert len(store.state_digest()) == 32
                return head.seq
        except CorruptionError as error:
            return error
