"""``tacit compare``: every method that applies, on the same clients, candidates and budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tacit import compare as comparison
from tacit import compare_tables
from tacit.commands import completion
from tacit.commands.options import (
    AsJson,
    Changes,
    DataDir,
    PlanFile,
    data_dir_change,
    filling,
    fresh_folder,
    number,
    whole,
)
from tacit.commands.tables import FOLDER as TABLES
from tacit.compare_page import cells, columns, notes, ordered, page, title
from tacit.contenders import CONTENDERS, chosen
from tacit.plan import load_plan
from tacit.printing import plain_console
from tacit.privacy.accounting import Budget
from tacit.tables import ScoreTable
from tacit.terminal import print_json, progress_bars, stage_bars, working

_WIDTH = 100
_QUICK_RUNS = 3


def compare(
    plan_file: PlanFile = None,
    changes: Changes = None,
    table: Annotated[
        str,
        typer.Option(
            metavar="TABLE",
            autocompletion=completion.table_names,
            help="Compare on a score table instead: its name (tacit tables list), or a file.",
        ),
    ] = "",
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            autocompletion=completion.several_of(CONTENDERS),
            help="Only these; default: all that are usual.",
        ),
    ] = "",
    seeds: Annotated[
        int | None,
        typer.Option(
            parser=whole,
            metavar="N",
            help=f"Runs of each method; default 1, on a table {compare_tables.RUNS}.",
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(parser=number, metavar="X", help="On a table: each method's; default 1."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(parser=number, metavar="X", help="On a table: likewise; default 1e-5."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="At most 16 candidates, 5 epochs for a score, 3 rounds of 2 epochs; on a table 3 "
            "runs.",
        ),
    ] = False,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; a killed comparison goes on in the same one."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare all methods that apply, on the same clients, candidates and budget, in simulation.

    Accuracy on test data, epsilon, bytes, exchanges and seconds side by side; methods that do not
    apply are listed with the reason. Each method runs on a throw-away ledger. Writes compare.json
    and compare.html to the folder, and continues after a kill if the folder is given again.

    Example: tacit compare --quick

    Example: tacit compare plan.toml --methods vote,combine-mean,opt --seeds 3

    Example: tacit compare --table digits-iid-n50 --epsilon 0.5
    """
    contenders = chosen(methods)
    folder = out or fresh_folder("compare")
    go_on = f"Go on with the same command and --out {folder}"
    if table:
        given = {"a plan": plan_file, "--set": changes, "--data-dir": data_dir}
        _only_without("--table", given)
        budget = Budget(1.0 if epsilon is None else epsilon, 1e-5 if delta is None else delta)
        few = _QUICK_RUNS if quick else compare_tables.RUNS
        with filling(folder, go_on), _bars() as (told, _):
            result = compare_tables.run(
                _table(table), contenders, budget, few if seeds is None else seeds, folder, told
            )
    else:
        _only_without("a plan, which says both,", {"--epsilon": epsilon, "--delta": delta})
        plan = load_plan(plan_file, [*(changes or []), *data_dir_change(data_dir)])
        plan = comparison.quick(plan) if quick else plan
        with filling(folder, go_on), _bars() as (told, stages):
            result = comparison.run(
                plan, contenders, 1 if seeds is None else seeds, folder, told, stages
            )
    with working("writing the page"):
        comparison.written(result, page(result), folder)
    if as_json:
        print_json(result)
    else:
        _print(result, folder)


def _only_without(what: str, others: Mapping[str, object]) -> None:
    wrong = [name for name, given in others.items() if given is not None]
    if wrong:
        raise ValueError(f"found {what} with {' and '.join(wrong)}; allowed is one or the other")


def _table(name: str) -> ScoreTable:
    made = TABLES / f"{name}.npz"
    return ScoreTable.load(made if made.exists() else name)


@contextmanager
def _bars() -> Iterator[tuple[comparison.Told, comparison.StageProgress]]:
    """A bar for all runs, and one for every stage of the one that is held."""
    with progress_bars() as progress:
        bar = progress.add_task("runs", total=None)

        def told(piece: str, done: int, total: int) -> None:
            progress.update(bar, description=f"runs: {piece}", completed=done, total=total)

        yield told, stage_bars(progress)


def _print(result: Mapping[str, Any], folder: Path) -> None:
    console = plain_console()
    console.width = max(console.width, _WIDTH)  # better wrapped by the terminal than cut
    console.print(title(result), style="bold")
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for heading in columns(result):
        left = heading in ("method", "ε covers")
        shown.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row, body in zip(ordered(result), cells(result), strict=True):
        shown.add_row(*body, style="dim" if row["reference"] else None)
    console.print(shown)
    for note in notes(result):
        console.print(note, soft_wrap=True)
    if result["not_compared"]:
        console.print("Not compared:")
    for name, why in result["not_compared"].items():
        console.print(f"  {name}: {why}", soft_wrap=True)
    console.print(f"Page: {folder / comparison.PAGE}", soft_wrap=True)
