"""``tacit runs``: the runs that lie here, one of them, two side by side, and going on with one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.commands.options import AsJson, RunFolder
from tacit.commands.running import go_on
from tacit.comparison import Run as PageRun
from tacit.comparison import render
from tacit.display import settings
from tacit.files import write_whole
from tacit.printing import plain_console
from tacit.privacy.planner import percent
from tacit.runs import RUNS, Run, Unreadable, differences, find_runs, named_run
from tacit.terminal import print_json, print_result, working
from tacit.wording import rounded_up, short

app = typer.Typer(help="Runs that lie here: list, show, compare, resume.", no_args_is_help=True)

_NONE = "–"
_LIST_WIDTH = 120
_UNITS = {"bytes": "bytes of all clients", "exchanges": "exchanges", "seconds": "seconds"}


@app.command("list")
def list_(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Where to look, with all below; default tacit-runs."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Every run in a folder, the newest first: its state, what it chose and what it cost.

    Example: tacit runs list
    """
    if folder is not None and not folder.is_dir():
        raise ValueError(f"{folder} is no folder; allowed is one that holds runs")
    where = folder or RUNS
    runs, unreadable = find_runs(where)
    if as_json:
        print_json(
            {
                "folder": str(where),
                "runs": [run.summary() for run in runs],
                "unreadable": [{"folder": str(u.folder), "why": u.why} for u in unreadable],
            }
        )
        return
    console = plain_console()
    console.width = max(console.width, _LIST_WIDTH)  # better wrapped by the terminal than cut
    if not runs and not unreadable:
        console.print(f"No run in {where} yet; begin one: tacit tune")
        return
    console.print(_table(where, runs))
    _print_unreadable(console, unreadable)


@app.command()
def show(run: RunFolder, as_json: AsJson = False) -> None:
    """One run: its plan, its state, its result and where its report is.

    Example: tacit runs show 20260517T101500-vote
    """
    found = named_run(run)
    if as_json:
        print_json(
            {
                **found.summary(),
                "opened": found.opened,
                "why": found.why,
                "plan": found.plan.to_json() if found.plan else None,
                "result": found.result.to_json() if found.result else None,
            }
        )
        return
    console = plain_console(soft_wrap=True)
    about = found.summary()
    told = f"{found.folder}: {found.method}, {found.state}, begun {_when(found)} UTC"
    console.print(told + (f", {about['data']}, {about['clients']} clients" if found.plan else ""))
    if found.result is not None:
        print_result(found.result, found.folder)
    else:
        console.print(f"{found.opened} sum(s) opened so far, nothing chosen yet.")
    if found.why:
        console.print(f"{found.state.capitalize()}: {found.why}")
    if found.writer is not None:
        console.print(f"Being written now by {found.writer}.")
    elif found.state != "finished":
        console.print(f"Go on with: tacit runs resume {found.folder}")


@app.command()
def compare(
    first: RunFolder,
    second: RunFolder,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a page, such as both.html: finished runs."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Two runs side by side: what differs in their plans, what they chose, and what it took.

    Example: tacit runs compare 20260517T101500-vote 20260517T111500-combine --page both.html
    """
    pair = named_run(first), named_run(second)
    found = differences(*pair)
    if page is not None:
        write_whole(page, render([_on_page(run) for run in pair]))
    if as_json:
        print_json(found)
        return
    console = plain_console()
    table = Table("", *(str(run.folder) for run in pair), box=None, padding=(0, 2, 0, 0))
    table.add_row("state", *(run.state for run in pair))
    if any(run.writer for run in pair):
        table.add_row("written now by", *(_cell(run.writer and str(run.writer)) for run in pair))
    for key, (one, other) in {**found["plan"], **_named(found["config"])}.items():
        table.add_row(key, _cell(one), _cell(other))
    table.add_row("accuracy", *map(_accuracy, found["accuracy"]))
    table.add_row("ε", *map(_epsilon, found["epsilon"]))
    for key, words in _UNITS.items():
        table.add_row(words, *(_NONE if v is None else f"{v:,.0f}" for v in found[key]))
    console.print(table)
    if not found["plan"] and all(run.plan for run in pair):
        console.print("The plans are the same.")


def _on_page(run: Run) -> PageRun:
    """Its folder's files, as a page wants them."""
    if run.result is None or run.plan is None:
        raise ValueError(
            f"{run.folder} has {'no plan' if run.result else 'no result yet'}; allowed on a page "
            "are finished runs of `tacit tune`"
        )
    return PageRun(run.name, run.result.to_json(), run.plan.to_toml(), run.result.ledger)


@app.command()
def resume(run: RunFolder, as_json: AsJson = False) -> None:
    """Go on with a run that was killed or refused, after the last sum it opened.

    What the journal holds is not charged again; what must still be asked is, and how much that is
    stands there before anybody is asked. The same as tacit tune --resume.

    Example: tacit runs resume 20260517T101500-vote
    """
    go_on(named_run(run), as_json=as_json)


@app.command()
def export(
    run: RunFolder,
    storage: Annotated[
        str,
        typer.Option(metavar="URL", help="Where Optuna keeps studies, such as sqlite:///study.db."),
    ],
    name: Annotated[str, typer.Option(help="Of the new study; default: the run's name.")] = "",
    as_json: AsJson = False,
) -> None:
    """Write the released tally as an Optuna study, for optuna-dashboard and other tools.

    Every candidate becomes a completed trial. Its value is a noisy number of votes, as released,
    not an accuracy; the chosen one has the user attribute "chosen". Needs the extra "optuna".

    Example: tacit runs export 20260517T101500-vote --storage sqlite:///study.db
    """
    from tacit.studies import export as exported

    found = named_run(run)
    with working("writing the study"):
        written = exported(found, storage, name or found.name)
    if as_json:
        print_json(written)
        return
    console = plain_console(soft_wrap=True)
    console.print(f"{written['trials']} trials in study {written['study']} of {storage}.")
    console.print(f"Values are {written['values']}.")
    console.print(f"Look at it with: optuna-dashboard {storage}")


def _table(where: Path, runs: list[Run]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("run", "state", "method", "data", "accuracy", "ε", "begun (UTC)", "chosen"):
        right = heading in ("accuracy", "ε")
        table.add_column(heading, justify="right" if right else "left", no_wrap=heading != "chosen")
    for run in runs:
        row = run.summary()
        table.add_row(
            str(run.folder.relative_to(where)),
            f"{run.state}, runs now" if run.writer else run.state,
            run.method,
            row["data"] or _NONE,
            _accuracy(row["accuracy"]),
            _epsilon(row["epsilon"]),
            _when(run),
            settings(row["config"]) if row["config"] else _NONE,
        )
    return table


def _print_unreadable(console: Console, unreadable: list[Unreadable]) -> None:
    for one in unreadable:
        console.print(f"{one.folder} cannot be read: {one.why}", soft_wrap=True)


def _when(run: Run) -> str:
    return f"{run.begun:%Y-%m-%d %H:%M}"


def _named(config: Mapping[str, Any]) -> dict[str, Any]:
    return {f"chosen {name}": pair for name, pair in config.items()}


def _cell(value: Any) -> str:
    return _NONE if value is None else short(value)


def _accuracy(value: float | None) -> str:
    return _NONE if value is None else percent(value)


def _epsilon(value: float | None) -> str:
    return _NONE if value is None else rounded_up(value)
