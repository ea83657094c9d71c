"""`shardstore retention`: shows or changes which commits stay kept without a name."""

from __future__ import annotations

import click

from shardstore.cli.common import command, consent, json_option, path_argument, yes_option
from shardstore.cli.output import echo_json
from shardstore.errors import UsageError
from shardstore.format.policy import DEFAULT, Best, Retention
from shardstore.store import Store


@command(
    "retention",
    example="shardstore retention run\nshardstore retention run --last 3 --every 1000 --yes\n"
    "shardstore retention run --best metrics.val_loss --count 2 --yes",
)
@path_argument
@click.option("--last", type=int, help="The newest commits of each branch; at least 1.")
@click.option("--every", type=int, help="Commits whose step is a multiple of this.")
@click.option("--best", metavar="METRIC", help="Commits with the best METRIC in their metadata.")
@click.option("--mode", type=click.Choice(["min", "max"]), help="Which is best; by default min.")
@click.option("--count", type=int, help="How many of the best; by default 1.")
@yes_option
@json_option
def retention(
    path: str,
    last: int | None,
    every: int | None,
    best: str | None,
    mode: str | None,
    count: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Show which commits of the store at PATH stay kept without a name, or say it anew.

    The options given together are the whole rule: what is not given is as in a new store (the last
    2 commits of each branch). METRIC may lead into nested metadata with dots. Nothing goes at once:
    the next commit or 'shardstore gc' goes by the new rule.
    """
    if best is None and (mode is not None or count is not None):
        raise UsageError("--mode and --count say which of the best are kept; give --best too")
    with Store.open(path) as store:
        now = store.retention
    if (last, every, best) != (None, None, None):
        rule = Retention(
            last=DEFAULT.last if last is None else last,
            every=every,
            best=None if best is None else _best(best, mode, count),
        )
        consent(f"keep {rule} instead of {now}", yes=yes)
        with Store.open(path, "r+") as store:
            store.set_retention(rule)
        now = rule
    if as_json:
        echo_json(now.to_json())
    else:
        click.echo(f"kept beside what has a name: {now}")


def _best(metric: str, mode: str | None, count: int | None) -> Best:
    smallest = mode != "max"
    return Best(
        metric=metric, mode="min" if smallest else "max", count=1 if count is None else count
    )
