"""The command line: ``tacit tune`` and ``tacit plan``, and the groups of commands.

Bad input ends with exit code 2 and a sentence on standard error; ``--json`` prints one JSON
document on standard output and nothing else there.
"""

from __future__ import annotations

import sqlite3
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn, Protocol

import typer
from rich.console import Console

import tacit
from tacit.commands import bench, data, ledger, roster, tables
from tacit.commands.options import AsJson, Colluding, DataDir, Delta, Dropout, Epsilon, whole
from tacit.federation import EngineFailed, EvaluationFailed, Progress, Watch
from tacit.files import json_text
from tacit.plan import TRAINING_METHODS, Plan, load_plan, plan_in
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import BudgetExceeded, LedgerError
from tacit.privacy.mechanisms import Participation
from tacit.privacy.planner import plan as make_plan
from tacit.privacy.planner import reward_plan
from tacit.result import Result
from tacit.secure.protocol import SpoiledSum, TooFewClients
from tacit.terminal import (
    plan_table,
    print_json,
    print_outlook,
    print_result,
    print_reward_plan,
    print_training_outlook,
    progress_bars,
    round_rows,
    stage_bars,
    warn_if_poor,
)

app = typer.Typer(
    help="Private hyperparameter tuning for federated learning, with the exact price.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(ledger.app, name="ledger")
app.add_typer(roster.app, name="roster")
app.add_typer(data.app, name="data")
app.add_typer(tables.app, name="tables")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line; expected errors become one sentence and exit code 2."""
    try:
        app()
    except (ValueError, LedgerError, BudgetExceeded, EvaluationFailed, ImportError) as error:
        _fail(str(error))
    except (TooFewClients, SpoiledSum, EngineFailed) as error:
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
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Go on with the run in this folder, as planned."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=whole, metavar="N", help="Seed of clients and candidates; noise has none."
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Let a federation choose its hyperparameters privately, then train with the choice.

    Writes plan.toml, ledger.json, result.json, model.npz and report.html to the folder. A run that
    was killed goes on after the last sum it opened with --resume. Exit code 3: too many clients
    dropped out, and nothing was released.

    Example: tacit tune --set privacy.epsilon=0.5 --set federation.clients=100
    """
    chosen = [*(changes or []), *([] if seed is None else [f"search.seed={seed}"])]
    if data_dir is not None:
        chosen.append(f"task.data_dir={json_text(str(data_dir))}")
    if resume is not None and (plan_file or chosen or out):
        raise ValueError(
            "found --resume with a plan, --set, --seed, --data-dir or --out; allowed is --resume "
            "alone: a run goes on as it was planned"
        )
    planned = load_plan(plan_file, chosen) if resume is None else plan_in(resume)
    fresh = Path("tacit-runs") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{planned.search.method}"
    folder = resume or out or fresh
    if not as_json:
        print_outlook(planned)
        if planned.training.private or planned.search.method in TRAINING_METHODS:
            from tacit.job import method_of

            print_training_outlook(planned, method_of(planned))
    with progress_bars() as progress:
        engine = _engine(planned.federation.engine)
        result = engine(
            planned,
            folder,
            stage_bars(progress),
            round_rows(progress),
            resume=resume is not None,
        )
    if as_json:
        print_json(result.to_json())
    else:
        print_result(result, folder)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the project.")],
    as_json: AsJson = False,
) -> None:
    """Write a Flower project that tunes privately and then trains; change task.py to your task.

    Example: tacit new clinics
    """
    from tacit.flower_project import write_project

    written = [str(path) for path in write_project(folder)]
    if as_json:
        print_json({"folder": str(folder), "files": written})
        return
    console = Console(highlight=False, soft_wrap=True)
    for path in written:
        console.print(f"  {path}")
    console.print(
        f"Next: cd {folder} && flwr run . --stream --federation-config 'num-supernodes=50'"
    )


class _Engine(Protocol):
    """What carries out a plan."""

    def __call__(
        self, plan: Plan, out: Path, progress: Progress, watch: Watch, *, resume: bool
    ) -> Result: ...


def _engine(name: str) -> _Engine:
    """What carries out a plan; each is imported only when it is asked for."""
    if name == "flower-simulation":
        from tacit.flower import simulation

        return simulation.run
    from tacit import job

    return job.run


@app.command()
def plan(
    clients: Annotated[
        int,
        typer.Option(parser=whole, metavar="N", help="How many clients take part, at least 2."),
    ],
    epsilon: Epsilon,
    delta: Delta,
    method: Annotated[
        str, typer.Option(metavar="NAME", help="What is priced: vote or feathers.")
    ] = "vote",
    candidates: Annotated[
        int | None,
        typer.Option(parser=whole, metavar="N", help="Vote: how many configurations there are."),
    ] = None,
    votes: Annotated[
        int | None,
        typer.Option(
            parser=whole, metavar="N", help="Vote: how many candidates a client votes for."
        ),
    ] = None,
    drawn: Annotated[
        int,
        typer.Option(
            parser=whole, metavar="N", help="FEATHERS: configurations tried in a reward round."
        ),
    ] = 5,
    rounds: Annotated[
        int, typer.Option(parser=whole, metavar="N", help="FEATHERS: reward rounds in all.")
    ] = 57,
    reward_share: Annotated[
        float,
        typer.Option(metavar="S", help="FEATHERS: share of the budget that rewards have."),
    ] = 1.0,
    dropout: Dropout = 0.1,
    colluding: Colluding = 0.0,
    good: Annotated[
        int | None,
        typer.Option(
            parser=whole, metavar="N", help="Good candidates assumed; default: as many as votes."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Price a private vote, or FEATHERS' rewards, before anybody is asked.

    Says how likely a vote succeeds, or what the noise leaves of the rewards.

    Example: tacit plan --clients 50 --candidates 100 --votes 5 --epsilon 1 --delta 1e-5

    Example: tacit plan --method feathers --clients 100 --rounds 20 --epsilon 3 --delta 1e-5
    """
    participation, budget = Participation(clients, dropout, colluding), Budget(epsilon, delta)
    terms = {
        "epsilon": epsilon,
        "delta": delta,
        "unit": "client",
        "relation": "replace-one",
        "dropout": dropout,
        "colluding": colluding,
    }
    console = Console(highlight=False)
    if method == "feathers":
        priced = reward_plan(participation, drawn, rounds, budget, reward_share)
        if as_json:
            print_json({"privacy": terms, "method": method, **asdict(priced)})
            return
        print_reward_plan(console, priced, participation, budget, reward_share)
        return
    if method != "vote":
        raise ValueError(f"--method is {method!r}; allowed are vote and feathers")
    if candidates is None or votes is None:
        raise ValueError(
            f"--candidates is {candidates} and --votes {votes}; a vote needs both as whole numbers"
        )
    planned = make_plan(participation, candidates, votes, budget, good)
    if as_json:
        print_json({"privacy": terms, **asdict(planned)})
        return
    console.print(
        f"[bold]A private vote[/bold]: {clients} clients, {votes} of {candidates} candidates each, "
        f"ε = {epsilon:g}, δ = {delta:g} (per client, replace-one)"
    )
    console.print(plan_table(planned, participation, good or votes))
    if warn_if_poor(console, planned) and planned.recommended_votes != votes:
        console.print(f"Votes a client: better {planned.recommended_votes} than {votes} here.")
