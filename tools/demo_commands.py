"""The commands of the project as the main job calls them: words in, values out.

Contract: every call is one child process that ran to its end (or to its kill). The settings of
training stand here, once, for both runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.demo_children import Children, KillPoint, OnStep
from tools.demo_result import Moment, metrics_by_step
from trainer.data import TokenDataset, unigram_loss

ROWS_PER_STEP = 8
SEQ_LEN = 128
VOCAB_SIZE = 8000
VALIDATIONS = 8
VALIDATION_BATCHES = 16
LEARNING_RATE = 3e-3
# Files are read in random order, the rows of one in theirs: small files mix the documents.
ROWS_PER_FILE = 8


class Commands:
    """Calls commands on the runs `steady` and `killed` in a work directory."""

    def __init__(self, children: Children, work: Path, *, steps: int) -> None:
        self._children, self._work, self._steps = children, work, steps

    def prepare(self, corpus: str) -> dict[str, Any]:
        """Text to rows."""
        printed = self._children.run(
            *("trainer", "data", "prepare", "--corpus", corpus, "--json"),
            *("--out", str(self._work / "data"), "--seq-len", str(SEQ_LEN)),
            *("--vocab-size", str(VOCAB_SIZE), "--rows-per-file", str(ROWS_PER_FILE)),
            shown=True,
        )
        data: dict[str, Any] = json.loads(printed)
        return data

    def train(
        self, run: str, *, at_step: int, on_step: OnStep, kill: KillPoint | None = None
    ) -> int:
        """From the run's head, which is at `at_step`; the last acknowledged step."""
        settings = {
            "--preset": "nano",
            "--run-dir": self._work / run,
            "--data-dir": self._work / "data" / "train",
            "--val-data-dir": self._work / "data" / "val",
            "--max-steps": self._steps,
            "--seq-len": SEQ_LEN,
            "--micro-batch-size": ROWS_PER_STEP,
            "--learning-rate": LEARNING_RATE,
            "--lr-schedule": "steps",
            "--warmup-steps": max(1, self._steps // 12),
            "--decay-steps": self._steps,
            "--min-lr-ratio": 0.1,
            "--validate-every": max(1, self._steps // VALIDATIONS),
            "--max-validation-batches": VALIDATION_BATCHES,
        }
        words = [str(word) for pair in settings.items() for word in pair]
        return self._children.train(
            "trainer", "train", *words, at_step=at_step, on_step=on_step, kill=kill
        )

    def store(self, run: str, command: str, *words: str, ok: tuple[int, ...] = (0,)) -> str:
        """A command of `shardstore` on a run; what it printed."""
        return self._children.run("shardstore", command, str(self._work / run), *words, ok=ok)

    def fsck(self, run: str, *words: str) -> bool:
        """Whether fsck finds no damage."""
        printed = self.store(run, "fsck", "--json", *words, ok=(0, 4))
        return bool(json.loads(printed)["clean"])

    def info(self, run: str) -> dict[str, Any]:
        """What `trainer info` says about the run's head."""
        words = ("--run-dir", str(self._work / run), "--json")
        found: dict[str, Any] = json.loads(self._children.run("trainer", "info", *words))
        return found

    def moment(self, run: str, what: str) -> Moment:
        """Where the run stands."""
        info = self.info(run)
        state, trainer = info["state_digest"], info["trainer_digest"]
        return Moment(what=what, step=info["step"], state_digest=state, trainer_digest=trainer)

    def metrics(self, run: str) -> dict[int, dict[str, Any]]:
        """The numbers of every step, out of the store's log."""
        return metrics_by_step(json.loads(self.store(run, "log", "--json")))

    def unigram(self) -> tuple[float, int]:
        """The unigram model's loss on the rows that training validates on, and their number."""
        train, held_out = (
            TokenDataset.open(
                self._work / "data" / side, seq_len=SEQ_LEN, vocab_size=VOCAB_SIZE, shuffle=False
            )
            for side in ("train", "val")
        )
        with train, held_out:
            count = min(held_out.rows, ROWS_PER_STEP * VALIDATION_BATCHES)
            return unigram_loss(train, held_out.chunks(rows_max=count), VOCAB_SIZE), count
