"""`shardstore switch`: makes another branch the current one."""

from __future__ import annotations

import click

from shardstore.cli.common import command, json_option, path_argument
from shardstore.cli.output import echo_json
from shardstore.store import Store


@command("switch", example="shardstore switch run trial")
@path_argument
@click.argument("name")
@json_option
def switch(path: str, name: str, as_json: bool) -> None:
    """Make NAME the current branch of the store at PATH: commits go there from now on.

    Nothing is copied or lost; 'shardstore undo' switches back.
    """
    with Store.open(path, "r+") as store:
        left, reached = store.current_branch, store.switch(name)
    if as_json:
        place = {"step": reached.step, "seq": reached.seq}
        echo_json({"branch": reached.name, "left": left, "head": place})
    else:
        click.echo(
            f"the current branch is {reached.name} at step {reached.step} (seq {reached.seq}); "
            f"it was {left}"
        )
