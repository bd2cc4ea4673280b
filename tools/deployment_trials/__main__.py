"""Run the trials (``python -m tools.deployment_trials``), one or several of each kind."""

from __future__ import annotations

import json
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from tacit.journal import machine
from tacit.privacy.ledger import Ledger
from tests.flower.deployment import Deployment, deployed
from tools.deployment_trials.books import FEDERATION, server_ledger
from tools.deployment_trials.campaigns import (
    BUDGET,
    CAMPAIGNS,
    DROPOUT,
    NODES,
    RESULT,
    Campaign,
    Scene,
)


@dataclass(frozen=True)
class Trial:
    """How one trial ended."""

    campaign: str
    seed: int
    ended: str
    """``result``, or the sentence with which the run was refused."""
    problem: str
    """What must not be; empty if nothing."""
    seconds: float
    events: list[str] = field(default_factory=list)


app = typer.Typer(add_completion=False)


@app.command()
def main(
    trials: Annotated[int, typer.Option(min=1, help="How many of each kind.")] = 1,
    only: Annotated[str, typer.Option(help="Kinds, with commas between them.")] = "",
    seed: Annotated[int | None, typer.Option(help="Of the first trial; the others follow.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Kill, stop and restart what a deployment consists of, and look at its books."""
    names = [name.strip() for name in only.split(",")] if only else list(CAMPAIGNS)
    for name in names:
        if name not in CAMPAIGNS:
            typer.echo(f"--only names {name!r}; allowed are {', '.join(CAMPAIGNS)}", err=True)
            raise typer.Exit(2)
    signal.signal(signal.SIGTERM, _ended)  # what was started must be stopped then too
    first = secrets.randbelow(2**31) if seed is None else seed
    typer.echo(f"seed {first}", err=as_json)
    done: list[Trial] = []
    for trial in played(names, trials, first):
        done.append(trial)
        ended = trial.problem or trial.ended
        typer.echo(
            f"{trial.campaign} {trial.seed}: {trial.seconds:.0f} s; {'; '.join(trial.events)}; "
            f"{'FAILED: ' if trial.problem else ''}{ended}",
            err=as_json,
        )
    table = table_of(done)
    if out:
        out.write_text(json.dumps(table, indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps(table, indent=2))
    else:
        for row in table["campaigns"]:
            typer.echo("{campaign}: {trials} trial(s), {failures} failure(s)".format(**row))
    if any(trial.problem for trial in done):
        raise typer.Exit(1)


def _ended(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def played(names: list[str], trials: int, seed: int) -> Iterator[Trial]:
    """Trials of every kind, on as few deployments as they allow."""
    together = [name for name in names if CAMPAIGNS[name].shares_deployment]
    waiting = [(name, seed + number) for name in together for number in range(trials)]
    while waiting:  # a deployment whose trial failed is left, the others go on with a new one
        with ready() as deployment:
            failed = False
            while waiting and not failed:
                trial = _played(*waiting.pop(0), deployment)
                failed = bool(trial.problem)
                yield trial
    for name in names:
        for number in range(trials if name not in together else 0):
            with ready() as deployment:
                trial = _played(name, seed + number, deployment)
            yield trial


@contextmanager
def ready() -> Iterator[Deployment]:
    """A deployment whose server has a ledger with as large a budget as the nodes have."""
    with (
        tempfile.TemporaryDirectory(prefix="tacit-trials-") as folder,
        deployed(Path(folder) / "deployment", NODES, DROPOUT, BUDGET.epsilon) as deployment,
    ):
        Ledger.create(server_ledger(deployment), FEDERATION, BUDGET)
        yield deployment


def _played(name: str, seed: int, deployment: Deployment) -> Trial:
    campaign: Campaign = CAMPAIGNS[name]
    scene, begun = Scene(deployment, Random(f"{name} {seed}")), time.monotonic()
    ended = problem = ""
    try:
        ended = campaign.play(scene)
        if not campaign.checks_books:
            scene.check_books()
    except Exception as error:  # the other trials go on, and this one counts as failed
        problem = f"{type(error).__name__}: {error}"
    return Trial(name, seed, ended, problem, time.monotonic() - begun, scene.events)


def table_of(trials: list[Trial]) -> dict[str, Any]:
    """How many trials of each kind there were and failed, and where."""
    rows = []
    for name in dict.fromkeys(trial.campaign for trial in trials):
        own = [trial for trial in trials if trial.campaign == name]
        rows.append(
            {
                "campaign": name,
                "what": CAMPAIGNS[name].name,
                "trials": len(own),
                "failures": sum(bool(trial.problem) for trial in own),
                "results": sum(trial.ended == RESULT for trial in own),
                "seconds": round(sum(trial.seconds for trial in own), 1),
            }
        )
    return {
        "nodes": NODES,
        "campaigns": rows,
        "trials": [asdict(trial) for trial in trials],
        "machine": machine(),
    }


if __name__ == "__main__":
    app()
