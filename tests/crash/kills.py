"""Kills `trainer train` with SIGKILL again and again: `python -m tests.crash.kills [--kills 200]`.

Lanes work side by side, each on runs of its own. A lane draws where the next kill falls, starts the
child on the same run, answers its events up to there, and kills it: either while it is held before
the operation, or somewhere after it was let go. Then the witness checks the run, and the next child
goes on from what is there. A run that reaches its last step has to equal the uninterrupted one, and
a new run begins. `kill_child` is the process, `kill_plan` draws the targets, `kill_witness` says
what must hold.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.kill_child import Event, Inputs, TracedTrainer
from tests.crash.kill_plan import CI, Kill, Profile, Result, Target, targets
from tests.crash.kill_witness import Reference, Witness

_SIDE_BY_SIDE = 1.5
"""What a run takes longer beside another, and the kill that is just being made."""


class Stopped(Exception):
    """Another lane failed, or the whole was interrupted."""


@dataclass(slots=True, kw_only=True)
class Lane:
    """One line of kills. Its own thread; `stop` ends it at the next event."""

    number: int
    profile: Profile
    directory: Path
    inputs: Inputs
    reference: Reference
    stop: threading.Event
    until: float = math.inf
    """No kill but the first is begun after this moment of the monotonic clock."""
    progress: Callable[[int, int], None] | None = None
    """Told of the kills, as many for each lane as this one has made."""
    kills: list[Kill] = field(default_factory=list)
    runs: int = 0
    starts: int = 0

    def work(self) -> None:
        """All kills of this lane, then to the end of its last run."""
        try:
            witness = self._new_run()
            for target in targets(self.profile, self.number, self.kills):
                if self.kills and time.monotonic() > self.until:
                    break
                while not self._start(witness, target):
                    witness = self._new_run()
                if self.progress is not None:
                    done = len(self.kills) * self.profile.lanes
                    self.progress(done, self.profile.kills)
            self._start(witness, None)
        except BaseException:
            self.stop.set()
            raise

    def _new_run(self) -> Witness:
        self.runs += 1
        run = self.directory / f"lane{self.number}_run{self.runs:03d}"
        return Witness(run=run, reference=self.reference)

    def _start(self, witness: Witness, target: Target | None) -> bool:
        """One child. True: it was killed at the target; False: the run was over before."""
        self.starts += 1
        command = self.inputs.command(witness.run, self.profile.max_steps)
        with TracedTrainer(command, witness.run.with_suffix(".log")) as child:
            try:
                hit = _drive(child, witness, target, self.stop)
                if hit is None:
                    code = child.wait()
                    assert code == 0, f"exit code {code}"
                    witness.ended()
                    witness.check_end()
                    return False
                assert target is not None
                self._killed(child, witness, target, hit)
                return True
            except Stopped:
                raise
            except Exception as error:
                raise AssertionError(
                    f"{witness.run}, kill {len(self.kills) + 1} of lane {self.number}, {target}, "
                    f"last event {witness.last}: {error!r}\nthe children said:\n{child.said()}"
                ) from error

    def _killed(self, child: TracedTrainer, witness: Witness, target: Target, hit: Event) -> None:
        if target.racing:
            child.race(target.race_seconds)
        later = child.kill()
        for event in later:
            witness.note(event)
        last = later[-1] if later else hit
        recovered = witness.check(done=target.racing and not later)
        self.kills.append(
            Kill(
                lane=self.number,
                run=self.runs,
                phase=last.phase,
                event=last.name,
                how="overtaken" if later else "racing" if target.racing else "held",
                in_commit=last.in_commit,
                step=-1 if witness.seen is None else witness.seen,
                recovered=recovered,
            )
        )


def _drive(
    child: TracedTrainer, witness: Witness, target: Target | None, stop: threading.Event
) -> Event | None:
    """Answer until the target's event, which is not answered; None when the child has ended."""
    steps = occurrences = 0
    while (event := child.next()) is not None:
        witness.note(event)
        if target is not None and steps >= target.steps and target.matches(event):
            occurrences += 1
            if occurrences == target.occurrence:
                return event
        steps += event.name == "acknowledged" and event.fields["step"] > 0
        if stop.is_set():
            raise Stopped
        child.answer()
    return None


def run_profile(
    profile: Profile,
    directory: Path,
    *,
    until: float = math.inf,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """All lanes of a profile, or as far as the time goes: about at `until` the runs that were begun
    have been trained to their ends, which takes as long as the uninterrupted one did, at the most.
    Raises AssertionError where something did not hold."""
    began = time.perf_counter()
    inputs = Inputs.write(directory)
    reference = Reference.train(directory, inputs, profile.max_steps)
    until -= _SIDE_BY_SIDE * (time.perf_counter() - began)
    stop = threading.Event()
    lanes = [
        Lane(
            number=number,
            profile=profile,
            directory=directory,
            inputs=inputs,
            reference=reference,
            stop=stop,
            until=until,
            progress=progress,
        )
        for number in range(profile.lanes)
    ]
    with ThreadPoolExecutor(profile.lanes) as pool:
        try:
            working = [pool.submit(lane.work) for lane in lanes]
            errors = [error for future in working if (error := future.exception())]
        finally:
            stop.set()
    for error in errors:
        if not isinstance(error, Stopped):
            raise error
    return Result(
        kills=tuple(kill for lane in lanes for kill in lane.kills),
        runs=sum(lane.runs for lane in lanes),
        starts=1 + sum(lane.starts for lane in lanes),
        seconds=time.perf_counter() - began,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill the trainer in every phase.")
    parser.add_argument("--kills", type=int, default=CI.kills)
    parser.add_argument("--each", type=int, default=CI.each, help="at least so many in a phase")
    parser.add_argument("--max-steps", type=int, default=CI.max_steps, help="of each run")
    parser.add_argument("--lanes", type=int, default=CI.lanes, help="runs side by side")
    parser.add_argument("--seed", type=int, default=CI.seed)
    parser.add_argument("--json", type=Path, help="write every kill to this file")
    options = vars(parser.parse_args())
    report = options.pop("json")
    with tempfile.TemporaryDirectory() as directory:
        result = run_profile(Profile(**options), Path(directory))
    print("\n".join(result.table()))
    if report is not None:
        report.write_text(json.dumps(result.to_json(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
