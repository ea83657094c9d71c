"""`trainer validate`: the held-out loss of a commit."""

from __future__ import annotations

import json
from typing import Any

import click

from trainer import loop
from trainer.commands.options import make_settings, reported, settings_options


@click.command()
@settings_options(
    "run_dir",
    "data_dir",
    "val_data_dir",
    "seq_len",
    "micro_batch_size",
    "max_validation_batches",
    "lm_head_chunk_tokens",
    "device",
    "allow_train_validation_fallback",
)
@click.option("--at", default="head", show_default=True, help="head, NAME, step:N or seq:N.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@reported
def validate(at: str, as_json: bool, **values: Any) -> None:
    """Held-out loss of a commit of a run, without changing the run.

    \b
    Example: trainer validate --run-dir run --val-data-dir data/val --at step_00000300
    Exit codes: 0 done, 4 damaged or changed data, 8 could not run, 16 usage.
    """
    step, found = loop.validate(make_settings(values), at)
    result = {
        "step": step,
        "val_loss": found.loss,
        "val_perplexity": found.perplexity,
        "validation_batches": found.batches,
        "tokens": found.tokens,
    }
    if as_json:
        click.echo(json.dumps(result))
        return
    click.echo(
        f"step {step}: held-out loss {found.loss:.4f} (perplexity {found.perplexity:,.1f}) over "
        f"{found.tokens:,} tokens in {found.batches} batches"
    )
