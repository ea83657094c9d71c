"""A process whose files may not grow: `python -m tests.crash.limited_child ROOT BYTES`.

Within the limit it commits; beyond it the store has to refuse, stay as it is and go on.
"""

from __future__ import annotations

import errno
import resource
import sys

import numpy as np

from shardstore import Store
from shardstore.errors import StorageError
from tests.crash.real_store import SETTINGS, Seen, commit, look


def main() -> None:
    root, limit = sys.argv[1], int(sys.argv[2])
    with Store.open(root, "r+", settings=SETTINGS) as store:
        commit(store, 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            with store.begin(3) as txn:
                txn.stage("a", "params", {"w": np.zeros(limit, "i1")})
                txn.keep_rest()
                txn.commit()
        except StorageError as error:
            assert error.errno == errno.EFBIG, error
            assert root in str(error) and f"{limit}" not in root, error
        else:
            raise AssertionError("the limit was not felt")
        assert look(store) == Seen(2)
        commit(store, 4)
        assert look(store) == Seen(4)


if __name__ == "__main__":
    main()
