"""The `trainer` command: lists its subcommands and imports only the one that is called.

Exit codes of every subcommand: 0 done, 4 damaged or changed data, 8 could not run, 16 usage,
130 interrupted.
"""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "data": ("trainer.data.command:data", "Tokenize text and look after token data."),
    "init": ("trainer.commands.init:init", "Create a run with a freshly initialised model."),
    "train": ("trainer.commands.train:train", "Train, or go on training, until --max-steps."),
    "validate": ("trainer.commands.validate:validate", "Held-out loss of a commit of a run."),
    "info": ("trainer.commands.info:info", "Step, model and digests of a run."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


@click.group(cls=_LazyGroup)
@click.version_option(package_name="shardstore")
def trainer() -> None:
    """Train a language model out of a shard store, one shard in memory at a time.

    \b
    Example:
      trainer data prepare --corpus stdlib --out data
      trainer train --run-dir run --preset nano --data-dir data/train --max-steps 300
    Exit codes: 0 done, 4 damaged or changed data, 8 could not run, 16 usage, 130 interrupted.
    """


def main() -> None:
    """Console script."""
    try:
        trainer.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        raise SystemExit(stop.exit_code) from None
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; the run stands at its last commit", err=True)
        raise SystemExit(130) from None
    except click.ClickException as error:
        error.show()
        usage = isinstance(error, click.UsageError)
        raise SystemExit(16 if usage else error.exit_code) from None
