"""Crashes the real store everywhere: `python -m tests.crash.explorer [--long] [SCENARIO ...]`.

`--long` explores a million states, `--states N` so many, `--seconds S` for so long; `--json` tells
it to programs.

A run of a program notes what the memory file system holds before every mutating operation. From
each such crash point follow a kill (all writes kept; the operation itself may be half done) and
power cuts (every legal disk). Each distinct image is judged: read, opened for writing (which
recovers), compared, opened again; then the work goes on and is crashed in turn, two or three deep.
Images are the same, and explored once, when their bytes, what is unsynced and the ghost agree.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardstore.fs.memory import Operation
from tests.crash.crashes import (
    SHORT,
    STATES_LONG,
    Depth,
    Node,
    Point,
    Profile,
    Report,
    deep,
)
from tests.crash.ghost import NO_STORE, Ghost
from tests.crash.images import cuts_of, half_done
from tests.crash.memo import remembering
from tests.crash.oracle import Observed, Violation, check_files, check_history, match
from tests.crash.reports import as_json, table
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.world import CrashFileSystem, Mutate, World, given_up, read_only


class Explorer:
    """Explores one scenario, breadth first, so that the first finding is a shortest one."""

    def __init__(
        self,
        scenario: Scenario,
        profile: Profile,
        *,
        mutate: Mutate | None = None,
        findings_max: int = 3,
        seconds: float | None = None,
    ) -> None:
        self.report = Report(scenario.name)
        self._scenario = scenario
        self._profile = profile
        self._mutate = mutate
        self._findings_max = findings_max
        self._seconds = seconds
        self._until = float("inf")
        self._seen: set[tuple[bytes, Ghost, Ghost | None]] = set()

    def run(self) -> Report:
        began = time.perf_counter()
        root = Node(CrashFileSystem(), (NO_STORE,), None, self._scenario.name)
        points = self._attempt(root, self._first_run)
        generation = [(root, points)] if points else []
        states = 0
        for depth, rule in enumerate(self._profile, 1):
            states += rule.states
            if self._seconds is not None:
                self._until = began + self._seconds * depth / len(self._profile)
            generation = self._explore(generation, depth, rule, states)
        self.report.seconds = time.perf_counter() - began
        return self.report

    @property
    def _enough(self) -> bool:
        found = len(self.report.findings) >= self._findings_max
        return found or time.perf_counter() > self._until

    def _explore(
        self, parents: list[tuple[Node, list[Point]]], depth: int, rule: Depth, states_max: int
    ) -> list[tuple[Node, list[Point]]]:
        """One generation; `states_max` counts those before it too."""
        after = self._profile[depth] if depth < len(self._profile) else None
        stride = -(-rule.states // after.parents) if after else 0
        kills = 0
        ahead: list[tuple[Node, list[Point]]] = []
        for node in _fairly([self._children(*parent, rule) for parent in parents]):
            if self.report.states.total() >= states_max or self._enough:
                break
            self.report.images += 1
            image = node.fs.image_digest(unsynced=True)
            key = (image, node.ghost, node.cut)
            if key in self._seen:
                continue
            self._seen.add(key)
            self.report.distinct.add(image)
            self.report.states[depth] += 1
            kills += node.killed is None
            is_parent = after is not None and (
                kills <= after.kills
                if node.killed is None
                else self.report.states[depth] % stride == 0
            )
            points = self._attempt(node, self._judge if is_parent else self._judge_alone)
            if points and is_parent and after is not None:
                ahead.append((node, _chosen(node, points, after.points)))
        return ahead

    def _attempt(self, node: Node, act: Callable[[Node], list[Point]]) -> list[Point]:
        try:
            points = act(node)
        except Violation as error:
            self.report.findings.append([*node.trace(), str(error)])
            return []
        except Exception as error:
            what = f"unexpected {type(error).__name__}: {error}"
            self.report.findings.append([*node.trace(), what])
            return []
        self.report.points += len(points)
        return points

    # ------------------------------------------------------------------ runs

    def _world(self, fs: CrashFileSystem, ghost: Ghost, cut: Ghost | None = None) -> World:
        scenario = self._scenario
        return scenario.world(fs, ghost, self._mutate, cut=cut, settings=scenario.settings)

    def _first_run(self, node: Node) -> list[Point]:
        world = self._world(node.fs, node.ghost)
        self._scenario.prepare(world)
        points = _watch(world)
        self._scenario.program(world)
        _finish(world, points)
        return points

    def _judge_alone(self, node: Node) -> list[Point]:
        """Of no run that goes on from here is anything explored."""
        return self._judge(node, noting=False)

    def _judge(self, node: Node, *, noting: bool = True) -> list[Point]:
        """Read, open, compare, open again, go on working."""
        fs = node.fs.clone()
        seen = read_only(fs.clone())
        if seen is not None:
            match(node.ghost, seen)
            check_files(fs)
        elif NO_STORE not in node.ghost:
            raise Violation(f"expected {' or '.join(map(str, node.ghost))}, found no store")
        if node.killed is None and seen is not None and node.cut is not None:
            match(node.cut, given_up(fs.clone()))
        world = self._world(fs, node.ghost, node.cut)
        points = _watch(world) if noting else []
        opened = world.open()
        if seen not in (None, opened):
            raise Violation(f"the reader saw {seen}, opening for writing made it {opened}")
        self._judge_again(world, opened)
        self._scenario.work(world)
        _finish(world, points)
        seen = read_only(fs.kill())
        if seen is None:
            raise Violation("the store is gone after the work")
        match(world.ghost, seen)
        check_files(fs)
        return points

    def _judge_again(self, world: World, opened: Observed) -> None:
        """Another opening changes nothing; what can be undone is there."""
        twin = self._world(world.fs.kill(), world.ghost)
        again = twin.open()
        if again != opened:
            raise Violation(f"the second opening made {again} of {opened}")
        check_history(twin.fs)
        if twin.state.undoable:
            twin.undo()
            twin.check()

    # ------------------------------------------------------------------ crashes

    def _children(self, parent: Node, points: list[Point], rule: Depth) -> Iterator[Node]:
        """Images after a crash of the run that went on from `parent`: first what the end of the
        run must survive."""
        end = points[-1]
        for image in cuts_of(end.killed, 1):
            yield self._cut(parent, end, image)
        chosen = _chosen(parent, points, rule.points)
        yield from _fairly([self._crashes(parent, each, rule) for each in chosen])

    def _crashes(self, parent: Node, point: Point, rule: Depth) -> Iterator[Node]:
        yield self._kill(parent, point, point.killed, f"kill {point}")
        found = cuts_of(point.killed, rule.cuts, subsets_max=rule.subsets_max, samples=rule.samples)
        for image in found:
            yield self._cut(parent, point, image)
        operation = point.operation
        if operation is not None and operation.op == "pwrite" and point.after is not None:
            half = half_done(point.killed, point.after, operation)
            if half is not None:
                yield self._kill(parent, point, half, f"kill halfway through {point.name}")

    def _cut(self, parent: Node, point: Point, image: CrashFileSystem) -> Node:
        return Node(image, point.cut, parent, f"power cut {point}", point.killed)

    def _kill(self, parent: Node, point: Point, image: CrashFileSystem, step: str) -> Node:
        return Node(image, point.ghost, parent, step, cut=point.cut)


def _watch(world: World) -> list[Point]:
    """Note a crash point before every mutating operation from now on."""
    points: list[Point] = []

    def before(operation: Operation) -> None:
        points.append(Point(operation, world.fs.kill(), world.ghost, world.cut))

    world.fs.before = before
    return points


def _finish(world: World, points: list[Point]) -> None:
    """The end of a run: closed, and a crash point of its own."""
    world.close()
    world.fs.before = None
    points.append(Point(None, world.fs.kill(), world.ghost, world.cut))
    for point, following in pairwise(points):
        point.after = following.killed


def _chosen(node: Node, points: list[Point], count: int) -> list[Point]:
    """So many of a run's points, and its end."""
    if len(points) <= count + 1:
        return points
    draw = random.Random(node.fs.image_digest())
    places = sorted(draw.sample(range(len(points) - 1), count))
    return [*(points[at] for at in places), points[-1]]


def _fairly(sources: list[Iterator[Node]]) -> Iterator[Node]:
    """One of each in turn, so that a limit leaves nobody out."""
    while sources:
        left = []
        for source in sources:
            node = next(source, None)
            if node is not None:
                yield node
                left.append(source)
        sources = left


# ---------------------------------------------------------------------------- the command


@dataclass(frozen=True, slots=True)
class Task:
    """One scenario, explored by a process of its own."""

    scenario: str
    profile: Profile
    seconds: float | None = None


def explore(task: Task) -> Report:
    with remembering():
        return Explorer(SCENARIOS[task.scenario], task.profile, seconds=task.seconds).run()


def explore_all(
    names: Sequence[str],
    *,
    states: int | None = None,
    seconds: float | None = None,
    processes: int = 2,
) -> list[Report]:
    """Every scenario, several at a time: the short profile, or so many states of all together, or
    as many as there is time for."""
    each = -(-(states or STATES_LONG) // len(names))
    profile = SHORT if states is None and seconds is None else deep(each)
    share = None if seconds is None else seconds * min(processes, len(names)) / len(names)
    tasks = [Task(name, profile, share) for name in names]
    if processes == 1:
        return [explore(task) for task in tasks]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return pool.map(explore, tasks, chunksize=1)


def main() -> int:
    parser = argparse.ArgumentParser(description="Crash the store everywhere.")
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], metavar="SCENARIO")
    parser.add_argument("--long", action="store_true", help=f"{STATES_LONG} states")
    parser.add_argument("--states", type=int, help="about so many, of all scenarios together")
    parser.add_argument("--seconds", type=float, help="no scenario begins another state after that")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="tell the result to a program")
    chosen = parser.parse_args()
    states = chosen.states or (STATES_LONG if chosen.long else None)
    began = time.perf_counter()
    reports = explore_all(
        chosen.scenarios or list(SCENARIOS),
        states=states,
        seconds=chosen.seconds,
        processes=chosen.processes,
    )
    seconds = time.perf_counter() - began
    if chosen.json:
        print(json.dumps(as_json(reports, seconds), indent=1))
    else:
        print("\n".join(table(reports, seconds)))
    return int(any(report.findings for report in reports))


if __name__ == "__main__":
    sys.exit(main())
