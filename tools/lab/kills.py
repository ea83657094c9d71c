"""SIGKILLs of a real training run; see tests/crash/kills."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.crash.kill_plan import LONG, Kill, Profile, Result
from tests.crash.kills import run_profile
from tools.lab.batches import Batch, in_batches
from tools.lab.part import Lab, Outcome

UNIT = "kills"
BATCHES = 10
LEGEND = (
    "held: killed right before an operation of the phase; racing: shortly after it was let go;",
    "overtaken: the run had come further. Afterwards it stood at the last acknowledged commit",
    "(same) or at the one that was being made (+1), whole.",
)
_SHORT = Profile(kills=1000, each=0, max_steps=8)


def run(lab: Lab) -> Outcome:
    """As many as the time allows; every run that was begun is trained to its end."""
    if lab.long:
        return _long(lab)
    outcome = Outcome(unit=UNIT)
    profile = replace(_SHORT, seed=lab.seed)
    try:
        result = run_profile(
            profile, lab.directory, until=lab.until, progress=lambda done, _goal: lab.tell(done)
        )
    except AssertionError as error:
        outcome.wrong.append(str(error))
        return outcome
    outcome.tried = len(result.kills)
    outcome.detail += [*result.table(), *LEGEND]
    return outcome


def _long(lab: Lab) -> Outcome:
    """Batches of kills, each with runs of its own and its share of every phase."""
    profile = replace(LONG, kills=LONG.kills // BATCHES, each=LONG.each // BATCHES)

    def batch(number: int, place: Lab) -> Batch:
        try:
            result = run_profile(
                replace(profile, seed=lab.seed * BATCHES + number),
                place.directory,
                progress=place.tell,
            )
        except AssertionError as error:
            return Batch(wrong=[str(error)])
        return Batch(tried=len(result.kills), data=result.to_json())

    names = [f"batch {number + 1} of {BATCHES}" for number in range(BATCHES)]
    outcome, data = in_batches(lab, UNIT, LONG.kills, names, batch)
    if any(data):
        outcome.detail += [*together([values for values in data if values]).table(), *LEGEND]
    return outcome


def together(batches: list[dict[str, Any]]) -> Result:
    """One result of the batches' JSON."""
    return Result(
        kills=tuple(Kill(**kill) for values in batches for kill in values["kills"]),
        runs=sum(values["runs"] for values in batches),
        starts=sum(values["starts"] for values in batches),
        seconds=sum(values["seconds"] for values in batches),
    )
