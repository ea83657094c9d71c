"""`shardstore ls`: the tensors of a commit."""

from __future__ import annotations

import click

from shardstore.cli.common import command, json_option, path_argument, ref_argument
from shardstore.cli.output import echo_json, table
from shardstore.refs import Ref
from shardstore.store import Store


@command("ls", example="shardstore ls run\nshardstore ls run step:12 --json")
@path_argument
@ref_argument
@json_option
def ls(path: str, ref: Ref, as_json: bool) -> None:
    """List the tensors of commit REF (by default the head) of the store at PATH.

    The digest is xxh3_128 of the tensor's little-endian bytes in C order; dtypes have safetensors'
    names.
    """
    with Store.open(path) as store, store.pin(ref) as view:
        commit = view.commit
        rows = [
            {
                "shard": row.shard,
                "part": row.part,
                "tensor": row.tensor,
                "dtype": row.dtype,
                "shape": list(row.shape),
                "digest": row.digest,
            }
            for row in view.tensors()
        ]
    if as_json:
        echo_json(rows)
        return
    click.echo(f"step {commit.step} (seq {commit.seq}), {len(rows)} tensors")
    headers = ("shard", "part", "tensor", "dtype", "shape", "digest")
    table(headers, [[row[name] for name in headers] for row in rows])
