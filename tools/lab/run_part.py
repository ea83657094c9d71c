"""One part of the laboratory, as a process: `python -m tools.lab.run_part NAME --dir DIR ...`.

It writes its progress and, last, its outcome to standard output, a JSON object a line. A part that
dies takes nobody with it: that is a finding of its own. SIGTERM ends it in order, so that nothing
stays mounted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from tools.lab.part import BY_NAME, Lab, Outcome


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=BY_NAME)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--commit", default="")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, _ended)
    module = importlib.import_module(BY_NAME[chosen.name].module)
    why_not = getattr(module, "why_not", str)
    if reason := why_not():
        outcome = Outcome(cannot=reason)
    else:
        results, sys.stdout = sys.stdout, sys.stderr  # what a part prints is no result
        lab = Lab(
            directory=chosen.dir,
            seed=chosen.seed,
            long=chosen.long,
            seconds=chosen.seconds,
            output=results,
            kept=chosen.kept,
            commit=chosen.commit,
        )
        outcome = module.run(lab)
        sys.stdout = results
    print(json.dumps({"outcome": outcome.to_json()}), flush=True)
    return 0


def _ended(_signal: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main())
