"""`shardstore recover`: finishes or undoes what a crash left, after saying what that is."""

from __future__ import annotations

import dataclasses

import click

from shardstore.cli.common import (
    EXIT_CORRECTED,
    EXIT_OK,
    command,
    consent,
    json_option,
    path_argument,
    reading,
    yes_option,
)
from shardstore.cli.common import progress as bar
from shardstore.cli.output import echo_json, shown
from shardstore.errors import UsageError
from shardstore.fs.system import local_file_system
from shardstore.recovery import Plan, plan
from shardstore.store import Store
from shardstore.store_file import read_store_file


@command(
    "recover",
    example="shardstore recover run --dry-run\nshardstore recover run\n"
    "shardstore recover run --salvage --dry-run",
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
@click.option(
    "--salvage",
    is_flag=True,
    help="For damaged stores: go back to the newest whole step, every byte of it verified, and set "
    "damaged files aside in quarantine/.",
)
@yes_option
@json_option
def recover(
    path: str, dry_run: bool, assume_power_cut: bool, salvage: bool, yes: bool, as_json: bool
) -> int:
    """Recover the store at PATH, as opening it for writing would; doing it twice changes nothing.

    Damage is refused, and 'shardstore fsck' lists it; --salvage gives back what is whole, and says
    what is lost. Keep a copy of the directory, or restore the damaged files from one, if you can.
    """
    if salvage:
        if assume_power_cut:
            raise UsageError("--assume-power-cut does not go with --salvage, which trusts no sync")
        return _salvage(path, dry_run=dry_run, yes=yes, as_json=as_json)
    with reading(path) as root:
        read_store_file(local_file_system(), root)
        found, _ = plan(local_file_system(), root, assume_power_cut=assume_power_cut)
    needed = _needed(found, assume_power_cut)
    if not as_json:
        _say(found.lines())
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


def _salvage(path: str, *, dry_run: bool, yes: bool, as_json: bool) -> int:
    from shardstore.salvage import Decision, look, salvage  # late: few need it

    def agree(decision: Decision) -> bool:
        if not as_json:
            _say(decision.lines())
        consent("put this state in place of the damaged one", yes=yes)
        return True

    with reading(path) as root:
        if dry_run:
            decision = look(local_file_system(), root, bar)
        else:
            decision = salvage(local_file_system(), root, agree=agree, progress=bar)
    done = decision.needed and not dry_run
    if as_json:
        echo_json({"corrected": done, "dry_run": dry_run, **decision.to_json()})
    else:
        if not done:
            _say(decision.lines())
        end = "nothing was changed" if decision.needed else "nothing to do"
        click.echo("salvaged" if done else end)
    return EXIT_CORRECTED if decision.needed else EXIT_OK


def _say(lines: list[str]) -> None:
    for line in lines:
        click.echo(shown(line))


def _needed(found: Plan, assume_power_cut: bool) -> bool:
    return found.needed or (assume_power_cut and found.unproven > 0)
