"""The command `python -m benchmarks`."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).resolve().parent
SCRATCH = HERE / "tmp"
RESULTS = HERE / "results"
MODELS = {"v2.9": "v2.9", "v2.1": "v2.1", "nano-size": "nano"}


def _settings(context: click.Context, option: click.Parameter, words: tuple[str, ...]) -> Any:
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value.isdigit():
            raise click.BadParameter(f"found {word!r}, expected NAME=NUMBER")
        pairs[name] = int(value)
    return pairs


@click.command(epilog="example: python -m benchmarks commit load --model v2.9 --repeats 9")
@click.argument("names", nargs=-1, required=True, metavar="list | report | all | NAME...")
@click.option("--model", type=click.Choice(list(MODELS)), default="v2.9", show_default=True)
@click.option("--repeats", type=click.IntRange(1), help="Samples that count; 7, or 2 with --quick.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=SCRATCH,
    help="Where the files go; emptied. benchmarks/tmp by default.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="Where answers go; benchmarks/results, with --quick below --dir.",
)
@click.option("--seed", type=int, default=0, help="Of the order within the rounds.")
@click.option("--quick", is_flag=True, help="Small and short: tries the benchmark, not the store.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=_settings,
    metavar="NAME=NUMBER",
    help="A setting of the store under test, such as io_threads=4.",
)
def main(
    names: tuple[str, ...],
    model: str,
    repeats: int | None,
    directory: Path,
    results: Path | None,
    seed: int,
    quick: bool,
    settings: dict[str, int],
) -> None:
    """Measure the store beside the disk, the memory and its peers."""  # fmt: skip
    from benchmarks.frame.question import QUICK_REPEATS, Bench, answer, questions

    results = results or (directory / "results" if quick else RESULTS)
    if names == ("report",):
        _report(results)
        return
    known = questions()
    if names == ("list",):
        for name, question in known.items():
            click.echo(f"{name:<12}{question.title}")
        return
    wanted = list(known) if names == ("all",) else list(names)
    if unknown := [name for name in wanted if name not in known]:
        raise click.UsageError(f"no such question: {', '.join(unknown)}; see 'list'")
    failed = []
    for name in wanted:
        bench = Bench(
            scratch=directory / "scratch",
            model=MODELS[model],
            repeats=repeats or (QUICK_REPEATS if quick else 7),
            quick=quick,
            seed=seed,
            settings=settings,
            say=lambda line: click.echo(f"  {line}", err=True),
        )
        click.echo(f"{name}: {known[name].title}", err=True)
        try:
            path = answer(name, known[name], bench, results)
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        _print_summary(path)
    if failed:
        raise click.ClickException(f"no answer to: {', '.join(failed)}")


def _report(results: Path) -> None:
    from benchmarks.frame.report import PAGE, make_page

    results.mkdir(parents=True, exist_ok=True)
    text = make_page(results)
    (results / PAGE).write_text(text, encoding="utf-8")
    click.echo(f"{results / PAGE}")


def _print_summary(path: Path) -> None:
    import json

    from benchmarks.frame.pictures import draw
    from benchmarks.frame.report import summary

    content = json.loads(path.read_text(encoding="utf-8"))
    draw(content, path.with_suffix(".png"))
    click.echo(summary(content))


if __name__ == "__main__":
    main()
