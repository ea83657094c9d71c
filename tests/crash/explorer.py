"""Crashes the real store everywhere: `python -m tests.crash.explorer [--long] [SCENARIO ...]`.

`--long` explores a million distinct images, `--states N` so many states, `--seconds S` for so long;
`--json` tells it to programs. With `--keep DIR` it may be stopped, even killed, and goes on when it
is called again. `walk` is the exploration itself, `units` how it is cut into pieces, `kept` what
stays of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.crash.crashes import SHORT, STATES_LONG, Report, deep
from tests.crash.kept import KeptError
from tests.crash.kept_run import explore_kept
from tests.crash.reports import as_json, table
from tests.crash.scenarios import SCENARIOS
from tests.crash.units import STATES_UNIT, Plan, explore, merged, planned

EXIT_WRONG, EXIT_USAGE = 1, 2


def explore_all(
    names: Sequence[str],
    *,
    states: int | None = None,
    seconds: float | None = None,
    processes: int = 2,
    seed: int = 0,
) -> list[Report]:
    """Every scenario, several at a time: the short profile, or so many states of all together, or
    as many as there is time for."""
    if seconds is None:
        return _explore(_plan(names, states, seed), None, processes)
    profile = deep(-(-(states or STATES_LONG) // len(names)))
    share = seconds * min(processes, len(names)) / len(names)
    return _explore(Plan(scenarios=names, profile=profile, seed=seed), share, processes)


def _plan(names: Sequence[str], states: int | None, seed: int, unit: int = STATES_UNIT) -> Plan:
    if states is None:
        return Plan(scenarios=names, profile=SHORT, seed=seed)
    return planned(names, states, seed=seed, unit=unit)


def _explore(plan: Plan, seconds: float | None, processes: int) -> list[Report]:
    one = partial(explore, seconds=seconds)
    if processes == 1:
        return merged(map(one, plan.units()))
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return merged(pool.map(one, plan.units(), chunksize=1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Crash the store everywhere.",
        epilog="example: python -m tests.crash.explorer --long --keep crashes --json",
    )
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], metavar="SCENARIO")
    parser.add_argument("--long", action="store_true", help=f"{STATES_LONG} states")
    parser.add_argument("--states", type=int, help="about so many, of all scenarios together")
    parser.add_argument("--seconds", type=float, help="no scenario begins another state after that")
    parser.add_argument("--processes", type=int, default=2, help="at a time (2)")
    parser.add_argument("--json", action="store_true", help="tell the result to a program")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep each unit there; go on with what is there"
    )
    parser.add_argument(
        "--unit-states", type=int, help=f"about so many of a unit that is kept ({STATES_UNIT})"
    )
    parser.add_argument("--seed", type=int, default=0, help="another one draws other images (0)")
    return parser


def _reports(chosen: argparse.Namespace) -> list[Report]:
    names = chosen.scenarios or list(SCENARIOS)
    states = chosen.states or (STATES_LONG if chosen.long else None)
    options = {"processes": chosen.processes, "seed": chosen.seed}
    if chosen.keep is None:
        if chosen.unit_states is not None:
            raise KeptError("--unit-states goes with --keep")
        return explore_all(names, states=states, seconds=chosen.seconds, **options)
    if chosen.seconds is not None:
        raise KeptError("--keep goes with --long or --states: --seconds cannot be gone on with")
    plan = _plan(names, states, chosen.seed, chosen.unit_states or STATES_UNIT)
    return explore_kept(plan, chosen.keep, processes=chosen.processes, tell=_tell)


def _tell(line: str, _states: int) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    chosen = _parser().parse_args()
    began = time.perf_counter()
    try:
        reports = _reports(chosen)
    except KeptError as error:
        print(f"explorer: {error}", file=sys.stderr)
        return EXIT_USAGE
    seconds = time.perf_counter() - began
    if chosen.json:
        print(json.dumps(as_json(reports, seconds), indent=1))
    else:
        print("\n".join(table(reports, seconds)))
    return EXIT_WRONG if any(report.findings for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
