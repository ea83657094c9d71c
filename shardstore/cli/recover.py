"""`shardstore recover`: finishes or undoes what a crash left, after saying what that is."""

from __future__ import annotations

import dataclasses

import click

from shardstore.cli.common import (
    EXIT_CORRECTED,
    EXIT_OK,
    command,
    json_option,
    path_argument,
    reading,
)
from shardstore.cli.output import echo_json, shown
from shardstore.fs.system import local_file_system
from shardstore.recovery import Plan, plan, read_store_file
from shardstore.store import Store


@command(
    "recover",
    example="shardstore recover run --dry-run\nshardstore recover run",
    codes="Exit codes: 0 nothing to do, 1 corrected (with --dry-run: something is to be "
    "corrected), 4 damage, 8 could not run, 16 wrong usage.",
)
@path_argument
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--assume-power-cut",
    is_flag=True,
    help="Give up what is not proven durable: for a file system that was lost and mounted again "
    "without a reboot.",
)
@json_option
def recover(path: str, dry_run: bool, assume_power_cut: bool, as_json: bool) -> int:
    """Recover the store at PATH, as opening it for writing would; doing it twice changes nothing.

    Damage is no work for this command: it is refused, and 'shardstore fsck' lists it.
    """
    with reading(path) as root:
        read_store_file(local_file_system(), root)
        found, _ = plan(local_file_system(), root, assume_power_cut=assume_power_cut)
    needed = _needed(found, assume_power_cut)
    if not as_json:
        for line in found.lines():
            click.echo(shown(line))
    if needed and not dry_run:
        store = Store.open(path, "r+", assume_power_cut=assume_power_cut)
        found = store.recovered or found
        store.close()
    corrected = needed and not dry_run
    if as_json:
        values = {"needed": needed, "corrected": corrected, "dry_run": dry_run}
        echo_json({**values, "plan": dataclasses.asdict(found)})
    elif corrected:
        click.echo("recovered")
    else:
        click.echo("nothing was changed" if needed else "nothing to do")
    return EXIT_CORRECTED if needed else EXIT_OK


def _needed(found: Plan, assume_power_cut: bool) -> bool:
    return found.needed or (assume_power_cut and found.unproven > 0)
