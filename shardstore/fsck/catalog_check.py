"""Checks the catalog against the log: does the log reach its mark, and what are its files worth.

A mark ahead of the log is damage, of the log. Anything else that is wrong with a catalog is a note:
its files are never synced, nothing depends on them, and the next writer makes them anew.
"""

from __future__ import annotations

from shardstore.catalog import CatalogError, Mark, check_not_ahead, open_index
from shardstore.errors import CorruptionError
from shardstore.format.names import CATALOG_DIRECTORY
from shardstore.fs.calls import is_loss
from shardstore.fs.protocol import FileSystem
from shardstore.fsck.findings import Finding, from_error, note
from shardstore.wal.reader import LogView

_ADVICE = "it is not used, and the next opening for writing makes it anew"


def check_catalog(
    fs: FileSystem, root: str, marks: tuple[Mark | None, list[str]], view: LogView
) -> list[Finding]:
    """`marks` is what `find_mark` said before the log was read."""
    mark, bad = marks
    directory = f"{root}/{CATALOG_DIRECTORY}"
    found = [
        note(f"a mark of the catalog is damaged or of another store; {_ADVICE}",
             f"{directory}/{name}") for name in bad
    ]  # fmt: skip
    try:
        check_not_ahead(root, mark, view)
    except CorruptionError as error:
        found.append(from_error(error, advice="restore the log from a copy that has this record"))
    if mark is None:
        return found
    at = {record.seq: record.chain for record in view.segment.records}
    if at.get(mark.seq, mark.chain) != mark.chain:
        what = f"the catalog is of another history: it knows another record {mark.seq}; {_ADVICE}"
        found.append(note(what, directory))
    elif mark.index is not None:
        found += _check_index(fs, root, mark)
    return found


def _check_index(fs: FileSystem, root: str, mark: Mark) -> list[Finding]:
    """Every row, after the file's digest: a damaged one is never opened."""
    assert mark.index is not None
    path = f"{root}/{CATALOG_DIRECTORY}/{mark.index.name}"
    try:
        with open_index(fs, root, mark.index) as index:
            index.check_rows()
    except CatalogError as error:
        refusal = error.__cause__
        if isinstance(refusal, OSError) and not is_loss(refusal):
            raise refusal from None
        return [note(f"the index of the catalog is damaged ({error}); {_ADVICE}", path)]
    return []
