"""What a long history costs: `log`, other commands as whole processes, bytes, a writer's memory."""

from __future__ import annotations

from pathlib import Path

import psutil

from benchmarks.frame.question import Bench, Question
from benchmarks.frame.result import Claim, Figure, Result
from benchmarks.frame.rounds import Variant
from benchmarks.refs import PARTS, commit_small
from benchmarks.startup import BARE, command_variants
from benchmarks.unsynced import Unsynced
from shardstore import Store
from shardstore.format.names import WAL_DIRECTORY
from shardstore.wal.writer import COMMITS_PER_SEGMENT

COMMITS = 10_000
QUICK_COMMITS = 50
WARM_COMMITS = 5 * COMMITS_PER_SEGMENT
"""Growth counts from here, beyond what segments and their compression hold for a while."""
LOG = "shardstore log -n 20"


def make_store(path: Path, commits: int) -> float | None:
    """Commits of tiny parts; the writer's memory growth in bytes a commit, if there were enough."""
    process = psutil.Process()
    warm = 0
    with Store.open(path, "a", fs=Unsynced()) as store:
        for step in range(1, commits + 1):
            commit_small(store, step)
            if step == WARM_COMMITS:
                warm = process.memory_info().rss
        grown = process.memory_info().rss - warm
    return grown / (commits - WARM_COMMITS) if warm else None


def log_bytes(store: Path, commits: int) -> list[Figure]:
    """Of the log a commit: all of it, and what is sealed and compressed."""
    files = [path for path in (store / WAL_DIRECTORY).iterdir() if path.is_file()]
    packed = [path.stat().st_size for path in files if path.suffix == ".zst"]
    size = sum(path.stat().st_size for path in files) / commits
    note = f"{commits:,} commits of {PARTS} objects, {len(files)} segments, zeros ahead included"
    found = [Figure(name="log, a commit", value=size, unit="B", note=note)]
    if packed:
        sealed = sum(packed) / (len(packed) * COMMITS_PER_SEGMENT)
        note = f"{len(packed)} compressed segments of {COMMITS_PER_SEGMENT} commits"
        found.append(Figure(name="log, a sealed commit", value=sealed, unit="B", note=note))
    return found


def ask(bench: Bench) -> Result:
    path = bench.scratch / "run"
    commits = QUICK_COMMITS if bench.quick else COMMITS
    bench.say(f"a store of {commits:,} commits is made")
    grown = make_store(path, commits)
    calls = {
        LOG: ["log", str(path), "-n", "20"],
        "shardstore log --json": ["log", str(path), "--json"],
        "shardstore log --step": ["log", str(path), "--step", "7"],
        "shardstore info": ["info", str(path), "--json"],
        "shardstore status": ["status", str(path), "--json"],
    }
    openings = [
        Variant(name="open to read", act=lambda: Store.open(path).close()),
        Variant(name="open to write and close", act=lambda: Store.open(path, "r+").close()),
    ]
    commands = bench.measure("Whole processes", command_variants(calls, bench.scratch))
    result = Result(tables=[commands, bench.measure("In a process", openings)])
    result.figures += log_bytes(path, commits)
    row = commands.row(LOG)
    result.claims.append(
        Claim(text=f"`{LOG}`, {commits:,} commits, whole process", value=1000 * row.seconds,
              unit="ms", at_most=200, noisy=row.noisy)
    )  # fmt: skip
    limits = {"log, a commit": 8192, "log, a sealed commit": 1536}
    for figure in result.figures:
        text = f"{figure.name} of {PARTS} objects"
        result.claims.append(
            Claim(text=text, value=figure.value, unit="B", at_most=limits[figure.name])
        )
    if grown is not None:
        text = "a writer's memory growth, a commit"
        result.claims.append(Claim(text=text, value=grown, unit="B", at_most=1024))
    return result


QUESTION = Question(
    title="A long history",
    about=f"""A store of {COMMITS:,} commits of {PARTS} tiny parts, made with the disk's syncs left
    out, its log in the page cache. Commands run from the start of the interpreter ({BARE}) to its
    end. Memory is the resident set of the process that made the store, from commit
    {WARM_COMMITS:,} on.""",
    ask=ask,
)
