"""A transactional store of tensor shards with a write-ahead log.

    from shardstore import Ref, Store

    with Store.open("run", mode="a") as store:
        with store.begin(step=1) as txn:
            txn.stage("block_000", "params", {"w": w})
            txn.commit(metadata={"loss": 9.1})

Importing this never imports torch; `shardstore.torch` does. Errors are in `shardstore.errors`. The
names below are imported when they are first asked for, so that commands start quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardstore.context import Settings
    from shardstore.errors import CorruptionError, ShardStoreError, UnavailableError, UsageError
    from shardstore.format.policy import Best, Retention
    from shardstore.pinned_view import PinnedView
    from shardstore.refs import Ref
    from shardstore.store import Store
    from shardstore.ticket import Ticket
    from shardstore.tiers import open_active
    from shardstore.transaction import Transaction
    from shardstore.views import Branch, Commit, ObjectInfo, Snapshot, TensorInfo, UndoableChange
    from shardstore.wear import Wear

__version__ = "0.1.0"
__all__ = [
    "Best",
    "Branch",
    "Commit",
    "CorruptionError",
    "ObjectInfo",
    "PinnedView",
    "Ref",
    "Retention",
    "Settings",
    "ShardStoreError",
    "Snapshot",
    "Store",
    "TensorInfo",
    "Ticket",
    "Transaction",
    "UnavailableError",
    "UndoableChange",
    "UsageError",
    "Wear",
    "open_active",
]

_HOMES = {
    "errors": ("CorruptionError", "ShardStoreError", "UnavailableError", "UsageError"),
    "context": ("Settings",),
    "format.policy": ("Best", "Retention"),
    "pinned_view": ("PinnedView",),
    "refs": ("Ref",),
    "store": ("Store",),
    "ticket": ("Ticket",),
    "tiers": ("open_active",),
    "transaction": ("Transaction",),
    "views": ("Branch", "Commit", "ObjectInfo", "Snapshot", "TensorInfo", "UndoableChange"),
    "wear": ("Wear",),
}
_HOME = {name: f"shardstore.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'shardstore' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
