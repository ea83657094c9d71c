"""The store's side: opened with the run's settings, committed to and loaded from as a trainer does.

What a version of the store does not have yet (background commits, a host cache) is found out by
looking, so that one benchmark can be run over the repository's history.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from benchmarks.frame.rounds import SECONDS
from benchmarks.frame.state import ModelState, touch
from shardstore import Store, Transaction
from shardstore.context import Settings
from shardstore.store import Mode

Staging = Literal["donated", "copied"]


def setting_names() -> set[str]:
    return {field.name for field in dataclasses.fields(Settings)}


def open_store(path: Path, mode: Mode, settings: Mapping[str, Any]) -> Store:
    """With those of `settings` that this version has; one given by hand has to be known."""
    known = {name: value for name, value in settings.items() if name in setting_names()}
    return Store.open(path, mode, settings=Settings(**known))


def has_host_cache() -> bool:
    return hasattr(Store, "clear_cache")


def forget_cached(store: Any) -> None:
    """Cached objects go, their memory stays: the next load reads the disk into warm buffers."""
    if has_host_cache():
        store.clear_cache()


def check_settings(settings: Mapping[str, Any]) -> None:
    unknown = sorted(settings.keys() - setting_names())
    if unknown:
        raise ValueError(f"the store has no setting {unknown}; it has {sorted(setting_names())}")


class Committer:
    """Commits of the whole state, one step after the other, in the steady state.

    `prepare` is what a step does while it computes (not timed); `commit` is what it pays beyond.
    """

    def __init__(self, path: Path, state: ModelState, settings: Mapping[str, Any]) -> None:
        check_settings(settings)
        self.store = open_store(path, "a", settings)
        self._state = state
        self._step = 0
        self._transaction: Transaction | None = None
        self._checkouts: dict[tuple[str, str], Any] = {}
        for _ in range(4):  # kept commits, one more slot each, and the pool's buffers
            self.prepare("copied")
            self.commit("copied")

    def prepare(self, staging: Staging) -> None:
        self._step += 1
        self._transaction = self.store.begin(self._step)
        if staging == "copied":
            self._state.change()
            return
        for key in self._state.parts:
            checkout = self._transaction.checkout(*key)
            touch(list(checkout.torch().values()))
            self._checkouts[key] = checkout

    def commit(self, staging: Staging) -> None:
        """Stage every part and wait until it is durable."""
        self._stage(staging).commit(metadata={"loss": 1.0})

    @property
    def has_async(self) -> bool:
        return hasattr(Transaction, "commit_async")

    def commit_async(self, staging: Staging) -> tuple[float, Callable[[], object]]:
        """Seconds the caller was held, and how to wait for the rest."""
        began = time.perf_counter()
        transaction: Any = self._stage(staging)
        ticket = transaction.commit_async(metadata={"loss": 1.0})
        return time.perf_counter() - began, ticket.result

    def commit_async_and_wait(self, staging: Staging) -> dict[str, float]:
        began = time.perf_counter()
        blocked, wait = self.commit_async(staging)
        wait()
        return {SECONDS: time.perf_counter() - began, "blocked_s": blocked}

    def _stage(self, staging: Staging) -> Transaction:
        transaction = self._transaction
        assert transaction is not None, "prepare first"
        for key, tensors in self._state.parts.items():
            if staging == "donated":
                transaction.stage(*key, self._checkouts.pop(key), donate=True)
            else:
                transaction.stage(*key, tensors)
        return transaction
