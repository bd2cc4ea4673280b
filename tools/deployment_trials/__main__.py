"""Run the trials (``python -m tools.deployment_trials``), one or several of each kind."""

from __future__ import annotations

import json
import secrets
import signal
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from tacit import locks
from tacit.files import write_whole
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
    """``result``, or the sentence with which the run failed."""
    problem: str
    """What must not be; empty if nothing."""
    seconds: float
    events: list[str] = field(default_factory=list)

    @property
    def failure(self) -> str:
        """What must not be, also in a trial of an older table; empty if nothing."""
        lost = CAMPAIGNS[self.campaign].completes and self.ended != RESULT
        return self.problem or (f"the run had no result: {self.ended}" if lost else "")


app = typer.Typer(add_completion=False)


@app.command()
def main(
    trials: Annotated[int, typer.Option(min=1, help="How many of each kind.")] = 1,
    only: Annotated[str, typer.Option(help="Kinds, with commas between them.")] = "",
    seed: Annotated[int | None, typer.Option(help="Of the first trial; the others follow.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the table as JSON after every trial; trials in it are not played again."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Kill, stop and restart what a deployment consists of, and look at its books."""
    names = [name.strip() for name in only.split(",")] if only else list(CAMPAIGNS)
    for name in names:
        if name not in CAMPAIGNS:
            typer.echo(f"--only names {name!r}; allowed are {', '.join(CAMPAIGNS)}", err=True)
            raise typer.Exit(2)
    if out and locks.take(out.with_name(f".{out.name}.lock")) is None:
        typer.echo(f"--out {out} is being written by another process; name another file", err=True)
        raise typer.Exit(2)
    signal.signal(signal.SIGTERM, _ended)  # what was started must be stopped then too
    first = secrets.randbelow(2**31) if seed is None else seed
    typer.echo(f"seed {first}", err=as_json)
    done = recorded(out) if out else []
    for trial in played(names, trials, first, {(one.campaign, one.seed) for one in done}):
        done.append(trial)
        if out:
            write_whole(out, json.dumps(table_of(done), indent=2) + "\n")
        typer.echo(
            f"{trial.campaign} {trial.seed}: {trial.seconds:.0f} s; {'; '.join(trial.events)}; "
            f"{f'FAILED: {trial.failure}' if trial.failure else trial.ended}",
            err=as_json,
        )
    table = table_of(done)
    if as_json:
        typer.echo(json.dumps(table, indent=2))
    else:
        for row in table["campaigns"]:
            typer.echo("{campaign}: {trials} trial(s), {failures} failure(s)".format(**row))
    if any(trial.failure for trial in done):
        raise typer.Exit(1)


def _ended(_signal: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing interrupts the end
    raise KeyboardInterrupt


def recorded(table: Path) -> list[Trial]:
    """The trials of a table that was written before; none if there is no such file."""
    if not table.exists():
        return []
    return [Trial(**told) for told in json.loads(table.read_bytes())["trials"]]


def played(
    names: Sequence[str], trials: int, seed: int, known: Collection[tuple[str, int]] = ()
) -> Iterator[Trial]:
    """Trials of every kind that are not known, on as few deployments as they allow."""
    missing = [
        (name, seed + number)
        for name in names
        for number in range(trials)
        if (name, seed + number) not in known
    ]
    waiting = [one for one in missing if CAMPAIGNS[one[0]].shares_deployment]
    alone = [one for one in missing if not CAMPAIGNS[one[0]].shares_deployment]
    while waiting:  # a deployment whose trial failed is left, the others go on with a new one
        with ready() as deployment:
            failed = False
            while waiting and not failed:
                trial = _played(*waiting.pop(0), deployment)
                failed = bool(trial.failure)
                yield trial
    for one in alone:
        with ready() as deployment:
            trial = _played(*one, deployment)
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


def table_of(trials: Sequence[Trial]) -> dict[str, Any]:
    """How many trials of each kind there were and failed, and where."""
    rows = []
    for name in dict.fromkeys(trial.campaign for trial in trials):
        own = [trial for trial in trials if trial.campaign == name]
        rows.append(
            {
                "campaign": name,
                "what": CAMPAIGNS[name].name,
                "trials": len(own),
                "failures": sum(bool(trial.failure) for trial in own),
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
