"""The run on a store: what a commit of training holds, and shards for the executor.

The only module of the trainer that knows the store. A commit's metadata is the whole trainer
state, so that it cannot lag behind the tensors:

    trainer  what a resumed run needs (TrainerState)
    model    the model configuration
    metrics  small numbers of the step, for `shardstore log`
    clock    wall-clock numbers; the only part that two equal runs do not share

RNG states are blobs. `trainer_digest` is equal for two runs exactly when tensors, trainer state,
model, metrics and RNG are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor

from shardstore import (
    Commit,
    CorruptionError,
    Ref,
    Settings,
    ShardStoreError,
    Store,
    Transaction,
    UsageError,
    Wear,
)
from trainer import imported
from trainer.architecture import OPTIM, PARAMS, ModelConfig, model_from_dict
from trainer.errors import ResumeError
from trainer.init import init_shard
from trainer.optim import initial_state

Trace = Callable[[str, Mapping[str, Any]], None]
_RNG_CPU = "rng.torch.cpu"
_RNG_CUDA = "rng.torch.cuda"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """Everything beside the tensors that the next step depends on."""

    step: int = 0
    optimizer_step: int = 0
    """Applied updates; recorded steps do not count."""
    tokens_seen: int = 0
    tokens_applied: int = 0
    """Tokens of applied updates, which is what a schedule by tokens counts."""
    schedule: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    val_loss: float | None = None
    """Of the newest validation."""
    cursor: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    """Fingerprint of the training data."""
    config_hash: str = ""
    seed: int = 0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Training settings that change what a step computes."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TrainerState:
        return cls(**value)


class StoreCheckout:
    """A checked-out part, as the executor sees it."""

    def __init__(self, transaction: Transaction, shard: str, part: str) -> None:
        self.shard = shard
        self.part = part
        self.inner = transaction.checkout(shard, part)
        self.tensors: Mapping[str, Tensor] = self.inner.torch()


class StoreSource:
    """Shards of one open transaction (see `trainer.stream.source`)."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.staged: list[tuple[str, str]] = []
        """(shard, part) of what this step replaces."""

    @contextlib.contextmanager
    def load(self, shard: str, part: str) -> Iterator[Mapping[str, Tensor]]:
        with self._transaction.load(shard, part) as loaded:
            yield loaded.torch()

    def checkout(self, shard: str, part: str) -> StoreCheckout:
        return StoreCheckout(self._transaction, shard, part)

    def stage(self, checkout: Any) -> None:
        checkout.tensors = {}
        self._transaction.stage(checkout.shard, checkout.part, checkout.inner, donate=True)
        self.staged.append((checkout.shard, checkout.part))


class ViewSource:
    """Shards of one commit, for reading only."""

    def __init__(self, store: Store, at: Ref) -> None:
        self._store = store
        self._at = at

    @contextlib.contextmanager
    def load(self, shard: str, part: str) -> Iterator[Mapping[str, Tensor]]:
        with self._store.load(shard, part, self._at) as loaded:
            yield loaded.torch()

    def checkout(self, shard: str, part: str) -> StoreCheckout:
        raise ResumeError(f"shard {shard} part {part}: this view of the run is read-only")

    def stage(self, checkout: Any) -> None:
        raise ResumeError("this view of the run is read-only")


class StepTransaction:
    """One step's transaction; leaving it without `commit` aborts."""

    def __init__(self, transaction: Transaction, model: ModelConfig) -> None:
        self._transaction = transaction
        self._model = model
        self.source = StoreSource(transaction)

    def commit(
        self, state: TrainerState, metrics: Mapping[str, Any], clock: Mapping[str, Any]
    ) -> int:
        """Make the step durable; returns its sequence number."""
        metadata = metadata_of(state, self._model, metrics, clock)
        return self._transaction.commit(metadata=metadata, blobs=rng_blobs()).seq

    def keep_everything(self) -> None:
        """Every object stays as the parent has it: the step is recorded, not applied."""
        self._transaction.keep_rest()

    def __enter__(self) -> StepTransaction:
        return self

    def __exit__(self, *error: object) -> None:
        self._transaction.abort()


class Run:
    """An open run. Owns its store; one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def open(
        cls,
        run_dir: Path,
        *,
        write: bool,
        create: bool = False,
        trace: Trace | None = None,
        host_budget_bytes: int | None = None,
    ) -> Run:
        """Open the run's store; opening for writing recovers what a crash left.

        The budget bounds the shards that the store keeps in host memory (by default a quarter of
        the machine's).
        """
        mode: Literal["r", "r+", "a"] = "a" if create else "r+" if write else "r"
        settings = Settings(host_budget_bytes=host_budget_bytes)
        return cls(Store.open(run_dir, mode, settings=settings, trace=trace))

    @property
    def is_empty(self) -> bool:
        """Whether the run has no model yet."""
        return self._store.head is None

    def initialise(self, model: ModelConfig, seed: int, progress: Callable[[str], None]) -> int:
        """Commit step 0: parameters and optimizer state, one shard in memory at a time. Returns its
        sequence number."""
        shards = model.shard_names()
        torch.manual_seed(seed)
        with self._store.begin(0) as txn:
            for shard in shards:
                progress(f"{shard}/{PARAMS}")
                txn.stage(shard, PARAMS, init_shard(model, shard, seed))
            # Parameters first: the larger optimizer buffers then find all other memory free.
            for shard in shards:
                progress(f"{shard}/{OPTIM}")
                txn.stage(shard, OPTIM, initial_state(model, shard))
            state = TrainerState(config_hash=model.digest(), seed=seed)
            metadata = metadata_of(state, model, {}, {})
            return txn.commit(metadata=metadata, blobs=rng_blobs()).seq

    def state(self, at: str = "head") -> tuple[TrainerState, ModelConfig]:
        """The trainer state and the model of a commit; `at` as on the command line."""
        commit = self._store.commit_of(Ref.parse(at))
        if "trainer" not in commit.metadata and imported.KEY in commit.metadata:
            return self._imported(commit, Ref.parse(at))
        try:
            state = TrainerState.from_json(commit.metadata["trainer"])
            model = model_from_dict(commit.metadata["model"], source=f"run {self._store.path}")
        except (KeyError, TypeError) as error:
            raise ResumeError(
                f"run {self._store.path}: step {commit.step} was not committed by the trainer "
                f"({error}); name another run or start a new one"
            ) from error
        if state.config_hash != model.digest():
            raise ResumeError(
                f"run {self._store.path}: the model of step {commit.step} has hash "
                f"{model.digest()}, its trainer state names {state.config_hash}"
            )
        return state, model

    def _imported(self, commit: Commit, at: Ref) -> tuple[TrainerState, ModelConfig]:
        """Of a commit that `shardstore import` made of another system's run."""
        found = commit.metadata[imported.KEY]
        where = f"run {self._store.path}: step {commit.step}"
        model = imported.model_of(found, where)
        rows = [(r.shard, r.part, r.tensor, r.dtype, r.shape) for r in self._store.tensors(at)]
        imported.check_tensors(model, rows, where)
        return TrainerState(**imported.counters_of(found, model)), model

    def restore_rng(self) -> None:
        """Set the generators to where the head's commit left them."""
        blobs = self._store.commit_of().blobs
        if _RNG_CPU in blobs:
            torch.set_rng_state(_bytes_tensor(blobs[_RNG_CPU]))
        if _RNG_CUDA in blobs and torch.cuda.is_available():
            torch.cuda.set_rng_state(_bytes_tensor(blobs[_RNG_CUDA]))

    def begin(self, step: int, model: ModelConfig) -> StepTransaction:
        """Begin the transaction of a step."""
        return StepTransaction(self._store.begin(step), model)

    def view(self, at: str = "head") -> ViewSource:
        """Shards of a commit, for reading; `at` as on the command line."""
        return ViewSource(self._store, Ref.parse(at))

    def bytes_of(self, parts: Iterable[tuple[str, str]]) -> int:
        """Bytes of the objects that hold these parts of the head."""
        return sum(self._store.size_of(*part) for part in parts)

    def wear(self, rated_tbw: float) -> str:
        """What training writes to the run's disk when a step replaces every part, in words; at the
        pace of the head's step, where that is known."""
        head = self._store.commit_of()
        written = self.bytes_of(head.parts)
        seconds = head.metadata.get("clock", {}).get("seconds")
        wear = Wear.of(written, seconds) if seconds else Wear(bytes_per_commit=written)
        return "; ".join(wear.lines(_rated_bytes(rated_tbw)))

    def snapshot(self) -> str:
        """Keep the head under the name of its step; the name, also where it was there before."""
        head = self._store.commit_of()
        name = f"step_{head.step:08d}"
        if all(snapshot.name != name for snapshot in self._store.snapshots):
            self._store.snapshot(name)
        return name

    def digests(self, at: str = "head") -> dict[str, Any]:
        """Step, state digest and trainer digest of a commit."""
        ref = Ref.parse(at)
        commit, state_digest = self._store.commit_of(ref), self._store.state_digest(ref)
        return {
            "step": commit.step,
            "seq": commit.seq,
            "state_digest": state_digest,
            "trainer_digest": _trainer_digest(commit, state_digest),
        }

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._store.__exit__(kind, error, traceback)


def wear_of_step(written: int, seconds: float, rated_tbw: float) -> dict[str, Any]:
    """What a step that wrote so much means for the disk, for the step log."""
    wear, rated = Wear.of(written, seconds), _rated_bytes(rated_tbw)
    return {
        "bytes_written": written,
        "wear_bytes_per_day": wear.bytes_per_day,
        "wear_years": wear.years_until(rated) if rated is not None and written else None,
    }


def store_exit_code(error: Exception) -> int | None:
    """The exit code of an error of the store, None for any other."""
    if isinstance(error, CorruptionError):
        return 4
    if isinstance(error, UsageError):
        return 16
    return 8 if isinstance(error, ShardStoreError) else None


def metadata_of(
    state: TrainerState,
    model: ModelConfig,
    metrics: Mapping[str, Any],
    clock: Mapping[str, Any],
) -> dict[str, Any]:
    """A commit's metadata."""
    return {
        "trainer": state.to_json(),
        "model": model.to_dict(),
        "metrics": dict(metrics),
        "clock": dict(clock),
    }


def rng_blobs() -> dict[str, bytes]:
    """States of the generators that training may draw from."""
    blobs = {_RNG_CPU: bytes(torch.get_rng_state().numpy())}
    if torch.cuda.is_available():
        blobs[_RNG_CUDA] = bytes(torch.cuda.get_rng_state().numpy())
    return blobs


def _rated_bytes(rated_tbw: float) -> float | None:
    return rated_tbw * 1e12 if rated_tbw else None


def _trainer_digest(commit: Commit, state_digest: str) -> str:
    """State digest with the trainer state, without clock and sequence numbers."""
    rest = {key: value for key, value in commit.metadata.items() if key != "clock"}
    text = json.dumps([state_digest, rest], sort_keys=True, separators=(",", ":"))
    whole = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(commit.blobs):
        whole.update(name.encode() + b"\0" + commit.blobs[name])
    return whole.hexdigest()


def _bytes_tensor(blob: bytes) -> Tensor:
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8)
