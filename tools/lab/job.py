"""The crash laboratory: shares its time among the parts, each a process, and sums up.

Contract: everything happens in the directory that was named, which is on the disk under test; no
process of it is left running, whatever happens. Standard output gets the page (with --json the
result), standard error the progress; both stay in the directory. What a part came to is recorded
when it ends, so that whoever stops the rest loses nothing of it. tools/crashlab makes .venv ready
and calls this. `part` says what there is, `run_part` is the process, `page` what people read.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from benchmarks.frame.environment import describe
from tests.support.whole_files import write_whole
from tools.lab.options import (
    EXIT_INTERRUPTED,
    EXIT_UNABLE,
    EXIT_USAGE,
    EXIT_WRONG,
    UsageError,
    make_directory,
    parse,
)
from tools.lab.page import page, verdict
from tools.lab.part import Outcome, Part
from tools.lab.progress import Progress
from tools.lab.result import PartResult, Report, recorded
from tools.work_directory import remove

ROOT = Path(__file__).resolve().parents[2]
_GRACE_SECONDS = 600.0
"""What a part may go over its time, to end what it has begun: then it hangs."""
_END_SECONDS = 30.0
_LAST_SECONDS = 1.0
"""For the end of the last part's process, and the page."""


class Laboratory:
    """The parts in turn; `report` has those that have ended."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._parts: list[Part] = options.parts
        self._directory: Path = options.dir.resolve()
        self._began = time.monotonic()
        self.report = Report(
            place=describe(self._directory),
            directory=str(self._directory),
            profile="long" if options.long else f"{options.minutes:g} minutes",
            seed=options.seed,
        )

    def run(self) -> None:
        """Everything."""
        options, report = self._options, self.report
        end = math.inf if options.long else self._began + 60 * options.minutes - _LAST_SECONDS
        for number, part in enumerate(self._parts):
            left = sum(other.weight for other in self._parts[number:])
            seconds = max(1.0, end - time.monotonic()) * part.weight / left
            with Progress(part.name, number + 1, len(self._parts), seconds) as progress:
                result = self._run(part, seconds, progress)
                progress.end(result)
            report.parts.append(result)
            report.seconds = time.monotonic() - self._began
            if options.record is not None:
                record(options.record, report)

    def _run(self, part: Part, seconds: float, progress: Progress) -> PartResult:
        work = self._directory / "work" / part.name
        work.mkdir()
        log, began = self._directory / "logs" / f"{part.name}.log", time.monotonic()
        with _process(self._command(part, seconds, work), log) as process:
            hung = threading.Timer(seconds + _GRACE_SECONDS, process.terminate)
            if not self._options.long:
                hung.start()
            outcome = _follow(process, progress)
            code = process.wait()
            hung.cancel()
        if outcome is None:
            end = log.read_text(errors="replace")[-3000:]
            outcome = Outcome(wrong=[f"the part ended with {code} and no result:\n{end}"])
        if not outcome.wrong:
            with suppress(OSError):
                remove(work)
        return PartResult(name=part.name, outcome=outcome, seconds=time.monotonic() - began)

    def _command(self, part: Part, seconds: float, work: Path) -> list[str]:
        words = [sys.executable, "-m", "tools.lab.run_part", part.name, "--dir", str(work)]
        words += ["--seed", str(self._options.seed)]
        words += ["--commit", str(self.report.place.get("commit", ""))]
        if self._options.long:
            kept = self._directory / "batches" / part.name
            return [*words, "--long", "--kept", str(kept)]
        return [*words, "--seconds", f"{seconds:.1f}"]


def record(path: Path, report: Report) -> None:
    """The file keeps the last result of each part, and these."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_whole(path, json.dumps(recorded(before, report), indent=1).encode() + b"\n")


@contextmanager
def _process(words: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with all that it starts in a group of its own, which is ended with it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "PASSIVE"}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=errors, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # it unmounts what it has mounted
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _follow(process: subprocess.Popen[str], progress: Progress) -> Outcome | None:
    """Its lines up to the last one; None where it ended without."""
    assert process.stdout is not None
    outcome = None
    for line in process.stdout:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if "outcome" in found:
            outcome = Outcome(**found["outcome"])
        else:
            progress.show(found["done"], found["goal"])
    return outcome


def main(words: list[str]) -> int:
    """Runs the laboratory; the exit code."""
    try:
        options = parse(words)
        make_directory(options)
    except UsageError as error:
        print(f"tools/crashlab: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"tools/crashlab: {error}", file=sys.stderr)
        return EXIT_UNABLE
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        laboratory = Laboratory(options)
        report = laboratory.report
        try:
            laboratory.run()
        except KeyboardInterrupt:
            report.interrupted = True
        _leave(report, options)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    if report.interrupted:
        return EXIT_INTERRUPTED
    if report.ok:
        return 0
    return EXIT_WRONG if report.wrong else EXIT_UNABLE


def _interrupted(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _leave(report: Report, options: argparse.Namespace) -> None:
    """Print the page or the result, and put both into the directory."""
    directory: Path = options.dir
    files = {"page.txt": "this page", "result.json": "everything in numbers"}
    files["logs/"] = "what each part said"
    if report.wrong:
        files["work/"] = "the stores of the parts with findings"
    else:
        remove(directory / "work")
    if options.long and (directory / "batches").exists():
        files["batches/"] = "what the long parts have done; --resume goes on from there"
    text = page(report, [f"{directory / name}  {what}" for name, what in files.items()])
    result = json.dumps(report.to_json(), indent=1)
    (directory / "page.txt").write_text(text, encoding="utf-8")
    (directory / "result.json").write_text(result + "\n", encoding="utf-8")
    print(result if options.json else text, flush=True)
    print(verdict(report), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
