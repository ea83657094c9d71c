"""`trainer init`: create a run whose step 0 is a freshly initialised model."""

from __future__ import annotations

from typing import Any

import click

from trainer.commands.options import make_settings, reported, settings_options
from trainer.errors import ConfigError, ResumeError
from trainer.state import Run


@click.command()
@settings_options("run_dir", "preset", "config", "seed")
@reported
def init(**values: Any) -> None:
    """Create a run with a freshly initialised model, one shard in memory at a time.

    \b
    Example: trainer init --run-dir run --preset nano
    Exit codes: 0 done, 4 damage, 8 could not run, 16 usage.
    """
    settings = make_settings(values)
    if settings.run_dir is None:
        raise ConfigError("--run-dir is needed: where shall the run be created?")
    model = settings.model()
    # One shard in memory at a time: nothing reads these again before training does.
    with Run.open(settings.run_dir, write=True, create=True, host_budget_bytes=0) as run:
        if not run.is_empty:
            raise ResumeError(
                f"{settings.run_dir} holds a run already; train it with "
                f"'trainer train --run-dir {settings.run_dir}', or name another directory"
            )
        parts = 2 * len(model.shard_names())
        with click.progressbar(length=parts, label="initialising") as bar:
            run.initialise(model, settings.seed, lambda what: bar.update(1))
    click.echo(
        f"{settings.run_dir}: {model.parameter_count():,} parameters in "
        f"{len(model.shard_names())} shards at step 0"
    )
