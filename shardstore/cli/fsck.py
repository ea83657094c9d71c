"""`shardstore fsck`: looks for damage and changes nothing."""

from __future__ import annotations

import click

from shardstore.cli.common import EXIT_DAMAGE, EXIT_OK, command, json_option, path_argument, reading
from shardstore.cli.common import progress as bar
from shardstore.cli.output import echo_json, shown, size_text
from shardstore.fs.system import local_file_system
from shardstore.fsck import Finding, Report
from shardstore.fsck import fsck as check


@command(
    "fsck",
    example="shardstore fsck run\nshardstore fsck run --deep --json",
    codes="Exit codes: 0 clean (unfinished work is a note), 4 damage found, 8 could not run, "
    "16 wrong usage.",
)
@path_argument
@click.option("--deep", is_flag=True, help="Read and verify every byte of every needed object.")
@json_option
def fsck(path: str, deep: bool, as_json: bool) -> int:
    """Check the store at PATH: the whole log, and of each needed object file, size and header.

    A writer may be at work meanwhile. Everything that is found is listed, with what to do.
    """
    with reading(path) as root:
        report = check(local_file_system(), root, deep=deep, progress=bar)
    if as_json:
        echo_json(report.to_json())
    else:
        _show(report)
    return EXIT_OK if report.clean else EXIT_DAMAGE


def _show(report: Report) -> None:
    for finding in report.findings:
        click.echo(shown(finding.line()))
        for line in _details(finding):
            click.echo(shown(f"    {line}"))
    looked = f"{report.segments} segments, {report.records} records, {report.objects} objects"
    if report.deep:
        looked += f", {size_text(report.bytes_read)} read"
    damages = sum(finding.is_damage for finding in report.findings)
    verdict = "clean" if report.clean else f"{damages} findings of damage"
    click.echo(f"{shown(report.path)}: {verdict} ({looked})")
    if not report.clean:
        command = f"shardstore recover {report.path} --salvage --dry-run"
        click.echo(
            f"next: {shown(command)}\n      says which steps are whole and what would be lost"
        )


def _details(finding: Finding) -> list[str]:
    lines = []
    if finding.shard is not None:
        names = [f"shard {finding.shard!r}", f"part {finding.part!r}"]
        names += [f"tensor {finding.tensor!r}"] if finding.tensor is not None else []
        names += [f"needed by step {finding.step}"]
        names += [f"and snapshots {', '.join(finding.snapshots)}"] if finding.snapshots else []
        lines.append(" ".join(names))
    return lines + ([finding.advice] if finding.advice else [])
