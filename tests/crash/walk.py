"""One walk through the crashes of a scenario, or of a part of its crash points.

A run of a program notes what the memory file system holds before every mutating operation. From
each such crash point follow a kill (all writes kept; the operation itself may be half done) and
power cuts (every legal disk). Each distinct image is judged: read, opened for writing (which
recovers), compared, opened again; then the work goes on and is crashed in turn, two or three deep.
Images are the same, and explored once, when their bytes, what is unsynced and the ghost agree.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import islice, pairwise

from shardstore.fs.memory import Operation
from tests.crash.crashes import Depth, Node, Point, Profile, Report
from tests.crash.ghost import NO_STORE, Ghost
from tests.crash.images import cuts_of, half_done
from tests.crash.oracle import Observed, Violation, check_files, check_history, match
from tests.crash.scenarios import Scenario
from tests.crash.world import CrashFileSystem, Mutate, World, given_up, read_only


class Explorer:
    """Explores one scenario, breadth first, so that the first finding is a shortest one.

    Of the program's crash points it takes the `part`-th of `parts` equal shares. `seed` draws what
    is drawn: points, samples, which images it goes on from.
    """

    def __init__(
        self,
        scenario: Scenario,
        profile: Profile,
        *,
        mutate: Mutate | None = None,
        findings_max: int = 3,
        seconds: float | None = None,
        part: int = 0,
        parts: int = 1,
        seed: int = 0,
    ) -> None:
        self.report = Report(scenario.name)
        self._scenario = scenario
        self._profile = profile
        self._mutate = mutate
        self._findings_max = findings_max
        self._seconds = seconds
        self._part, self._parts, self._seed = part, parts, seed
        self._until = float("inf")
        self._seen: set[tuple[bytes, Ghost, Ghost | None]] = set()
        self._reads: dict[bytes, Observed] = {}
        self._whole: set[bytes] = set()
        self._again: set[tuple[bytes, Ghost, Observed]] = set()

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
                else self.report.states[depth] % stride == self._seed % stride
            )
            points = self._attempt(node, self._judge if is_parent else self._judge_alone)
            if points and is_parent and after is not None:
                ahead.append((node, self._chosen(node, points, after.points)))
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
        first, end = (len(points) * at // self._parts for at in (self._part, self._part + 1))
        return points[first:end]

    def _judge_alone(self, node: Node) -> list[Point]:
        """Of no run that goes on from here is anything explored."""
        return self._judge(node, noting=False)

    def _judge(self, node: Node, *, noting: bool = True) -> list[Point]:
        """Read, open, compare, open again, go on working."""
        fs = node.fs.clone()
        seen = self._read(fs)
        if seen is not None:
            match(node.ghost, seen)
            self._check_files(fs)
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
        seen = self._read(fs.kill())
        if seen is None:
            raise Violation("the store is gone after the work")
        match(world.ghost, seen)
        self._check_files(fs)
        return points

    # A reader and fsck judge what an opening can observe, so each such image is read and checked
    # once: works after different crashes leave the same ones again and again.

    def _read(self, fs: CrashFileSystem) -> Observed | None:
        image = fs.image_digest()
        seen = self._reads.get(image)
        if seen is None:
            seen = read_only(fs.clone())
            if seen is not None:
                self._reads[image] = seen
        return seen

    def _check_files(self, fs: CrashFileSystem) -> None:
        image = fs.image_digest()
        if image not in self._whole:
            check_files(fs)
            self._whole.add(image)

    def _judge_again(self, world: World, opened: Observed) -> None:
        """Another opening changes nothing; what can be undone is there. Where the first one left
        what another has left, that was judged."""
        fs = world.fs.kill()
        key = (fs.image_digest(unsynced=True), world.ghost, opened)
        if key not in self._again:
            self._open_again(self._world(fs, world.ghost), opened)
            self._again.add(key)

    def _open_again(self, twin: World, opened: Observed) -> None:
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
        chosen = self._chosen(parent, points, rule.points)
        if rule.mixed:
            chosen = self._draw(parent).sample(chosen, len(chosen))
        sources = [
            self._crashes(parent, each, rule, cut_first=rule.mixed and at % 2 == 1)
            for at, each in enumerate(chosen)
        ]
        yield from _fairly(sources)

    def _crashes(
        self, parent: Node, point: Point, rule: Depth, *, cut_first: bool
    ) -> Iterator[Node]:
        found = cuts_of(
            point.killed,
            rule.cuts,
            subsets_max=rule.subsets_max,
            samples=rule.samples,
            seed=self._seed,
        )
        cuts = (self._cut(parent, point, image) for image in found)
        if cut_first:
            yield from islice(cuts, 1)
        yield self._kill(parent, point, point.killed, f"kill {point}")
        yield from cuts
        operation = point.operation
        if operation is not None and operation.op == "pwrite" and point.after is not None:
            half = half_done(point.killed, point.after, operation)
            if half is not None:
                yield self._kill(parent, point, half, f"kill halfway through {point.name}")

    def _chosen(self, node: Node, points: list[Point], count: int) -> list[Point]:
        """So many of a run's points, and its end."""
        if len(points) <= count + 1:
            return points
        draw = self._draw(node)
        places = sorted(draw.sample(range(len(points) - 1), count))
        return [*(points[at] for at in places), points[-1]]

    def _draw(self, node: Node) -> random.Random:
        seed = self._seed.to_bytes(8, "little") if self._seed else b""
        return random.Random(node.fs.image_digest() + seed)

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
