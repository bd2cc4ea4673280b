"""The command line: ``tacit tune``, ``tacit plan``, ``tacit ledger`` and ``tacit bench``.

Bad input ends with exit code 2 and a sentence on standard error; ``--json`` prints one JSON
document on standard output and nothing else there.
"""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

import tacit
from tacit.bench import secure_sum as secure_sum_bench
from tacit.bench import votes as votes_bench
from tacit.federation import EvaluationFailed
from tacit.files import json_text, write_whole
from tacit.plan import Plan as RunPlan
from tacit.plan import load_plan
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import BudgetExceeded, Ledger, LedgerError, line_json
from tacit.privacy.mechanisms import Participation
from tacit.privacy.planner import Plan
from tacit.privacy.planner import plan as make_plan
from tacit.result import Result
from tacit.secure.protocol import SpoiledSum, TooFewClients

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
        _print_outlook(planned)
    with _progress() as progress:
        result = job.run(planned, folder, _stages(progress))
    if as_json:
        _print_json(result.to_json())
    else:
        _print_result(result, folder)


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
    if _warn_if_poor(console, planned) and planned.recommended_votes != votes:
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
    write_whole(out / "votes.json", json_text(result) + "\n")
    write_whole(out / "votes.html", votes_bench.figure(result).to_html(include_plotlyjs=True))
    if as_json:
        _print_json(result)
        return
    console = Console(highlight=False)
    console.print(_votes_table(result))
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
    with _progress() as progress:
        bar = progress.add_task("sizes", total=len(sizes))
        result = secure_sum_bench.run(
            sizes, out, lambda done, total: progress.update(bar, completed=done, total=total)
        )
    write_whole(out / "secure-sum.json", json_text(result) + "\n")
    if as_json:
        _print_json(result)
        return
    table = Table(title=f"One masked sum of {result['candidates']} integers a client, in process")
    for name in ("clients", "neighbours", "seconds", "peak MB", "up kB", "down kB"):
        table.add_column(name, justify="right")
    for point in result["points"]:
        table.add_row(
            str(point["clients"]),
            str(point["degree"]),
            f"{point['seconds']:.2f}",
            f"{point['peak_megabytes']:.0f}",
            f"{point['upload_bytes_per_client'] / 1000:.1f}",
            f"{point['download_bytes_per_client'] / 1000:.1f}",
        )
    console = Console(highlight=False)
    console.print(table)
    growth = result["growth"]
    if growth:
        console.print(
            f"From {growth['from_clients']} to {growth['to_clients']} clients: "
            f"{growth['seconds_ratio']:.1f} times as long; n log n grows "
            f"{growth['n_log_n_ratio']:.1f} times, the number of links "
            f"{growth['links_ratio']:.1f} times."
        )


def _warn_if_poor(console: Console, planned: Plan) -> bool:
    poor = planned.success < POOR_CHANCE
    if poor:
        console.print(
            f"[yellow]Warning:[/yellow] even if all clients agree, a good candidate wins only "
            f"{planned.success:.0%} of the time. More clients help most; then a larger epsilon or "
            f"fewer candidates."
        )
    return poor


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
    kind = "everyone" if planned.degree == participation.clients - 1 else "random graph"
    table.add_row(
        "Secure sum",
        f"{planned.degree} neighbours a client ({kind}), {planned.share_threshold} of them "
        "recover a secret",
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


def _stages(progress: Progress) -> Callable[[str, int, int], None]:
    """One bar a stage, made when the stage begins and started anew when it is repeated."""
    bars: dict[str, TaskID] = {}

    def show(stage: str, done: int, total: int) -> None:
        if stage not in bars:
            bars[stage] = progress.add_task(stage, total=total)
        progress.update(bars[stage], completed=done, total=total)

    return show


def _print_outlook(planned: RunPlan) -> None:
    search, terms, clients = planned.search, planned.privacy, planned.federation.clients
    console = Console(highlight=False)
    console.print(
        f"[bold]{search.method}[/bold]: {clients} clients, {planned.task.data}, "
        f"{planned.federation.partition}, {search.candidates} candidates"
    )
    if search.method != "vote":
        return
    candidates = planned.space.count(search.candidates, search.sampling)
    priced = make_plan(
        Participation(clients, terms.dropout, terms.colluding),
        candidates,
        search.votes,
        Budget(terms.epsilon, terms.delta),
    )
    console.print(
        f"{search.votes} votes each, ε = {terms.epsilon:g}, δ = {terms.delta:g} (per client, "
        f"replace-one); if all agree, a good candidate wins {_percent(priced.success)} of the time"
    )
    _warn_if_poor(console, priced)


def _print_result(result: Result, folder: Path) -> None:
    console = Console(highlight=False)
    guarantee = result.privacy.guarantee
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("Chosen", ", ".join(f"{k} = {_short(v)}" for k, v in result.config.items()))
    if result.tally is not None and result.privacy.delivered_variance:
        first, second = sorted(result.tally, reverse=True)[:2]
        sigma = math.sqrt(result.privacy.delivered_variance)
        table.add_row("Tally", f"{first} against {second} of the runner-up; noise σ = {sigma:.3g}")
    table.add_row(
        "Clients",
        f"{result.clients.asked} asked, {result.clients.answered} answered, "
        f"{result.clients.dropped} dropped out",
    )
    if result.accuracy is not None:
        table.add_row("Accuracy", f"{_percent(result.accuracy)} on the public test split")
    table.add_row(
        "Cost",
        f"ε = {_ceiling(guarantee.epsilon)} at δ = {guarantee.delta:g} (per {guarantee.unit}, "
        f"{guarantee.relation})",
    )
    table.add_row("Against", result.privacy.server)
    table.add_row("Setting", result.privacy.setting)
    table.add_row("Covers", result.privacy.covers)
    console.print(table)
    console.print(f"Report: {folder / 'report.html'}", soft_wrap=True)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _ceiling(epsilon: float) -> str:
    """Four digits, rounded up: a cost is never shown smaller than it is."""
    return f"{math.ceil(epsilon * 1e4) / 1e4:g}" if math.isfinite(epsilon) else "infinite"


def _print_json(document: dict[str, Any]) -> None:
    typer.echo(json_text(document))
