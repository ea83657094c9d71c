"""Errors of the data side, below `trainer.errors.DataError`.

DataError          a request that cannot be met: wrong flags, missing or existing directories
|-- BadDataFile    a file that is not what a data set may hold: named, with the row where there
is one `-- DataChanged    data that is not the data recorded earlier: every difference named
"""

from __future__ import annotations

from trainer.errors import DataError as DataError


class BadDataFile(DataError):
    """A file of a data set is damaged or has the wrong form."""


class DataChanged(DataError):
    """A data set differs from what was recorded about it."""
