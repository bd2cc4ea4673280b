"""The command line: ``tacit tune``, ``tacit plan``, ``tacit ledger`` and ``tacit bench``.

Bad input ends with exit code 2 and a sentence on standard error; ``--json`` prints one JSON
document on standard output and nothing else there.
"""

from __future__ import annotations

import sqlite3
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

import tacit
from tacit.bench import secure_sum as secure_sum_bench
from tacit.bench import votes as votes_bench
from tacit.federation import EvaluationFailed
from tacit.files import json_text, write_whole
from tacit.plan import load_plan
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import BudgetExceeded, Ledger, LedgerError
from tacit.privacy.mechanisms import Participation
from tacit.privacy.planner import plan as make_plan
from tacit.secure.protocol import SpoiledSum, TooFewClients
from tacit.terminal import (
    plan_table,
    print_json,
    print_ledger,
    print_outlook,
    print_result,
    print_secure_sum,
    progress_bars,
    stage_bars,
    votes_table,
    warn_if_poor,
)

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
    except (ValueError, LedgerError, BudgetExceeded, EvaluationFailed, ImportError) as error:
        _fail(str(error))
    except (TooFewClients, SpoiledSum) as error:
        _fail(str(error), code=3)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror}; check the path and its permissions")
    except sqlite3.Error as error:
        _fail(f"the ledger could not be read: {error}")


def _fail(message: str, code: int = 2) -> NoReturn:
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    console.print(f"tacit: {message}", style="red")
    sys.exit(code)


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
def tune(
    plan_file: Annotated[
        Path | None,
        typer.Argument(metavar="PLAN.toml", help="The plan; default: the digits example."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the plan; repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; default: a new one in tacit-runs."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=_whole, metavar="N", help="Seed of clients and candidates; noise has none."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let a federation choose its hyperparameters privately, then train with the choice.

    Writes plan.toml, ledger.json, result.json, model.npz and report.html to the folder. Exit code
    3: too many clients dropped out, and nothing was released.

    Example: tacit tune --set privacy.epsilon=0.5 --set federation.clients=100
    """
    from tacit import job

    chosen = [*(changes or []), *([] if seed is None else [f"search.seed={seed}"])]
    planned = load_plan(plan_file, chosen)
    folder = (
        out or Path("tacit-runs") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{planned.search.method}"
    )
    if not as_json:
        print_outlook(planned)
    with progress_bars() as progress:
        result = job.run(planned, folder, stage_bars(progress))
    if as_json:
        print_json(result.to_json())
    else:
        print_result(result, folder)


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
        print_json(
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
    console.print(plan_table(planned, participation, good or votes))
    if warn_if_poor(console, planned) and planned.recommended_votes != votes:
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
    print_ledger(ledger, as_json=as_json)


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
    print_ledger(ledger, as_json=as_json)


@ledger_app.command("show")
def ledger_show(path: LedgerFile, as_json: AsJson = False) -> None:
    """Every charge, the lifetime total and what is left."""
    print_ledger(Ledger(path), as_json=as_json)


@ledger_app.command("verify")
def ledger_verify(path: LedgerFile, as_json: AsJson = False) -> None:
    """Recompute every line from its stored event; exit code 1 if one does not agree."""
    ledger = Ledger(path)
    problems = ledger.verify()
    lines = len(ledger)
    if as_json:
        print_json(
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
    with progress_bars() as progress:
        bar = progress.add_task("simulated votes", total=None)
        result = votes_bench.run(
            chosen if repetitions is None else repetitions,
            seed,
            out,
            lambda done, total: progress.update(bar, completed=done, total=total),
        )
    write_whole(out / "votes.json", json_text(result) + "\n")
    write_whole(out / "votes.html", votes_bench.figure(result).to_html(include_plotlyjs=True))
    if as_json:
        print_json(result)
        return
    console = Console(highlight=False)
    console.print(votes_table(result))
    console.print(f"{result['seconds']:.0f} s; plot: {out / 'votes.html'}", soft_wrap=True)


@bench_app.command("secure-sum")
def bench_secure_sum(
    quick: Annotated[
        bool, typer.Option("--quick", help="Up to 250 clients only, in seconds.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for results and journal.")] = Path(
        "tacit-runs/bench-secure-sum"
    ),
    as_json: AsJson = False,
) -> None:
    """Time, memory and bytes of the masked sum for 50 to 1000 clients in one process.

    Continues after a kill. Writes secure-sum.json to the folder.
    """
    sizes = secure_sum_bench.QUICK_SIZES if quick else secure_sum_bench.SIZES
    with progress_bars() as progress:
        bar = progress.add_task("sizes", total=len(sizes))
        result = secure_sum_bench.run(
            sizes, out, lambda done, total: progress.update(bar, completed=done, total=total)
        )
    write_whole(out / "secure-sum.json", json_text(result) + "\n")
    if as_json:
        print_json(result)
        return
    print_secure_sum(result)
