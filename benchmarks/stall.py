"""What saving costs the training beside it: how long the caller is held, how far a matmul slows."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch

from benchmarks.compare.dcp import SavedInBackground
from benchmarks.compare.ours import Committer, Staging
from benchmarks.compare.torch_files import OneFile
from benchmarks.frame.disk import fresh_directory
from benchmarks.frame.physical import Physical
from benchmarks.frame.question import Bench, Question
from benchmarks.frame.result import Claim, Figure, Result, Table
from benchmarks.frame.rounds import SECONDS, Variant
from benchmarks.frame.state import ModelState, make_state

SIDE = 1024
WORK_S = 3.0
QUICK_WORK_S = 0.3
CALIBRATION_TIMES = 20
MATMUL_ALONE = "matmul alone"
STAGINGS: tuple[Staging, ...] = ("donated", "copied")


class Matmul:
    """A fixed amount of bf16 work on all threads, about a training step's."""

    def __init__(self, seconds: float) -> None:
        self._a = torch.rand(SIDE, SIDE, dtype=torch.bfloat16)
        self._b = torch.rand(SIDE, SIDE, dtype=torch.bfloat16)
        self._times = CALIBRATION_TIMES
        best = min(self.run() for _ in range(5))
        self._times = max(1, round(CALIBRATION_TIMES * seconds / best))

    def run(self) -> float:
        began = time.perf_counter()
        for _ in range(self._times):
            torch.mm(self._a, self._b)
        return time.perf_counter() - began

    def beside(self, start: Callable[[], tuple[float, Callable[[], object]]]) -> dict[str, float]:
        """The work's time while something runs that `start` began; its end is waited for after."""
        blocked, wait = start()
        seconds = self.run()
        wait()
        return {SECONDS: seconds, **({"blocked_s": blocked} if blocked else {})}


def ask(bench: Bench) -> Result:
    state = make_state(bench.model)
    matmul = Matmul(QUICK_WORK_S if bench.quick else WORK_S)
    committer = Committer(bench.scratch / "run", state, bench.settings)
    with ThreadPoolExecutor(1) as thread:
        held = bench.measure("Held: until the caller may go on", _held(bench, state, committer))
        beside = bench.measure(
            "A step's matmul beside one save", _beside(bench, state, committer, matmul, thread)
        )
    result = _result(committer, held, beside, state)
    if (host_bytes := getattr(committer.store, "host_bytes", None)) is not None:
        note = (
            f"all of the store's buffers after the runs; the state has {state.bytes / 1e6:,.0f} MB"
        )
        result.figures.append(
            Figure(name="host memory", value=float(host_bytes), unit="B", note=note)
        )
    committer.store.close()
    return result


def _held(bench: Bench, state: ModelState, committer: Committer) -> list[Variant]:
    physical = Physical(bench.scratch / "probe", state.object_sizes(), quick=True)
    variants = [physical.memcpy()]
    for staging in STAGINGS:
        before = partial(committer.prepare, staging)
        variants.append(
            Variant(name=f"commit, {staging}", note="stage and commit, durable on return",
                    act=partial(committer.commit, staging), before=before)
        )  # fmt: skip
        if committer.has_async:
            act = partial(_blocked, partial(committer.commit_async, staging))
            note = "stage and commit_async; the rest is waited for outside"
            variants.append(
                Variant(name=f"commit_async, {staging}", note=note, act=act, before=before)
            )  # fmt: skip
    dcp = SavedInBackground()
    directory = bench.scratch / "dcp"

    def save() -> dict[str, float]:
        figures = dcp.save(state, directory)
        return {SECONDS: figures["blocked_s"], "whole_s": figures[SECONDS]}

    variants.append(
        Variant(name="DCP async_save", kind="peer", note="copy of the state; durable later",
                act=save, before=partial(fresh_directory, directory),
                after=partial(shutil.rmtree, directory))
    )  # fmt: skip
    return variants


def _blocked(start: Callable[[], tuple[float, Callable[[], object]]]) -> dict[str, float]:
    began = time.perf_counter()
    blocked, wait = start()
    wait()
    return {SECONDS: blocked, "whole_s": time.perf_counter() - began}


def _beside(
    bench: Bench,
    state: ModelState,
    committer: Committer,
    matmul: Matmul,
    thread: ThreadPoolExecutor,
) -> list[Variant]:
    def alone() -> dict[str, float]:
        return {SECONDS: matmul.run()}

    variants = [Variant(name=MATMUL_ALONE, kind="reference", note="bf16, all threads", act=alone)]
    for staging in STAGINGS:
        note = "a waiting commit on a thread of the caller's"
        start = partial(_in_thread, thread, partial(committer.commit, staging))
        if committer.has_async:
            note, start = "commit_async", partial(committer.commit_async, staging)
        variants.append(
            Variant(name=f"beside the store, {staging}", note=note,
                    act=partial(matmul.beside, start), before=partial(committer.prepare, staging))
        )  # fmt: skip
    for peer in (SavedInBackground(), OneFile()):
        directory = bench.scratch / peer.name.replace(" ", "-").replace(",", "")
        save = partial(peer.save, state, directory)
        variants.append(
            Variant(name=f"beside {peer.name}", kind="peer",
                    note="on a thread of the caller's", before=partial(fresh_directory, directory),
                    act=partial(matmul.beside, partial(_in_thread, thread, save)),
                    after=partial(shutil.rmtree, directory))
        )  # fmt: skip
    return variants


def _in_thread(
    thread: ThreadPoolExecutor, work: Callable[[], object]
) -> tuple[float, Callable[[], object]]:
    future: Future[object] = thread.submit(work)
    return 0.0, future.result


def _result(committer: Committer, held: Table, beside: Table, state: ModelState) -> Result:
    result = Result(tables=[held, beside])
    alone = beside.row(MATMUL_ALONE)
    for row in beside.rows:
        if row is not alone:
            slower = 100 * (row.seconds / alone.seconds - 1)
            name = f"matmul {row.name}: slower by"
            result.figures.append(Figure(name=name, value=slower, unit="%"))
    if not committer.has_async:
        result.notes.append("this version of the store has no commit_async")
        return result
    donated, waiting = held.row("commit_async, donated"), held.row("commit, donated")
    share = 100 * donated.seconds / waiting.seconds
    text = "async commit, donated: caller held, of the waiting commit's time"
    noisy = donated.noisy or waiting.noisy
    result.claims.append(Claim(text=text, value=share, unit="%", at_most=1.0, noisy=noisy))
    copied, memcpy = held.row("commit_async, copied"), held.row("memcpy")
    times = copied.seconds / (state.bytes / memcpy.bytes_per_s)
    text = "async commit, copied: caller held, times the memcpy of the state"
    noisy = copied.noisy or memcpy.noisy
    result.claims.append(Claim(text=text, value=times, unit="x", at_most=1.5, noisy=noisy))
    return result


QUESTION = Question(
    title="What a save takes from the training beside it",
    about="""First the time until the caller may go on: for a waiting commit all of it, for one in
    the background the call. Then a fixed amount of bf16 matrix products, about a step's, alone and
    while one whole state is being saved; the save begins with the work.""",
    ask=ask,
    needs_model=True,
)
