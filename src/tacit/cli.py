"""The command line: ``tacit plan``, ``tacit ledger`` and ``tacit bench``.

Bad input ends with exit code 2 and a sentence on standard error; ``--json`` prints one JSON
document on standard output and nothing else there.
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import tacit
from tacit.bench import votes as votes_bench
from tacit.bench.journal import write_whole
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import BudgetExceeded, Ledger, LedgerError, line_json
from tacit.privacy.mechanisms import Participation
from tacit.privacy.planner import Plan
from tacit.privacy.planner import plan as make_plan

POOR_CHANCE = 0.9

app = typer.Typer(
    help="Private hyperparameter tuning for federated learning, with the exact price.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
ledger_app = typer.Typer(help="What a federation has spent.", no_args_is_help=True)
bench_app = typer.Typer(help="The papers' experiments, and our measurements.", no_args_is_help=True)
app.add_typer(ledger_app, name="ledger")
app.add_typer(bench_app, name="bench")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"found {text!r}; allowed is a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"found {text!r}; allowed is a number") from None


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
LedgerFile = Annotated[Path, typer.Argument(metavar="PATH", help="The ledger's file.")]
Epsilon = Annotated[
    float, typer.Option(parser=_number, metavar="NUMBER", help="Largest epsilon, 0.001 to 30.")
]
Delta = Annotated[
    float,
    typer.Option(
        parser=_number, metavar="NUMBER", help="Delta, 1e-10 to 0.1; below 1 / clients is usual."
    ),
]


def main() -> None:
    """Run the command line; expected errors become one sentence and exit code 2."""
    try:
        app()
    except (ValueError, LedgerError, BudgetExceeded) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror}; check the path and its permissions")
    except sqlite3.Error as error:
        _fail(f"the ledger could not be read: {error}")


def _fail(message: str) -> NoReturn:
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    console.print(f"tacit: {message}", style="red")
    sys.exit(2)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    """Private hyperparameter tuning for federated learning, with the exact price."""
    if show:
        typer.echo(f"tacit {tacit.__version__}")
        raise typer.Exit


@app.command()
def plan(
    clients: Annotated[
        int,
        typer.Option(parser=_whole, metavar="N", help="How many clients take part, at least 2."),
    ],
    candidates: Annotated[
        int, typer.Option(parser=_whole, metavar="N", help="How many configurations are compared.")
    ],
    votes: Annotated[
        int,
        typer.Option(parser=_whole, metavar="N", help="How many candidates a client votes for."),
    ],
    epsilon: Epsilon,
    delta: Delta,
    dropout: Annotated[
        float,
        typer.Option(
            parser=_number, metavar="FRACTION", help="Fraction of clients that may drop out."
        ),
    ] = 0.1,
    colluding: Annotated[
        float,
        typer.Option(
            parser=_number,
            metavar="FRACTION",
            help="Fraction of clients that may tell the server their noise.",
        ),
    ] = 0.0,
    good: Annotated[
        int | None,
        typer.Option(
            parser=_whole, metavar="N", help="Good candidates assumed; default: as many as votes."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Price a private vote before it is held, and say how likely it succeeds.

    Example: tacit plan --clients 50 --candidates 100 --votes 5 --epsilon 1 --delta 1e-5
    """
    participation = Participation(clients, dropout, colluding)
    planned = make_plan(participation, candidates, votes, Budget(epsilon, delta), good)
    if as_json:
        _print_json(
            {
                "privacy": {
                    "epsilon": epsilon,
                    "delta": delta,
                    "unit": "client",
                    "relation": "replace-one",
                    "dropout": dropout,
                    "colluding": colluding,
                },
                **asdict(planned),
            }
        )
        return
    console = Console(highlight=False)
    console.print(
        f"[bold]A private vote[/bold]: {clients} clients, {votes} of {candidates} candidates each, "
        f"ε = {epsilon:g}, δ = {delta:g} (per client, replace-one)"
    )
    console.print(_plan_table(planned, participation, good or votes))
    if planned.success < POOR_CHANCE:
        console.print(
            f"[yellow]Warning:[/yellow] even if all clients agree, a good candidate wins only "
            f"{planned.success:.0%} of the time. More clients help most; then a larger epsilon or "
            f"fewer candidates."
        )
        if planned.recommended_votes != votes:
            console.print(f"Votes a client: better {planned.recommended_votes} than {votes} here.")


@ledger_app.command("create")
def ledger_create(
    path: LedgerFile,
    federation: Annotated[str, typer.Option(help="Whose ledger it is.")],
    epsilon: Epsilon,
    delta: Delta,
    as_json: AsJson = False,
) -> None:
    """Begin a federation's ledger with its lifetime budget."""
    ledger = Ledger.create(path, federation, Budget(epsilon, delta))
    _show(ledger, as_json=as_json)


@ledger_app.command("amend")
def ledger_amend(
    path: LedgerFile,
    epsilon: Epsilon,
    delta: Delta,
    reason: Annotated[str, typer.Option(help="Who allowed it and why; kept on record.")],
    as_json: AsJson = False,
) -> None:
    """Set another budget from now on; the old one stays on record."""
    ledger = Ledger(path)
    ledger.amend(Budget(epsilon, delta), reason)
    _show(ledger, as_json=as_json)


@ledger_app.command("show")
def ledger_show(path: LedgerFile, as_json: AsJson = False) -> None:
    """Every charge, the lifetime total and what is left."""
    _show(Ledger(path), as_json=as_json)


@ledger_app.command("verify")
def ledger_verify(path: LedgerFile, as_json: AsJson = False) -> None:
    """Recompute every line from its stored event; exit code 1 if one does not agree."""
    ledger = Ledger(path)
    problems = ledger.verify()
    lines = len(ledger)
    if as_json:
        _print_json(
            {"verified": not problems, "charges": lines, "problems": [vars(p) for p in problems]}
        )
    else:
        for problem in problems:
            typer.echo(f"line {problem.number}: {problem.found}")
        verdict = f"{len(problems)} problem(s) found" if problems else "all agree"
        typer.echo(f"{lines} charge(s) recomputed: {verdict}.")
    if problems:
        raise typer.Exit(1)


@bench_app.command("votes")
def bench_votes(
    repetitions: Annotated[
        int | None,
        typer.Option(
            parser=_whole,
            metavar="N",
            help=f"Simulated votes a point; default: the paper's {votes_bench.REPETITIONS}.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help=f"{votes_bench.QUICK_REPETITIONS} repetitions, in seconds."),
    ] = False,
    seed: Annotated[
        int, typer.Option(parser=_whole, metavar="N", help="Seed of the simulation.")
    ] = 1,
    out: Annotated[Path, typer.Option(help="Folder for results, plot and journal.")] = Path(
        "tacit-runs/bench-votes"
    ),
    as_json: AsJson = False,
) -> None:
    """DP-HYPE's simulation (section V-B): success against spread, good and all candidates.

    Continues after a kill. Writes votes.json and votes.html to the folder.
    """
    if quick and repetitions is not None:
        raise ValueError(f"found --quick and --repetitions {repetitions}; allowed is one of them")
    chosen = votes_bench.QUICK_REPETITIONS if quick else votes_bench.REPETITIONS
    with _progress() as progress:
        bar = progress.add_task("simulated votes", total=None)
        result = votes_bench.run(
            chosen if repetitions is None else repetitions,
            seed,
            out,
            lambda done, total: progress.update(bar, completed=done, total=total),
        )
    write_whole(out / "votes.json", json.dumps(result, indent=1) + "\n")
    write_whole(out / "votes.html", votes_bench.figure(result).to_html(include_plotlyjs=True))
    if as_json:
        _print_json(result)
        return
    console = Console(highlight=False)
    console.print(_votes_table(result))
    console.print(f"{result['seconds']:.0f} s; plot: {out / 'votes.html'}", soft_wrap=True)


def _plan_table(planned: Plan, participation: Participation, good: int) -> Table:
    noise = planned.noise
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("Noise required", f"variance {noise.required_variance:.4g} (integer, Skellam)")
    table.add_row(
        "One client's share",
        f"variance {noise.share_variance:.4g}: {participation.guaranteed} honest clients suffice",
    )
    table.add_row(
        "Noise delivered",
        f"variance {noise.delivered_variance:.4g}, σ {noise.sigma:.4g}, all present",
    )
    table.add_row(
        "For comparison",
        f"the paper: σ {planned.published.sigma:.4g}; exact Gaussian: σ "
        f"{planned.exact_gaussian.sigma:.4g} (neither allows for drop-outs)",
    )
    table.add_row(
        "Chance of a good pick",
        f"{_percent(planned.success)} if every client votes for the {good} good; "
        f"Theorem V.1: at least {_percent(planned.success_bound)}",
    )
    table.add_row(
        "Answers needed", f"{planned.threshold} of {participation.clients}, else nothing opens"
    )
    table.add_row("Upload a client", f"{planned.bytes_per_client / 1000:.1f} kB")
    return table


def _percent(chance: float) -> str:
    """Rounded down: a chance is never shown larger than it is."""
    return f"{math.floor(1000 * chance) / 10:.1f} %"


def _votes_table(result: dict[str, Any]) -> Table:
    table = Table(title="Chance of a good winner: published noise / Tacit's noise")
    table.add_column("votes", justify="right")
    shown = [
        p
        for p in result["points"]
        if p["figure"] == "loss deviation" and p["loss_deviation"] in (0.2, 1)
    ]
    columns = sorted({(p["epsilon"], p["loss_deviation"]) for p in shown})
    for epsilon, deviation in columns:
        table.add_column(f"ε {epsilon:g}, spread {deviation:g}", justify="right")
    cells = {(p["votes"], p["epsilon"], p["loss_deviation"]): p for p in shown}
    for number in sorted({p["votes"] for p in shown}):
        row = [cells[number, *column] for column in columns]
        table.add_row(
            str(number),
            *(
                f"{p['published']:.3f} / "
                + ("refused" if p["tacit"] is None else f"{p['tacit']:.3f}")
                for p in row
            ),
        )
    return table


def _show(ledger: Ledger, *, as_json: bool) -> None:
    budget, total, charges = ledger.budget, ledger.total(), ledger.charges()
    if as_json:
        _print_json(
            {
                "federation": ledger.federation,
                "path": str(ledger.path),
                "budget": vars(budget),
                "total": vars(total),
                "charges": [line_json(charge) for charge in charges],
            }
        )
        return
    console = Console(highlight=False)
    table = Table(title=f"Ledger of {ledger.federation}", title_justify="left")
    for name in ("line", "time", "run", "question"):
        table.add_column(name)
    table.add_column("ε alone", justify="right")
    table.add_column("ε so far", justify="right")
    for charge in charges:
        table.add_row(
            str(charge.number),
            charge.time,
            charge.run,
            charge.label,
            f"{charge.alone.epsilon:.4g}",
            f"{charge.total.epsilon:.4g}",
        )
    if charges:
        console.print(table)
    else:
        console.print(f"Ledger of {ledger.federation}: nothing spent yet.")
    console.print(
        f"Spent ε = {total.epsilon:.4g} of {budget.epsilon:g} at δ = {total.delta:g} "
        f"(per {total.unit}, {total.relation}; {total.accounting})."
    )


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _print_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, indent=2))
