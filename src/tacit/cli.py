"""The command line: ``tacit tune`` and ``tacit plan``, and the groups of commands.

Bad input ends with exit code 2 and a sentence on standard error; ``--json`` prints one JSON
document on standard output and nothing else there. ``docs/command-line.md`` has all exit codes.
"""

from __future__ import annotations

import errno
import sqlite3
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import tacit
from tacit.commands import audit, bench, compare, data, ledger, pareto, price, roster, runs, tables
from tacit.commands.completion import run_folders
from tacit.commands.options import (
    AsJson,
    Changes,
    DataDir,
    PlanFile,
    data_dir_change,
    fresh_folder,
    whole,
)
from tacit.commands.running import begin, go_on
from tacit.federation import EngineFailed, EvaluationFailed
from tacit.plan import load_plan
from tacit.printing import plain_console
from tacit.privacy.ledger import BudgetExceeded, LedgerError
from tacit.runs import run_in
from tacit.secure.protocol import SpoiledSum, TooFewClients
from tacit.terminal import print_json

app = typer.Typer(
    help="Private hyperparameter tuning for federated learning, with the exact price.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("plan")(price.plan)
app.command("compare")(compare.compare)
app.command("audit")(audit.audit)
app.add_typer(ledger.app, name="ledger")
app.add_typer(roster.app, name="roster")
app.add_typer(data.app, name="data")
app.add_typer(tables.app, name="tables")
app.add_typer(pareto.app, name="pareto")
app.add_typer(runs.app, name="runs")
app.add_typer(bench.app, name="bench")


BAD_INPUT = 2
"""Exit code of wrong input and of what is refused before anybody is asked."""
NOTHING_OPENED = 3
"""Exit code where clients were asked and nothing can be chosen; what was charged stays so."""


def main() -> None:
    """Run the command line; expected errors become one sentence and an exit code.

    What is not expected shows where it happened and ends with 1; Ctrl-C, which Typer minds, with
    130.
    """
    try:
        app()
    except (ValueError, LedgerError, BudgetExceeded, EvaluationFailed, ImportError) as error:
        _fail(str(error))
    except (TooFewClients, SpoiledSum, EngineFailed) as error:
        _fail(str(error), NOTHING_OPENED)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free some space and try again" if full else "check the path and its permissions"
        _fail(f"{error.filename or 'a file'}: {error.strerror}; {advice}")
    except sqlite3.Error as error:
        _fail(f"the ledger could not be read: {error}")


def _fail(message: str, code: int = BAD_INPUT) -> NoReturn:
    console = plain_console(stderr=True, soft_wrap=True)
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
    plan_file: PlanFile = None,
    changes: Changes = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; default: a new one in tacit-runs."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            autocompletion=run_folders,
            help="Go on with the run in this folder, as planned.",
        ),
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
    seeded = [] if seed is None else [f"search.seed={seed}"]
    chosen = [*(changes or []), *seeded, *data_dir_change(data_dir)]
    if resume is not None and (plan_file or chosen or out):
        raise ValueError(
            "found --resume with a plan, --set, --seed, --data-dir or --out; allowed is --resume "
            "alone: a run goes on as it was planned"
        )
    if resume is not None:
        go_on(run_in(resume), as_json=as_json)
        return
    planned = load_plan(plan_file, chosen)
    begin(planned, out or fresh_folder(planned.search.method), as_json=as_json)


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
    console = plain_console(soft_wrap=True)
    for path in written:
        console.print(f"  {path}")
    console.print(
        f"Next: cd {folder} && flwr run . --stream --federation-config 'num-supernodes=50'"
    )
