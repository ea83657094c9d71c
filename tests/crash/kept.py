"""A directory in which a long exploration keeps what it has done, to be stopped and gone on with.

    exploration.json    which exploration it is: sources, profile, scenarios, parts, seed
    units/NAME          one finished unit: a line of JSON, its report, then the digests of its
                        distinct images, sorted, 16 bytes each

Contract: a file is there whole or not at all, whenever the process or the machine dies. Another
exploration's directory is refused, and so is a second process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.crash.crashes import Report
from tests.crash.units import Plan, Unit
from tests.support.whole_files import write_whole

ROOT = Path(__file__).parents[2]
SOURCES = ("shardstore/**/*.py", "tests/crash/*.py", "tests/support/*.py")
_DIGEST_BYTES = 16


class KeptError(Exception):
    """The directory cannot be used; the text says why and what to do."""


def sources_digest(root: Path = ROOT) -> str:
    """What the results depend on: the store, and what crashes and judges it."""
    state = hashlib.sha256()
    for path in sorted({path for pattern in SOURCES for path in root.glob(pattern)}):
        text = path.read_bytes()
        state.update(f"{path.relative_to(root).as_posix()}\0{len(text)}\0".encode() + text)
    return state.hexdigest()


class Kept:
    """See the module's docstring."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._units = directory / "units"

    @contextmanager
    def opened(self, plan: Plan) -> Iterator[None]:
        """Begin the exploration, or go on with it; nobody else can meanwhile."""
        self._units.mkdir(parents=True, exist_ok=True)
        with (self.directory / "LOCK").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise KeptError(f"{self.directory}: another process explores here") from None
            self._be(_described(plan))
            for half in self._units.glob("*.tmp"):
                half.unlink()
            yield

    def _be(self, wanted: dict[str, Any]) -> None:
        path = self.directory / "exploration.json"
        if not path.exists():
            if any(self._units.iterdir()):
                raise KeptError(f"{path} is missing beside units: name an empty directory")
            write_whole(path, json.dumps(wanted, indent=1).encode() + b"\n")
            return
        found = json.loads(path.read_text())
        other = [key for key in wanted if found.get(key) != wanted[key]]
        if other:
            raise KeptError(
                f"{self.directory} keeps an exploration with other {' and '.join(other)} "
                f"({'; '.join(f'{key}: {_short(found.get(key))}' for key in other)}, now "
                f"{'; '.join(_short(wanted[key]) for key in other)}): name another directory, or "
                "go back to what it was begun with"
            )

    def has(self, unit: Unit) -> bool:
        return (self._units / unit.name).exists()

    def keep(self, unit: Unit, report: Report) -> None:
        """A finished unit."""
        head = {
            "scenario": report.scenario,
            "points": report.points,
            "images": report.images,
            "states": sorted(report.states.items()),
            "findings": report.findings,
            "seconds": report.seconds,
            "distinct": len(report.distinct),
        }
        body = b"".join(sorted(report.distinct))
        write_whole(self._units / unit.name, json.dumps(head).encode() + b"\n" + body)

    def report(self, unit: Unit) -> Report:
        """What `keep` was given."""
        path = self._units / unit.name
        line, _, body = path.read_bytes().partition(b"\n")
        try:
            head = json.loads(line)
            whole = head["distinct"] * _DIGEST_BYTES == len(body)
        except (ValueError, KeyError):
            whole = False
        if not whole:
            raise KeptError(f"{path} is damaged: remove it, and its unit is explored again")
        return Report(
            scenario=head["scenario"],
            points=head["points"],
            images=head["images"],
            states=Counter(dict(head["states"])),
            distinct={body[at : at + _DIGEST_BYTES] for at in range(0, len(body), _DIGEST_BYTES)},
            findings=head["findings"],
            seconds=head["seconds"],
        )


def _described(plan: Plan) -> dict[str, Any]:
    """As JSON gives it back."""
    wanted = {
        "sources": sources_digest(),
        "profile": [asdict(rule) for rule in plan.profile],
        "scenarios": plan.scenarios,
        "parts": plan.parts,
        "seed": plan.seed,
    }
    again: dict[str, Any] = json.loads(json.dumps(wanted))
    return again


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 48 else f"{text[:45]}..."
