"""Crashes the real store everywhere: `python -m tests.crash.explorer [--long] [SCENARIO ...]`.

A run of a program notes what the memory file system holds before every mutating operation. From
each such crash point follow a kill (all writes kept; the operation itself may be half done) and
power cuts (every legal disk). Each distinct image is judged: read, opened for writing (which
recovers), compared, opened again; then the work goes on and is crashed in turn, two or three deep.
Images are the same, and explored once, when their bytes, what is unsynced and the ghost agree.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from shardstore.fs.memory import Operation
from tests.crash.crashes import LONG, SHORT, Depth, Node, Point, Profile, Report
from tests.crash.ghost import NO_STORE, Ghost
from tests.crash.images import cuts_of, half_done
from tests.crash.oracle import Observed, Violation, check_files, check_history, match
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.world import CrashFileSystem, Mutate, World, read_only


class Explorer:
    """Explores one scenario, breadth first, so that the first finding is a shortest one."""

    def __init__(
        self,
        scenario: Scenario,
        profile: Profile,
        *,
        mutate: Mutate | None = None,
        findings_max: int = 3,
    ) -> None:
        self.report = Report(scenario.name)
        self._scenario = scenario
        self._profile = profile
        self._mutate = mutate
        self._findings_max = findings_max
        self._seen: set[tuple[bytes, Ghost, Ghost | None]] = set()

    def run(self) -> Report:
        began = time.perf_counter()
        root = Node(CrashFileSystem(), (NO_STORE,), None, self._scenario.name)
        points = self._attempt(root, self._first_run)
        generation = [(root, points)] if points else []
        for depth, rule in enumerate(self._profile, 1):
            generation = self._explore(generation, depth, rule)
        self.report.seconds = time.perf_counter() - began
        return self.report

    @property
    def _enough(self) -> bool:
        return len(self.report.findings) >= self._findings_max

    def _explore(
        self, parents: list[tuple[Node, list[Point]]], depth: int, rule: Depth
    ) -> list[tuple[Node, list[Point]]]:
        after = self._profile[depth].parents if depth < len(self._profile) else 0
        stride = -(-rule.states // after) if after else 0
        ahead: list[tuple[Node, list[Point]]] = []
        for node in _fairly([self._children(*parent, rule) for parent in parents]):
            if self.report.states[depth] >= rule.states or self._enough:
                break
            self.report.images += 1
            key = (node.fs.image_digest(unsynced=True), node.ghost, node.cut)
            if key in self._seen:
                continue
            self._seen.add(key)
            self.report.states[depth] += 1
            is_parent = bool(after) and (
                node.killed is None or self.report.states[depth] % stride == 0
            )
            points = self._attempt(node, self._judge)
            if points and is_parent:
                ahead.append((node, points))
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

    def _judge(self, node: Node) -> list[Point]:
        """Read, open, compare, open again, go on working."""
        fs = node.fs.clone()
        seen = read_only(fs.clone())
        if seen is not None:
            match(node.ghost, seen)
            check_files(fs)
        elif NO_STORE not in node.ghost:
            raise Violation(f"expected {' or '.join(map(str, node.ghost))}, found no store")
        world = self._world(fs, node.ghost, node.cut)
        points = _watch(world)
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
        return points

    def _judge_again(self, world: World, opened: Observed) -> None:
        """Another opening changes nothing; what can be undone is there."""
        twin = self._world(world.fs.kill(), world.ghost)
        again = twin.open()
        if again != opened:
            raise Violation(f"the second opening made {again} of {opened}")
        check_history(twin.fs)
        check_files(twin.fs)
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
        chosen = points
        if len(points) > rule.points:
            draw = random.Random(parent.fs.image_digest())
            chosen = [points[at] for at in sorted(draw.sample(range(len(points)), rule.points))]
        following = dict(zip(map(id, points), points[1:], strict=False))
        yield from _fairly(
            [self._crashes(parent, each, following.get(id(each)), rule) for each in chosen]
        )

    def _crashes(
        self, parent: Node, point: Point, following: Point | None, rule: Depth
    ) -> Iterator[Node]:
        yield self._kill(parent, point, point.killed, f"kill {point}")
        for image in cuts_of(point.killed, rule.cuts):
            yield self._cut(parent, point, image)
        operation = point.operation
        if operation is not None and operation.op == "pwrite" and following is not None:
            half = half_done(point.killed, following.killed, operation)
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


def explore(task: tuple[str, bool]) -> Report:
    name, long = task
    return Explorer(SCENARIOS[name], LONG if long else SHORT).run()


def explore_all(names: Sequence[str], *, long: bool, processes: int = 2) -> list[Report]:
    """Every scenario, several at a time."""
    tasks = [(name, long) for name in names]
    if processes == 1:
        return [explore(task) for task in tasks]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return pool.map(explore, tasks, chunksize=1)


def table(reports: Sequence[Report], seconds: float) -> list[str]:
    """The reports in words."""
    lines = [f"{'scenario':24}{'points':>8}{'images':>9}{'states':>9}  by crashes{'':12}seconds"]
    for r in reports:
        lines.append(
            f"{r.scenario:24}{r.points:8}{r.images:9}{r.states.total():9}  "
            f"{_histogram(r.states):22}{r.seconds:7.1f}"
        )
    depths = sum((r.states for r in reports), Counter[int]())
    lines.append(
        f"{'all':24}{sum(r.points for r in reports):8}{sum(r.images for r in reports):9}"
        f"{depths.total():9}  {_histogram(depths):22}{seconds:7.1f}"
    )
    for report in reports:
        lines += ["\n  ".join(["VIOLATION:", *finding]) for finding in report.findings]
    lines.append(f"{sum(len(r.findings) for r in reports)} wrong states")
    return lines


def _histogram(states: Counter[int]) -> str:
    return " ".join(f"{depth}:{states[depth]}" for depth in sorted(states))


def main() -> int:
    parser = argparse.ArgumentParser(description="Crash the store everywhere.")
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], metavar="SCENARIO")
    parser.add_argument("--long", action="store_true", help="ten times as many states")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    began = time.perf_counter()
    names = chosen.scenarios or list(SCENARIOS)
    reports = explore_all(names, long=chosen.long, processes=chosen.processes)
    print("\n".join(table(reports, time.perf_counter() - began)))
    return int(any(report.findings for report in reports))


if __name__ == "__main__":
    sys.exit(main())
