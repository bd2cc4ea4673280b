"""What the commands print for people: sentences, tables and progress bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from tacit.files import json_text
from tacit.plan import Plan as RunPlan
from tacit.plan import combining
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger, line_json
from tacit.privacy.mechanisms import Participation
from tacit.privacy.planner import Plan, percent
from tacit.privacy.planner import plan as make_plan
from tacit.result import Result
from tacit.tuners.combine import Combine
from tacit.tuners.tuner import Tuner
from tacit.tuning import noise_for


def warn_if_poor(console: Console, planned: Plan) -> bool:
    """Say so when even unanimous clients would often pick a bad candidate."""
    if planned.warning:
        console.print(f"[yellow]Warning:[/yellow] {planned.warning}")
    return bool(planned.warning)


def plan_table(planned: Plan, participation: Participation, good: int) -> Table:
    """The price of a vote."""
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
        f"{percent(planned.success)} if every client votes for the {good} good; "
        f"Theorem V.1: at least {percent(planned.success_bound)}",
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


def votes_table(result: dict[str, Any]) -> Table:
    """The simulation of votes, the two spreads that tell most."""
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


def print_ledger(ledger: Ledger, *, as_json: bool) -> None:
    """Every charge, the total and the budget."""
    budget, total, charges = ledger.budget, ledger.total(), ledger.charges()
    if as_json:
        print_json(
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
            _ceiling(charge.alone.epsilon),
            _ceiling(charge.total.epsilon),
        )
    if charges:
        console.print(table)
    else:
        console.print(f"Ledger of {ledger.federation}: nothing spent yet.")
    console.print(
        f"Spent ε = {_ceiling(total.epsilon)} of {budget.epsilon:g} at δ = {total.delta:g} "
        f"(per {total.unit}, {total.relation}; {total.accounting})."
    )


def print_speed(result: dict[str, Any]) -> None:
    """How much faster candidates are scored, and what halving saves."""
    table = Table(title="100 candidates against a plain loop, in one run")
    for heading in ("model", "times as fast", "on a grid", "seconds", "of the peak", "way"):
        table.add_column(heading, justify="left" if heading in ("model", "way") else "right")
    for row in result["rows"]:
        peak, shared = row.get("share_of_peak"), row.get("shared_epochs_ratio")
        table.add_row(
            row["model"],
            f"{row['ratio']:.1f}",
            "" if shared is None else f"{shared:.1f}",
            f"{row['seconds']:.2f}",
            "" if peak is None else f"{peak:.0%}",
            row["way"],
        )
    halving = Table(title="Successive halving against a full search")
    kind = {"data": "data", "federation": "clients", "space": "space", "cores": "cores"}
    for heading in (*kind.values(), "times as fast", "same best five", "or as good"):
        halving.add_column(heading, justify="left" if heading in ("data", "space") else "right")
    for row in result["halving"]:
        names = [str(row[name]) for name in kind]
        if "skipped" in row:
            halving.add_row(*names, "no data", "", "")
            continue
        halving.add_row(
            *names,
            f"{row['ratio']:.1f}",
            f"{row['agreement']:.0%}",
            f"{row['agreement_with_ties']:.0%}",
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(halving)
    for reason in dict.fromkeys(row["skipped"] for row in result["halving"] if "skipped" in row):
        console.print(f"Skipped: {reason}", soft_wrap=True, markup=False)


def scaling_table(result: dict[str, Any]) -> Table:
    """Every measured point, and how each curve grows."""
    table = Table(title="How local evaluation grows")
    for heading in ("curve", "size", "measured", "grows with the power"):
        table.add_column(heading, justify="left" if heading == "curve" else "right")
    last = ""
    for point in result["points"]:
        curve = point["curve"]
        power = result["exponents"][curve]
        found = (
            f"{point['seconds']:.2f} s" if "seconds" in point else f"{point['megabytes']:.0f} MB"
        )
        shown = "" if power is None or curve == last else f"{power:.2f}"
        if last and curve != last:
            table.add_section()
        table.add_row(curve if curve != last else "", str(point["size"]), found, shown)
        last = curve
    return table


def dp_hype_table(result: dict[str, Any]) -> Table:
    """DP-HYPE's comparison by epsilon."""
    recipe = result["recipe"]
    table = Table(
        title=f"{result['table']}: {result['seeds']} seeds, {result['repeats']} draws of noise "
        f"each, {recipe['epochs']} epochs, {recipe['rounds']} rounds",
        caption="test accuracy: mean and 95 % interval over training seeds",
    )
    for heading in ("method", "ε", "Tacit's exact noise", "published noise"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    table.add_row("OPT", "", _spread(result["opt"]), "")
    for epsilon, found in result["vote"].items():
        shown = "∞" if epsilon == "inf" else epsilon
        published = _spread(result["vote_published_noise"][epsilon])
        table.add_row("vote", shown, _spread(found), published)
    table.add_row("RANDGUESS", "", _spread(result["randguess"]), "")
    once = result["protocol"]
    table.add_section()
    table.add_row(
        f"the protocol once, {once['dropped']} of {once['asked']} gone",
        f"{once['epsilon']:g}",
        f"{once['accuracy']:.1%}",
        "",
    )
    return table


def _spread(found: dict[str, float]) -> str:
    return f"{found['mean']:.1%} ({found['low'] * 100:.1f}–{found['high'] * 100:.1f})"


def progress_bars() -> Progress:
    """Bars on standard error, if that is a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@contextmanager
def counting_bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """One bar for work in pieces: call it with how many are done and how many there are."""
    with progress_bars() as progress:
        bar = progress.add_task(words, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def download_bars() -> Progress:
    """Bars for files that are fetched."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def stage_bars(progress: Progress) -> Callable[[str, int, int | None], None]:
    """One bar a stage, made when the stage begins and started anew when it is repeated."""
    bars: dict[str, TaskID] = {}

    def show(stage: str, done: int, total: int | None) -> None:
        if stage not in bars:
            bars[stage] = progress.add_task(stage, total=total)
        progress.update(bars[stage], completed=done, total=total)

    return show


def print_outlook(planned: RunPlan) -> None:
    """What a run is about to do, and whether it can work."""
    search, terms, clients = planned.search, planned.privacy, planned.federation.clients
    console = Console(highlight=False)
    console.print(
        f"[bold]{search.method}[/bold]: {clients} clients, {planned.task.data}, "
        f"{planned.federation.partition}, {search.candidates} candidates"
    )
    combined = combining(planned)
    if combined:
        _print_combining(console, planned, combined)
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
        f"replace-one); if all agree, a good candidate wins {percent(priced.success)} of the time"
    )
    warn_if_poor(console, priced)


def _print_combining(console: Console, planned: RunPlan, method: Tuner) -> None:
    """In which mode, at what price, and whether any cell can be dense."""
    search, terms = planned.search, planned.privacy
    what = search.strategy if search.method == "combine" else search.surface
    price = "ε = ∞: nothing is protected by noise"
    if math.isfinite(terms.epsilon):
        price = f"ε = {terms.epsilon:g}, δ = {terms.delta:g} (per client, replace-one)"
    console.print(f"{what}, mode {search.mode}, {price}")
    if not isinstance(method, Combine) or what != "dbscan" or search.mode == "clear":
        return
    clients = planned.federation.clients
    variance = noise_for(method, planned.space, Budget(terms.epsilon, terms.delta))
    participation = Participation(clients, terms.dropout, terms.colluding)
    needed = method.dense_from(planned.space, participation, variance)
    console.print(f"a cell is dense if {needed} of the {clients} clients find it promising")
    if needed > clients:
        console.print(
            "[yellow]Warning:[/yellow] no cell can be dense: the noise is too strong for so few "
            "clients; raise privacy.epsilon, lower search.points, take search.strategy = 'mean', "
            "or vote"
        )


def print_result(result: Result, folder: Path) -> None:
    """What was chosen, what it cost, and where the report is."""
    console = Console(highlight=False)
    guarantee = result.privacy.guarantee
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("Chosen", ", ".join(f"{k} = {_short(v)}" for k, v in result.config.items()))
    if result.tally is not None and result.privacy.delivered_variance:
        first, second = sorted(result.tally, reverse=True)[:2]
        sigma = math.sqrt(result.privacy.delivered_variance)
        table.add_row("Tally", f"{first} against {second} of the runner-up; noise σ = {sigma:.3g}")
    if result.note:
        table.add_row("Note", result.note)
    table.add_row(
        "Clients",
        f"{result.clients.asked} asked, {result.clients.answered} answered, "
        f"{result.clients.dropped} dropped out",
    )
    if result.accuracy is not None:
        table.add_row("Accuracy", f"{percent(result.accuracy)} on the public test split")
    table.add_row(
        "Cost",
        f"ε = {_ceiling(guarantee.epsilon)} at δ = {guarantee.delta:g} (per {guarantee.unit}, "
        f"{guarantee.relation})",
    )
    if result.evaluation is not None and result.evaluation["ways"]:
        table.add_row("Local training", "; ".join(evaluation_words(result.evaluation)))
    table.add_row("Against", result.privacy.server)
    table.add_row("Setting", result.privacy.setting)
    table.add_row("Covers", result.privacy.covers)
    console.print(table)
    console.print(f"Report: {folder / 'report.html'}", soft_wrap=True)


def evaluation_words(evaluation: dict[str, Any]) -> list[str]:
    """How simulated clients trained their candidates."""
    words = [evaluation["ways"][0], f"at most {evaluation['peak_megabytes']:.0f} MB"]
    if evaluation["local"] != "full":
        words.insert(0, f"successive {evaluation['local']}")
    return [*words, *(f"not stacked: {why}" for why in evaluation["not_stacked_because"])]


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _ceiling(epsilon: float) -> str:
    """Four decimals, rounded up: a cost is never shown smaller than it is."""
    return f"{math.ceil(epsilon * 1e4) / 1e4:g}" if math.isfinite(epsilon) else "infinite"


def print_json(document: dict[str, Any]) -> None:
    """One document on standard output."""
    typer.echo(json_text(document))


def print_combine(result: dict[str, Any]) -> None:
    """How good every strategy is, how often it is nearest, and what holds of the paper."""
    rows, wins = result["rows"], result["wins"]
    skews = list(dict.fromkeys(row["skew"] for row in rows))
    table = Table(title=f"Test accuracy, a mean over settings and {result['seeds']} seeds")
    table.add_column("chosen by")
    for skew in skews:
        table.add_column(skew, justify="right")
    table.add_column(f"nearest of {wins['experiments']}", justify="right")
    for name in rows[0]["chosen"]:
        found = [
            [row["chosen"][name]["accuracy"] for row in rows if row["skew"] == skew]
            for skew in skews
        ]
        won = str(wins["won"][name]) if name in wins["won"] else ""
        table.add_row(name, *(percent(sum(one) / len(one)) for one in found), won)
    claims = Table(title="The paper's claims")
    for heading in ("claim", "effect", "95 % interval", "verdict"):
        claims.add_column(heading, justify="right" if heading == "effect" else "left")
    for claim in result["claims"]:
        low, high = claim["low"], claim["high"]
        interval = "needs two seeds" if low is None else f"{low:+.3f} to {high:+.3f}"
        claims.add_row(claim["claim"], f"{claim['effect']:+.3f}", interval, claim["verdict"])
    console = Console(highlight=False)
    console.print(table)
    console.print(claims)
    console.print(f"{result['core_seconds'] / 60:.0f} minutes of one core in all.")


def print_encrypted(result: dict[str, Any]) -> None:
    """What the benchmark of multiparty encryption measured."""
    table = Table(title="Multiparty encryption, every party in turn, all keys included")
    for heading in ("method", "clients", "seconds", "MB a client", "squared error", "wrong cells"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for key, name in (("pf_mean", "PF-Mean"), ("pf_dbscan", "PF-DBSCAN")):
        for row in result[key]:
            table.add_row(
                name,
                str(row["clients"]),
                f"{row['seconds']:.2f}",
                f"{row['bytes_per_client'] / 1e6:.1f}",
                f"{row['mse']:g}",
                str(row["mask_errors"]),
            )
    for row in result["pf_dbscan_with_noise"]:
        table.add_row(
            f"PF-DBSCAN, noise for ε = {row['epsilon']:g}",
            str(row["clients"]),
            f"{row['seconds']:.2f}",
            f"{row['bytes_per_client'] / 1e6:.1f}",
        )
    single = Table(title="Single operations")
    for heading in ("operation", "who", "clients", "milliseconds", "MB"):
        single.add_column(heading, justify="left" if heading in ("operation", "who") else "right")
    for row in result["operations"]:
        size = "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.2f}"
        counts = str(row["clients"]), f"{1000 * row['seconds']:.1f}"
        single.add_row(row["operation"], row["who"], *counts, size)
    console = Console(highlight=False)
    console.print(table)
    console.print(single)


def print_secure_sum(result: dict[str, Any]) -> None:
    """What the benchmark of the secure sum measured."""
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


def flower_table(result: dict[str, Any]) -> Table:
    """What a vote over Flower takes, beside Flower itself."""
    table = Table(title="One private vote over Flower")
    for heading in ("nodes", "kind", "messages", "kB up", "kB down", "Flower", "Tacit"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for point in result["points"]:
        table.add_row(
            str(point["nodes"]),
            point["kind"],
            str(point["messages"]),
            f"{point['bytes_up_a_node'] / 1000:.1f}",
            f"{point['bytes_down_a_node'] / 1000:.1f}",
            f"{point['flower_seconds']:.2f} s",
            f"{point['our_seconds']:.2f} s",
        )
    table.caption = "kB: a node. Flower: as many rounds of empty messages. Tacit: what is beyond."
    return table
