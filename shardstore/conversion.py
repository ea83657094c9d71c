"""Converting a store: the head's objects, written again in another storage format.

Contract: one commit, durable when it returns, at the head's step, with its metadata and blobs and
the same state digest. An error or a crash leaves the head as it was. Older commits and snapshots
keep their objects and formats; the slots of the old format are given back as those go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardstore.errors import CorruptionError, RefNotFoundError
from shardstore.store import Store
from shardstore.views import ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What was converted; without objects nothing had to be, and nothing was committed."""

    storage_format: str
    seq: int
    """Of the head afterwards."""
    step: int
    state_digest: str
    before: tuple[ObjectInfo, ...]
    """The objects that were written again, as they were."""
    after: tuple[ObjectInfo, ...]


def objects_to_convert(store: Store, storage_format: str) -> list[ObjectInfo]:
    """The head's objects that are in another format."""
    if store.head is None:
        raise RefNotFoundError(f"store {store.path} has no commit yet: there is nothing to convert")
    return [row for row in store.objects() if row.format != storage_format]


def convert(store: Store, advance: Callable[[int], None]) -> Conversion:
    """Write the head's objects in the store's storage format, if they are in another.

    `advance` is called with the bytes of each object that was read. The new commit is compared with
    the old one: CorruptionError, and the old one is the parent, if their tensors differ.
    """
    before = objects_to_convert(store, store.storage_format)
    head, digest = store.head, store.state_digest()
    assert head is not None
    if before:
        with store.begin(head.step) as txn:
            for row in before:
                checkout = txn.checkout(row.shard, row.part)
                txn.stage(row.shard, row.part, checkout, donate=True)
                advance(row.bytes)
            txn.keep_rest()
            head = txn.commit(metadata=head.metadata, blobs=head.blobs)
    found = store.state_digest()
    if found != digest:
        raise CorruptionError(
            "the converted state differs; 'shardstore rewind' to the commit before it",
            file=store.path, expected=digest, found=found,
        )  # fmt: skip
    converted = {(row.shard, row.part) for row in before}
    return Conversion(
        storage_format=store.storage_format,
        seq=head.seq,
        step=head.step,
        state_digest=digest,
        before=tuple(before),
        after=tuple(r for r in store.objects() if (r.shard, r.part) in converted),
    )
