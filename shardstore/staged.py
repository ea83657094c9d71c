"""Objects on their way into a slot: values, and what can be asked of them. `staging` moves them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from shardstore.buffers import Buffer
from shardstore.errors import TransactionError
from shardstore.format.layout import ObjectHeader, ObjectLayout, head_digest
from shardstore.format.manifest import ObjectRef, Part
from shardstore.format.names import RAW
from shardstore.fs.protocol import File
from shardstore.jobs import Done, Once, settle_jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """The parent's object of the same part, which new data may turn out to equal."""

    reference: Callable[[], ObjectRef]
    """Waits for its digests where it is in flight."""
    header: Callable[[], ObjectHeader]
    """Its verified header, read where it is not in memory."""


@dataclass(slots=True, eq=False, kw_only=True)
class StagedObject:
    """An object on its way into a slot. `reference` and `header` are there once `finished` is."""

    part: Part
    layout: ObjectLayout
    buffer: Buffer | None
    """The object in memory; None once nobody will read it from there."""
    storage_format: str = RAW
    size: int = 0
    """Of the file; of other formats than raw known once it is written."""
    slot: int = -1
    created: bool = False
    file: File | None = None
    pieces: list[Once[None]] = field(default_factory=list)
    finished: Once[None] | Done = field(default_factory=Done)
    reference: ObjectRef | None = None
    header: ObjectHeader | None = None
    keep: bool = True
    """Whether the buffer may serve readers, here and from the cache."""
    reused: bool = False
    """Equal to the parent's object: `reference` is that one's, nothing was written."""
    error: OSError | None = None
    synced: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the file is synced or closed."""

    def known(self) -> ObjectRef:
        """The reference, waiting for the digests."""
        self.finished.result()
        if self.reference is None:
            shard, part = self.part
            raise TransactionError(
                f"shard {shard!r} part {part!r} was given up with its commit; abort the "
                "transaction and begin again"
            )
        return self.reference

    @property
    def written_bytes(self) -> int:
        return 0 if self.reused else self.size


def heads_agree(view: memoryview, layout: ObjectLayout, twin: Twin) -> bool:
    """Whether comparing the whole is worth it."""
    reference = twin.reference()
    if reference.format != RAW or reference.size != layout.total_bytes:
        return False
    return reference.head == head_digest(view, layout.header_bytes)


def settle(staged: StagedObject) -> None:
    """Wait until nothing of the object is in flight, whatever came of it."""
    settle_jobs([staged.finished])
    settle_jobs(staged.pieces)  # all of them: finishing submits the last


def give_up(staged: StagedObject) -> None:
    """Begin nothing more of the object, and wait for what was begun."""
    staged.finished.give_up()
    for piece in staged.pieces:
        piece.give_up()
