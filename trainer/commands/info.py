"""`trainer info`: where a run stands, with the digests that two runs are compared by."""

from __future__ import annotations

import json
from pathlib import Path

import click

from trainer.commands.options import reported
from trainer.state import Run


@click.command()
@click.option("--run-dir", type=click.Path(path_type=Path), required=True, help="The run.")
@click.option("--at", default="head", show_default=True, help="head, NAME, step:N or seq:N.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@reported
def info(run_dir: Path, at: str, as_json: bool) -> None:
    """Step, model, counters and digests of a commit of a run.

    \b
    Example: trainer info --run-dir run --json
    Exit codes: 0 done, 4 damage, 8 could not run, 16 usage.
    """
    with Run.open(run_dir, write=False) as run:
        state, model = run.state(at)
        result = {
            **run.digests(at),
            "optimizer_step": state.optimizer_step,
            "tokens_seen": state.tokens_seen,
            "val_loss": state.val_loss,
            "parameters": model.parameter_count(),
            "shards": len(model.shard_names()),
            "config_hash": state.config_hash,
        }
    if as_json:
        click.echo(json.dumps(result))
        return
    for name, value in result.items():
        click.echo(f"{name:<16} {value}")
