"""`shardstore wal`: the frames of the write-ahead log, damaged places too."""

from __future__ import annotations

from typing import Any

import click

from shardstore.cli.common import EXIT_DAMAGE, EXIT_OK, command, json_option, path_argument, reading
from shardstore.cli.output import echo_json, facts, json_line, shown, table
from shardstore.errors import CorruptionError, UsageError
from shardstore.fs.protocol import FileSystem
from shardstore.fs.system import local_file_system
from shardstore.fsck.scan import SegmentScan, scan_segment
from shardstore.store_file import read_store_file
from shardstore.wal.reader import LogRecord, list_segments, read_segment_bytes


@command("wal", example="shardstore wal run\nshardstore wal run --segment 0 --json")
@path_argument
@click.option("--segment", type=click.IntRange(min=0), help="Which one; by default the newest.")
@json_option
def wal(path: str, segment: int | None, as_json: bool) -> int:
    """List the frames of a segment of the log of the store at PATH.

    Frames behind the place where a later segment took over never count again and are left out.
    """
    with reading(path) as root:
        scan, cut = _scan(local_file_system(), root, segment)
    if as_json:
        echo_json(_json(scan, cut))
    else:
        _show(scan, cut)
    return EXIT_DAMAGE if scan.damaged else EXIT_OK


def _scan(fs: FileSystem, root: str, wanted: int | None) -> tuple[SegmentScan, int | None]:
    read_store_file(fs, root)
    indices = list_segments(fs, root)
    if not indices:
        raise CorruptionError("the log has no segment", file=f"{root}/wal")
    index = indices[-1] if wanted is None else wanted
    if index not in indices:
        raise UsageError(f"there is no segment {index}; found {', '.join(map(str, indices))}")
    cut = None
    following = min((other for other in indices if other > index), default=None)
    if following is not None:
        path, data = read_segment_bytes(fs, root, following)
        link = scan_segment(data, path, following).header.get("predecessor")
        cut = int(link["cut"]) if link and link["index"] == index else None
    path, data = read_segment_bytes(fs, root, index)
    return scan_segment(data, path, index, cut=cut), cut


def _frame(record: LogRecord) -> dict[str, Any]:
    frame = record.frame
    return {
        "seq": record.seq,
        "type": record.body["type"],
        "offset": frame.offset,
        "bytes": frame.end - frame.offset,
        "durable": record.body.get("durable"),
        "log_synced": frame.log_synced,
        "chain": record.chain,
        "about": _about(record),
    }


def _about(record: LogRecord) -> str:
    body = record.body
    match body["type"]:
        case "open":
            return f"{body.get('reason')} by process {body.get('pid')}"
        case "commit":
            return f"step {body.get('step')} put {len(body.get('put', ()))}"
        case "snapshot" | "delete" | "switch":
            return str(body.get("name"))
        case "branch":
            return f"{body.get('name')} at seq {body.get('commit', {}).get('seq')}"
        case "rewind":
            return f"to seq {body.get('commit', {}).get('seq')}"
        case "undo":
            return f"record {body.get('entry')}"
        case "unkeep":
            return f"seq {', '.join(map(str, body.get('unkeep', ())))}"
        case "retention":
            return json_line(body.get("retention"))
    return ""


def _json(scan: SegmentScan, cut: int | None) -> dict[str, Any]:
    return {
        "segment": scan.index,
        "file": scan.file,
        "bytes": scan.size,
        "header": scan.header or None,
        "cut": cut,
        "frames": [_frame(record) for record in scan.records],
        "end": scan.end,
        "findings": [finding.to_json() for finding in scan.findings],
    }


def _show(scan: SegmentScan, cut: int | None) -> None:
    header = scan.header
    rows: list[tuple[str, Any]] = [("segment", f"{scan.file}, {scan.size} bytes")]
    if header:
        rows.append(("salt", header["salt"]))
        before = header["predecessor"]
        rows.append(("takes over", f"segment {before['index']} at {before['cut']}, "
                     f"after seq {before['seq']}" if before else "nothing"))  # fmt: skip
    if cut is not None:
        rows.append(("ends", f"at {cut}, where the next segment takes over"))
    facts(rows)
    headers = ("seq", "type", "offset", "bytes", "durable", "log_synced", "chain", "about")
    table(headers, [list(_frame(record).values()) for record in scan.records])
    for finding in scan.findings:
        click.echo(shown(finding.line()))
    click.echo(f"{len(scan.records)} frames, the log goes on at {scan.end}")
