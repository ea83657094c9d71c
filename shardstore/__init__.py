"""A transactional store of tensor shards with a write-ahead log.

    from shardstore import Ref, Store

    with Store.open("run", mode="a") as store:
        with store.begin(step=1) as txn:
            txn.stage("block_000", "params", {"w": w})
            txn.commit(metadata={"loss": 9.1})

Importing this never imports torch; `shardstore.torch` does. Errors are in `shardstore.errors`.
"""

from shardstore.errors import CorruptionError, ShardStoreError, UnavailableError, UsageError
from shardstore.refs import Ref
from shardstore.store import Store
from shardstore.transaction import Transaction
from shardstore.views import Commit, Snapshot, TensorInfo

__version__ = "0.1.0"
__all__ = [
    "Commit",
    "CorruptionError",
    "Ref",
    "ShardStoreError",
    "Snapshot",
    "Store",
    "TensorInfo",
    "Transaction",
    "UnavailableError",
    "UsageError",
]
