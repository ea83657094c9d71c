"""The catalog: an index over the log's older segments, for looking things up, never for deciding.

Contract: everything in it is in the log and durable there, and it can be deleted at any time. It is
two things in `catalog/`, both advice (FORMAT.md section 8): a *mark*, which says how far the log
was known to be durable, and an *index*, an LMDB file of the sealed segments' records. Each file is
written once under a new name; a reader believes one only after its digest, so a damaged catalog
costs time and nothing else. One thing is an error: a mark that the log does not reach, since then
the log has lost its end.

Neighbours: `upkeep` writes the catalog beside the work, `history` reads it, `fsck` checks it.
"""

from shardstore.catalog.index import CatalogError, Index, Row, build_index, open_index, small
from shardstore.catalog.mark import (
    IndexFile,
    Mark,
    check_not_ahead,
    find_mark,
    is_possible,
    write_mark,
)

__all__ = [
    "CatalogError",
    "Index",
    "IndexFile",
    "Mark",
    "Row",
    "build_index",
    "check_not_ahead",
    "find_mark",
    "is_possible",
    "open_index",
    "small",
    "write_mark",
]
