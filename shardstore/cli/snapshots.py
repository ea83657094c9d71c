"""`shardstore snapshots`: the snapshots by name."""

from __future__ import annotations

from dataclasses import asdict

from shardstore.cli.common import command, json_option, path_argument
from shardstore.cli.output import echo_json, table, time_text
from shardstore.store import Store


@command("snapshots", example="shardstore snapshots run --json")
@path_argument
@json_option
def snapshots(path: str, as_json: bool) -> None:
    """List the snapshots of the store at PATH."""
    with Store.open(path) as store:
        found = store.snapshots
    if as_json:
        echo_json([asdict(s) for s in found])
    else:
        rows = [
            (s.name, s.step, s.seq, time_text(s.time), "archived" if s.archived else "")
            for s in found
        ]
        table(("name", "step", "seq", "made", ""), rows)
