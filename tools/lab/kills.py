"""SIGKILLs of a real training run; see tests/crash/kills."""

from __future__ import annotations

from tests.crash.kill_plan import LONG, Profile
from tests.crash.kills import run_profile
from tools.lab.part import Lab, Outcome

_SHORT = Profile(kills=200, each=0, max_steps=12)


def run(lab: Lab) -> Outcome:
    """As many as the time allows; every run that was begun is trained to its end."""
    outcome = Outcome(unit="kills")
    try:
        result = run_profile(
            LONG if lab.long else _SHORT, lab.directory, until=lab.until, progress=lab.tell
        )
    except AssertionError as error:
        outcome.wrong.append(str(error))
        return outcome
    outcome.tried = len(result.kills)
    outcome.detail += result.table() if result.kills else ["no time for a kill"]
    return outcome
