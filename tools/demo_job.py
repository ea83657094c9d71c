"""The main job: trains on real text, is killed and recovers, and shows that nothing was lost.

Contract: everything happens in the work directory, with the project's own commands as child
processes; none is left running, whatever happens. Standard output gets the page (with --json the
result instead), standard error the progress. tools/demo makes .venv ready and calls this with its
Python; `demo_commands` calls the commands, `demo_result` says what has to hold, `demo_page` writes
the page.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tools import demo_progress
from tools.demo_children import ChildFailed, Children, KillPoint, OnStep
from tools.demo_commands import ROWS_PER_STEP, SEQ_LEN, VOCAB_SIZE, Commands
from tools.demo_options import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_UNABLE,
    EXIT_USAGE,
    LARGE,
    UsageError,
    make_work_directory,
    parse,
)
from tools.demo_page import page
from tools.demo_plot import picture
from tools.demo_progress import say
from tools.demo_result import Kill, Moment, Outcome, kill_points
from tools.work_directory import remove
from trainer.data import DataError, uniform_loss

SNAPSHOT = "halfway"
LOG_LINES = 4

T = TypeVar("T")


class Job:
    """The parts of the job, in order."""

    def __init__(self, commands: Commands, *, steps: int, corpus: str) -> None:
        self._commands, self._steps, self._corpus = commands, steps, corpus
        self._seconds: dict[str, float] = {}
        if setup := os.environ.get("SHARDSTORE_SETUP_SECONDS"):
            self._seconds["setup"] = float(setup)

    def outcome(self) -> Outcome:
        """Do everything; what was seen."""
        began = time.monotonic()
        say(f"[1/4] text: a tokenizer for {self._corpus}, and rows")
        data = self._timed("data", lambda: self._commands.prepare(self._corpus))
        say(f"[2/4] a run of {self._steps} steps that is never stopped")
        self._timed("steady", self._train_steadily)
        say("[3/4] the same run, killed three times")
        kills, halfway = self._timed("killed", self._train_and_kill)
        say("[4/4] rewind, undo, comparison")
        outcome = self._timed("rest", lambda: self._compare(data, kills, halfway))
        self._seconds["total"] = time.monotonic() - began
        return outcome

    def _timed(self, name: str, part: Callable[[], T]) -> T:
        began = time.monotonic()
        result = part()
        self._seconds[name] = time.monotonic() - began
        return result

    def _train_steadily(self) -> None:
        with demo_progress.training("never stopped", self._steps) as on_step:
            self._commands.train("steady", at_step=0, on_step=on_step)

    def _train_and_kill(self) -> tuple[list[Kill], Moment]:
        kills: list[Kill] = []
        halfway: Moment | None = None
        with demo_progress.training("killed", self._steps) as on_step:
            for point in kill_points(self._steps):
                kills.append(self._kill(point, kills[-1].recovered if kills else 0, on_step))
                if len(kills) == 2:
                    self._commands.store("killed", "snapshot", SNAPSHOT)
                    halfway = self._commands.moment("killed", f"snapshot {SNAPSHOT} taken")
            self._commands.train("killed", at_step=kills[-1].recovered, on_step=on_step)
        assert halfway is not None
        return kills, halfway

    def _kill(self, point: KillPoint, at_step: int, on_step: OnStep) -> Kill:
        acknowledged = self._commands.train("killed", at_step=at_step, on_step=on_step, kill=point)
        plan = self._commands.store("killed", "recover", ok=(0, 1)).splitlines()
        clean = self._commands.fsck("killed")
        recovered = self._commands.moment("killed", "recovered").step
        say(
            f"SIGKILL at step {point.step}, {point.where}: acknowledged {acknowledged}, "
            f"recovered {recovered}, fsck {'clean' if clean else 'found DAMAGE'}"
        )
        return Kill(
            where=point.where,
            step=point.step,
            acknowledged=acknowledged,
            recovered=recovered,
            plan=plan,
            fsck_clean=clean,
        )

    def _compare(self, data: dict[str, Any], kills: list[Kill], halfway: Moment) -> Outcome:
        commands = self._commands
        steady, killed = commands.info("steady"), commands.info("killed")
        metrics = {run: commands.metrics(run) for run in ("steady", "killed")}
        moments = [halfway, *self._there_and_back()]
        unigram, rows = commands.unigram()
        return Outcome(
            data=data,
            steps=self._steps,
            tokens_per_step=ROWS_PER_STEP * SEQ_LEN,
            parameters=steady["parameters"],
            shards=steady["shards"],
            steady=metrics["steady"],
            killed=metrics["killed"],
            steady_digest=steady["trainer_digest"],
            killed_digest=killed["trainer_digest"],
            kills=kills,
            moments=moments,
            fsck_clean={run: commands.fsck(run, "--deep") for run in ("steady", "killed")},
            log_lines=commands.store("killed", "log", "-n", str(LOG_LINES)).splitlines(),
            ln_vocab=uniform_loss(VOCAB_SIZE),
            unigram=unigram,
            validation_rows=rows,
            seconds=self._seconds,
        )

    def _there_and_back(self) -> list[Moment]:
        moments = [self._commands.moment("killed", "before the rewind")]
        self._commands.store("killed", "rewind", SNAPSHOT, "--yes")
        moments.append(self._commands.moment("killed", f"after 'rewind {SNAPSHOT}'"))
        self._commands.store("killed", "undo", "--yes")
        return [*moments, self._commands.moment("killed", "after 'undo'")]


def main() -> int:
    """Runs the job; the exit code."""
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        make_work_directory(options.work, overwrite=options.overwrite)
        with Children(options.work / "logs") as children:
            commands = Commands(children, options.work, steps=options.steps)
            outcome = Job(commands, steps=options.steps, corpus=options.corpus).outcome()
        _leave(outcome, options)
    except UsageError as error:
        say(f"tools/demo: {error}")
        return EXIT_USAGE
    except (ChildFailed, DataError, OSError) as error:
        say(f"the job could not be done: {error}")
        return EXIT_UNABLE
    except KeyboardInterrupt:
        say(f"interrupted; what there is stays in {options.work}")
        return EXIT_INTERRUPTED
    return 0 if outcome.ok else EXIT_FAILED


def _interrupted(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _leave(outcome: Outcome, options: argparse.Namespace) -> None:
    """Print the page or the result, and put both and the picture into the work directory."""
    work: Path = options.work
    lines = {"ln V": outcome.ln_vocab, "unigram": outcome.unigram}
    files = {"page.txt": "this page", "result.json": "all numbers"}
    files["logs/"] = "what every command said"
    try:
        picture(work / "loss.png", outcome.losses("train_loss"), outcome.losses("val_loss"), lines)
        files["loss.png"] = "the loss curve"
    except ImportError:
        say("no loss.png: matplotlib is not installed (extra 'plot')")
    if options.keep or not outcome.ok:
        files |= {f"{name}/": what for name, what in LARGE.items()}
    else:
        say("removing both runs and the data; --keep keeps them")
        for name in LARGE:
            remove(work / name)
    text = page(outcome, [f"{work / name}  {what}" for name, what in files.items()])
    result = json.dumps(outcome.to_json(), allow_nan=False, indent=2)
    (work / "page.txt").write_text(text, encoding="utf-8")
    (work / "result.json").write_text(result + "\n", encoding="utf-8")
    print(result if options.json else text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
