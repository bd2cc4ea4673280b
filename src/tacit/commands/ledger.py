"""``tacit ledger``: what a federation has spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from tacit.closing import ClosedLine, check_closed_lines
from tacit.commands.options import AsJson, Delta, Epsilon, LedgerFile
from tacit.membership import Membership
from tacit.privacy.accounting import Budget
from tacit.privacy.filters import announced_step, split_ladder
from tacit.privacy.ledger import Ledger
from tacit.receipts import (
    Disagreement,
    check_receipts,
    count_by_line,
    left_out_by_line,
    read_receipts,
)
from tacit.secure.roster import Roster
from tacit.terminal import print_json, print_ledger, working
from tacit.transcripts import Finding, check_transcripts

app = typer.Typer(help="What a federation has spent.", no_args_is_help=True)


@app.command("create")
def ledger_create(
    path: LedgerFile,
    federation: Annotated[str, typer.Option(help="Whose ledger it is.")],
    epsilon: Epsilon,
    delta: Delta,
    ladder: Annotated[
        str,
        typer.Option(
            metavar="E1,E2,..",
            help="Every epsilon that the budget may be raised to, from --epsilon on.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Begin a federation's ledger with its lifetime budget.

    With --ladder, announce now which larger budgets may follow: raising the budget to one of them
    after looking at results stays within the proof. Every step gets an equal share of delta.

    Example: tacit ledger create clinics.sqlite --federation clinics --epsilon 4 --delta 1e-5
    """
    budget = Budget(epsilon, delta)
    ledger = Ledger.create(path, federation, budget, _steps(ladder, budget))
    print_ledger(ledger, as_json=as_json)


@app.command("amend")
def ledger_amend(
    path: LedgerFile,
    epsilon: Epsilon,
    delta: Delta,
    reason: Annotated[str, typer.Option(help="Who allowed it and why; kept on record.")],
    as_json: AsJson = False,
) -> None:
    """Set another budget from now on; the old one stays on record.

    A budget that is raised after a charge, and was not announced as a step of the ladder, leaves
    no epsilon that can be quoted without saying so.

    Example: tacit ledger amend clinics.sqlite --epsilon 6 --delta 1e-5 --reason "board, 3 May"
    """
    ledger, budget = Ledger(path), Budget(epsilon, delta)
    ledger.amend(budget, reason)
    print_ledger(ledger, as_json=as_json)
    if not as_json and ledger.ladder:
        step = announced_step(budget, ledger.ladder)
        where = f"is step {step} of" if step else "is not on"
        typer.echo(f"The new budget {where} the ladder that was announced with the ledger.")


@app.command("show")
def ledger_show(path: LedgerFile, as_json: AsJson = False) -> None:
    """Every charge, the lifetime total, and which epsilon may be quoted when.

    Example: tacit ledger show clinics.sqlite
    """
    print_ledger(Ledger(path), as_json=as_json)


@app.command("verify")
def ledger_verify(
    path: LedgerFile,
    receipts: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Clients' receipts, a file or a folder; repeatable."),
    ] = None,
    rosters: Annotated[
        list[Path] | None,
        typer.Option(
            "--roster",
            metavar="ROSTER.toml",
            help="Whose members signed; repeatable, for lines that earlier rosters closed.",
        ),
    ] = None,
    transcripts: Annotated[
        list[Path] | None,
        typer.Option(
            "--transcript",
            metavar="PATH",
            help="What was signed during sums, a file or a folder; repeatable.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every line from its stored event; exit code 1 if one does not agree.

    With a roster, check too that every member signed for each line that was closed, and with
    receipts that the ledger holds all that the clients signed for. With transcripts, add up the
    signed vectors again: is the sum that was opened theirs, was it paid for, and who misbehaved?
    Of a sum that stayed closed they say only the latter two.
    Receipts and transcripts are checked against the first roster.

    Example: tacit ledger verify ledger.sqlite --receipts collected --roster roster.toml
    """
    ledger = Ledger(path)
    with working("recomputing every line"):
        memberships = [Membership.load(path) for path in rosters or []]
        known = [membership.roster for membership in memberships]
        findings = _findings(ledger, transcripts or [], memberships)
        audit = _audit(ledger, receipts or [], known)
        closed = check_closed_lines(ledger.intact(), known) if known else []
        problems = ledger.verify()
    lines = len(ledger.intact() if problems else ledger)
    unfit = [finding for finding in findings if finding.problem]
    unsigned = [line for line in closed if line.problem]
    agreed = not problems and not (audit and audit.problems) and not unfit and not unsigned
    if as_json:
        print_json(
            {
                "verified": agreed,
                "charges": lines,
                "problems": [vars(problem) for problem in problems],
                **({"closed": list(map(asdict, closed))} if closed else {}),
                **({"receipts": asdict(audit)} if audit else {}),
                **({"transcripts": list(map(asdict, findings))} if findings else {}),
            }
        )
    else:
        for problem in problems:
            typer.echo(f"line {problem.number}: {problem.found}")
        typer.echo(f"{lines} charge(s) recomputed: {_verdict(problems)}.")
        if closed:
            _print_closed(closed, unsigned)
        if audit:
            _print_audit(audit)
        if findings:
            _print_findings(findings, unfit)
    if not agreed:
        raise typer.Exit(1)


def _steps(ladder: str, budget: Budget) -> tuple[Budget, ...]:
    """What ``--ladder`` announces."""
    if not ladder.strip():
        return ()
    try:
        epsilons = [float(part) for part in ladder.split(",")]
    except ValueError:
        raise ValueError(
            f"--ladder is {ladder!r}; allowed are numbers with commas between them, such as 1,2,4"
        ) from None
    return split_ladder(epsilons, budget.delta)


@dataclass(frozen=True)
class _Audit:
    """What clients' receipts say about a ledger."""

    checked: int
    problems: list[Disagreement]
    by_line: dict[int, int]
    left_out: dict[int, list[int]]
    """By line, the clients that were not in the sum when the others answered."""


def _audit(ledger: Ledger, receipts: list[Path], rosters: list[Roster]) -> _Audit | None:
    if not receipts:
        return None
    if not rosters:
        raise ValueError(
            "--receipts is given without --roster; both belong together: receipts are checked "
            "against the keys of a roster"
        )
    found = read_receipts(receipts)
    if not found:
        raise ValueError(
            f"there is no receipt in {', '.join(map(str, receipts))}; give the files that the "
            "clients keep in their folders, under receipts"
        )
    problems = check_receipts(found, ledger, rosters[0])
    return _Audit(
        len(found),
        problems,
        count_by_line(found, problems, ledger),
        left_out_by_line(found, problems, ledger),
    )


def _findings(ledger: Ledger, transcripts: list[Path], rosters: list[Membership]) -> list[Finding]:
    if not transcripts:
        return []
    if not rosters:
        raise ValueError(
            "--transcript is given without --roster; both belong together: what was signed is "
            "checked against the keys of a roster"
        )
    found = check_transcripts(transcripts, ledger, rosters[0].roster, rosters[0].participation)
    if not found:
        raise ValueError(
            f"there is no transcript in {', '.join(map(str, transcripts))}; give the files that "
            "the server keeps in a run's folder, under transcripts"
        )
    return found


def _print_closed(closed: list[ClosedLine], unsigned: list[ClosedLine]) -> None:
    for line in unsigned:
        typer.echo(f"line {line.number}: {line.problem}")
    typer.echo(f"{len(closed)} closed line(s) checked: {_verdict(unsigned)}.")


def _print_findings(findings: list[Finding], unfit: list[Finding]) -> None:
    for finding in findings:
        if finding.problem:
            typer.echo(f"{finding.file}: {finding.problem}")
            continue
        typer.echo(
            f"line {finding.line}: the sum stayed closed, so there is none to compute"
            if finding.closed
            else f"line {finding.line}: the vectors that {finding.survivors} client(s) signed add "
            "up to the sum that was opened"
        )
        for fault in finding.faults:
            typer.echo(f"line {finding.line}: {fault}, as the transcript proves")
    typer.echo(f"{len(findings)} transcript(s) checked: {_verdict(unfit)}.")


def _print_audit(audit: _Audit) -> None:
    for number, receipts in audit.by_line.items():
        missing = ", ".join(map(str, audit.left_out.get(number, ())))
        left_out = f"; left out: client {missing}" if missing else ""
        typer.echo(f"line {number}: {receipts} client(s) signed for it{left_out}")
    for problem in audit.problems:
        typer.echo(f"{problem.file}: {problem.found}")
    agree = f", {audit.checked - len(audit.problems)} agree" if audit.problems else ""
    typer.echo(f"{audit.checked} receipt(s) checked{agree}: {_verdict(audit.problems)}.")


def _verdict(problems: Sequence[object]) -> str:
    return f"{len(problems)} problem(s) found" if problems else "all agree"
