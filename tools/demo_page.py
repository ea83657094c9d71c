"""The page that the main job ends with: plain text for a reader who is new here. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from tools.demo_plot import text_plot
from tools.demo_result import Kill, Outcome, checks, different_steps

_WIDTH = 100


def page(outcome: Outcome, files: Sequence[str]) -> str:
    """`files` are the lines about what was left in the work directory."""
    sections = [
        _title(outcome),
        _text(outcome),
        _steady(outcome),
        _killed(outcome),
        _same(outcome),
        _there_and_back(outcome),
        _learned(outcome),
        _verdict(outcome),
        _times(outcome),
        ["Files", *(f"  {line}" for line in files)],
    ]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a small table."""
    cells = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _paragraph(text: str) -> str:
    return fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")


def _title(outcome: Outcome) -> list[str]:
    failed = [check for check in checks(outcome) if not check.ok]
    title = "A training run that survives kill -9"
    verdict = (
        "Everything held: the run that was killed three times is, bit for bit, the run that was "
        "never stopped."
        if not failed
        else f"{len(failed)} of {len(checks(outcome))} checks FAILED; see 'What had to hold'."
    )
    return [title, "=" * len(title), verdict]


def _text(outcome: Outcome) -> list[str]:
    train, held_out = outcome.data["train"], outcome.data["val"]
    return [
        "1. The text",
        _paragraph(
            f"{train['documents'] + held_out['documents']:,} documents of {outcome.data['corpus']} "
            f"became {train['tokens'] + held_out['tokens']:,} tokens of a vocabulary of "
            f"{outcome.data['vocab_size']:,}, cut into rows of {outcome.data['seq_len']}: "
            f"{train['rows']:,} to train on, {held_out['rows']:,} from documents that are held out."
        ),
    ]


def _steady(outcome: Outcome) -> list[str]:
    seconds = outcome.seconds["steady"]
    speed = outcome.steps * outcome.tokens_per_step / seconds
    return [
        "2. The run that was never stopped",
        _paragraph(
            f"{outcome.parameters:,} parameters in {outcome.shards} shards; {outcome.steps} steps "
            f"of {outcome.tokens_per_step:,} tokens in {seconds:.0f} s ({speed:,.0f} tokens/s). "
            "One shard at a time is read from the store, used, updated and written back; each step "
            "ends with one commit, which is on disk when it returns. This run is the yardstick."
        ),
    ]


def _killed(outcome: Outcome) -> list[str]:
    rows = [
        (
            number,
            kill.where,
            kill.step,
            kill.acknowledged,
            kill.recovered,
            "clean" if kill.fsck_clean else "DAMAGE",
        )
        for number, kill in enumerate(outcome.kills, 1)
    ]
    return [
        "3. The same run, killed three times",
        _paragraph(
            "A second run with the same settings was ended with SIGKILL, which no process can "
            "catch, three times. Each time the store was recovered and checked (fsck), and "
            "training went on."
        ),
        "",
        *table(("kill", "while it was", "step", "acknowledged", "recovered", "fsck"), rows),
        "",
        _paragraph(
            "Acknowledged is the last step whose commit had returned; it may never be lost. A step "
            "that was killed inside its commit may be there or not, but only as a whole: recovered "
            "is the acknowledged step or the next one. " + _one_more(outcome.kills)
        ),
        "",
        "  What 'shardstore recover' said:",
        *(f"    {n}: {line}" for n, kill in enumerate(outcome.kills, 1) for line in kill.plan),
    ]


def _one_more(kills: Sequence[Kill]) -> str:
    ahead = [str(n) for n, kill in enumerate(kills, 1) if kill.recovered > kill.acknowledged]
    if not ahead:
        return "Here it always was the acknowledged one; the step that was lost was made again."
    return (
        f"After kill {' and '.join(ahead)} it was the next one: its record was already whole in "
        "the log, so the step counts."
    )


def _same(outcome: Outcome) -> list[str]:
    different = len(different_steps(outcome.steady, outcome.killed))
    return [
        "4. Is it the same run?",
        _paragraph(
            f"Loss, gradient norm and learning rate, which every commit records, are equal to the "
            f"last bit in {outcome.steps - different} of {outcome.steps} steps. The trainer digest "
            "covers all weights, all optimizer state, the place in the data, the schedule and the "
            "random generators:"
        ),
        "",
        *table(
            ("run", "trainer digest at the end"),
            [("never stopped", outcome.steady_digest), ("killed", outcome.killed_digest)],
        ),
    ]


def _there_and_back(outcome: Outcome) -> list[str]:
    rows = [(moment.what, moment.step, moment.state_digest) for moment in outcome.moments]
    return [
        "5. Back to a snapshot, and forth again",
        _paragraph(
            "A snapshot that was taken half-way names a step and keeps it. At the end the killed "
            "run was rewound to it, which moves the head and copies nothing, and the rewind was "
            "undone."
        ),
        "",
        *table(("when", "step", "state digest"), rows),
        "",
        "  The newest commits ('shardstore log'):",
        *(f"    {line[: _WIDTH - 4]}" for line in outcome.log_lines),
    ]


def _learned(outcome: Outcome) -> list[str]:
    lines = {"ln V": outcome.ln_vocab, "unigram": outcome.unigram}
    plot = text_plot(outcome.losses("train_loss"), outcome.losses("val_loss"), lines)
    step, loss = outcome.held_out
    return [
        "6. Did it learn?",
        _paragraph(
            f"Loss in nats per token on {outcome.validation_rows} held-out rows. Guessing evenly "
            "among all tokens costs ln V; knowing how often each token occurs, and nothing else, "
            "costs the unigram model's loss. Below that, the model uses what came before."
        ),
        "",
        *table(
            ("model", "held-out loss"),
            [
                ("guessing evenly (ln V)", f"{outcome.ln_vocab:.4f}"),
                ("unigram", f"{outcome.unigram:.4f}"),
                (f"trained, at step {step}", f"{loss:.4f}"),
            ],
        ),
        "",
        "  Loss by step ('.' training, 'o' held out):",
        *(f"  {line}" for line in plot),
    ]


def _verdict(outcome: Outcome) -> list[str]:
    lines = ["What had to hold"]
    for check in checks(outcome):
        lines.append(f"  {'ok    ' if check.ok else 'FAILED'}  {check.what}")
        lines.append(f"          {check.seen}")
    return lines


def _times(outcome: Outcome) -> list[str]:
    names = {
        "setup": "set-up: download and installation (not part of the job)",
        "data": "text, tokenizer, rows",
        "steady": "run that was never stopped",
        "killed": "run that was killed, with recoveries",
        "rest": "snapshot, rewind, checks, this page",
        "total": "the job, without set-up",
    }
    rows = [
        (text, f"{outcome.seconds[name]:.0f} s")
        for name, text in names.items()
        if name in outcome.seconds
    ]
    return ["Times", *table(("part", "took"), rows)]
