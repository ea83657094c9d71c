"""Errors of the trainer, grouped by what a caller would do about them.

    TrainerError
    |-- ConfigError      a flag, a configuration file or both together are wrong: change them
    |-- DataError        token rows are missing, changed or do not fit: repair or name others
    |-- ResumeError      the run on disk cannot be continued as asked
    `-- ResidencyError   a step broke its own memory contract: a fault of this program

Errors of the store are not wrapped: they already name store, shard and part (see
`shardstore.errors`).
"""


class TrainerError(Exception):
    """Base of everything the trainer raises on purpose."""


class ConfigError(TrainerError, ValueError):
    """A setting is wrong; the message names it, what was expected and what was found."""


class DataError(TrainerError):
    """Token data is missing, changed, or does not fit the model."""


class ResumeError(TrainerError):
    """The run found on disk cannot be continued with these settings."""


class ResidencyError(TrainerError, AssertionError):
    """More shards were active at once than the budget allows, or one was released twice."""
