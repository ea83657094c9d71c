"""`shardstore init`: creates an empty store."""

from __future__ import annotations

import click

from shardstore.cli.common import command, json_option, path_argument
from shardstore.cli.output import echo_json, shown
from shardstore.format.names import FORMAT_VERSION
from shardstore.store import Store


@command("init", example="shardstore init run")
@path_argument
@json_option
def init(path: str, as_json: bool) -> None:
    """Create an empty store in a new or empty directory PATH."""
    store = Store.create(path)
    uuid = store.uuid
    store.close()
    if as_json:
        echo_json({"path": path, "uuid": uuid, "version": FORMAT_VERSION})
    else:
        click.echo(f"created store {shown(path)} ({uuid})")
