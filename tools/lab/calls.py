"""System-call injection; see tests/crash/syscalls."""

from __future__ import annotations

from tests.crash.syscalls import interrupt_all
from tests.support.permitted import trace_refusal
from tools.lab.part import Lab, Outcome


def why_not() -> str:
    return trace_refusal()


def run(lab: Lab) -> Outcome:
    """All of them in a drawn order, as far as the time goes."""
    result = interrupt_all(lab.directory, seed=lab.seed, until=lab.until, progress=lab.tell)
    calls = ", ".join(f"{action} {count}" for action, count in result.calls.items())
    return Outcome(
        unit="interruptions",
        tried=result.tried.total(),
        wrong=result.wrong,
        detail=[result.line(), f"system calls of each action: {calls}"],
    )
