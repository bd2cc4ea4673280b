"""``tacit ledger``: what a federation has spent."""

from __future__ import annotations

from typing import Annotated

import typer

from tacit.commands.options import AsJson, Delta, Epsilon, LedgerFile
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.terminal import print_json, print_ledger

app = typer.Typer(help="What a federation has spent.", no_args_is_help=True)


@app.command("create")
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


@app.command("amend")
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


@app.command("show")
def ledger_show(path: LedgerFile, as_json: AsJson = False) -> None:
    """Every charge, the lifetime total and what is left."""
    print_ledger(Ledger(path), as_json=as_json)


@app.command("verify")
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
