"""What the commands print for people: sentences, tables and progress bars."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

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
from rich.text import Text

from tacit.abstentions import Counting
from tacit.display import settings
from tacit.federation import RoundNote
from tacit.files import json_text
from tacit.plan import Plan as RunPlan
from tacit.plan import combining, participation_of, voting
from tacit.printing import plain_console, print_warning, styled
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.ledger import COLUMNS, Ledger, line_json
from tacit.privacy.mechanisms import Participation
from tacit.privacy.planner import (
    CLEAR_REWARD,
    Plan,
    RewardPlan,
    chance_of_good,
    percent,
    unanimous_votes,
)
from tacit.privacy.planner import plan as make_plan
from tacit.privacy.quoting import Quotes, quotes
from tacit.privacy.selection import SelectionPlan
from tacit.result import Result
from tacit.strategy import POOR_LOSS, Strategy, counting, describe
from tacit.tuners.combine import Combine
from tacit.tuners.together import Together
from tacit.tuners.tuner import TrainsPrivately, Tuner, noise_for
from tacit.wording import rounded_up

LARGE_ERROR = 0.25
"""From which noise on, as a share of an axis, a mean says little."""


def warn_if_poor(console: Console, planned: Plan) -> bool:
    """Say so when even unanimous clients would often pick a bad candidate."""
    if planned.warning:
        print_warning(console, planned.warning)
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
    table.add_row("Abstentions", counting_words(planned.abstentions))
    return table


def counting_words(counting: Counting | None) -> str:
    """What a count of abstentions costs and tells."""
    if counting is None:
        return "cannot be counted: a ballot names more than half of the candidates"
    return counting.words


def print_reward_plan(
    console: Console,
    priced: RewardPlan,
    participation: Participation,
    budget: Budget,
    share: float,
) -> None:
    """The price of FEATHERS' rewards."""
    console.print(
        styled(
            "FEATHERS' rewards",
            "bold",
            f": {participation.clients} clients, {priced.rounds} rounds of {priced.drawn} "
            f"configurations, ε = {budget.epsilon:g}, δ = {budget.delta:g} (per client, "
            f"replace-one), {percent(share)} of it for rewards",
        )
    )
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("Noise of a mean reward", f"σ = {priced.noise:.3g} times the clip of a reward")
    table.add_row(
        "Rounds that can be afforded",
        f"{priced.affordable_rounds}, if σ is to stay below {CLEAR_REWARD:g} times the clip",
    )
    table.add_row(
        "Clients that are needed", f"{priced.clients_needed}, for these rounds and that σ"
    )
    console.print(table)
    if priced.warning:
        print_warning(console, priced.warning)


def print_selection_plan(
    console: Console, plan: SelectionPlan, shape: str, rate: float, steps: int, budget: Budget
) -> None:
    """The price of the best of a random number of trainings."""
    runs = plan.runs
    console.print(
        styled(
            "A private selection",
            "bold",
            f": runs of {steps} steps of DP-SGD, each record in one with probability {rate:g}, ε = "
            f"{budget.epsilon:g}, δ = {budget.delta:g} (per record, replace-one)",
        )
    )
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row(
        "Runs",
        f"{runs.mean:g} runs expected ({shape}); half of the time at most {runs.quantile(0.5)}, "
        f"once in twenty more than {runs.quantile(0.95)}",
    )
    table.add_row(
        "Noise",
        f"{plan.noise:.4g} clipping norms, where one run alone would need "
        f"{plan.undecided_noise:.4g}",
    )
    table.add_row("Noise of a score", f"σ = {plan.score_noise:.3g} right answers")
    table.add_row("One run", f"ε = {rounded_up(plan.single)}")
    table.add_row(
        "The best alone",
        f"ε = {rounded_up(plan.epsilon)}: for those who see nothing but the result",
    )
    table.add_row(
        "Watched", f"ε = {rounded_up(plan.watched)}: for a server or anybody who sees every run"
    )
    table.add_row(
        "Liu and Talwar", f"ε = {rounded_up(plan.liu_talwar)}: their bound, if runs stop at random"
    )
    console.print(table)


def print_ledger(ledger: Ledger, *, as_json: bool) -> None:
    """Every charge, the total and the budget."""
    budget, total, charges = ledger.budget, ledger.total(), ledger.charges()
    quotable = quotes(ledger)
    if as_json:
        print_json(
            {
                "federation": ledger.federation,
                "path": str(ledger.path),
                "budget": vars(budget),
                "total": vars(total),
                "ladder": [vars(step) for step in ledger.ladder],
                "quotes": {quote.name: vars(quote) for quote in quotable.quotes},
                "verdict": quotable.verdict,
                "charges": [line_json(charge) for charge in charges],
            }
        )
        return
    console = plain_console()
    table = Table(title=f"Ledger of {ledger.federation}", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="right" if "ε" in name else "left")
    for charge, row in zip(charges, ledger.rows(), strict=True):
        table.add_row(*row, style="strike" if charge.state == "closed" else None)
    if charges:
        console.print(table)
    else:
        console.print(f"Ledger of {ledger.federation}: nothing spent yet.")
    console.print(
        f"Spent ε = {rounded_up(total.epsilon)} of {budget.epsilon:g} at δ = {total.delta:g} "
        f"(per {total.unit}, {total.relation}; {total.accounting})."
    )
    closed = sum(charge.state == "closed" for charge in charges)
    if closed:
        console.print(f"{closed} closed charge(s) do not count: no answer left under them.")
    if ledger.ladder:
        steps = ", ".join(f"{step.epsilon:g}" for step in ledger.ladder)
        console.print(f"Announced before the first charge: budgets of ε = {steps}.")
    if charges:
        _print_quotes(console, quotable)
    else:
        console.print(quotable.verdict)


_QUOTE_TITLES = {
    "distributions": "By distributions",
    "filter": "By the Rényi filter",
    "ladder": "By the announced ladder",
}


def _print_quotes(console: Console, quotable: Quotes) -> None:
    """Each epsilon in one line, with what has to be true for it; then which one to take."""
    console.print()
    console.print("Which epsilon may be quoted:")
    for quote in quotable.quotes:
        number = f"ε = {rounded_up(quote.epsilon)}" if math.isfinite(quote.epsilon) else "no ε"
        console.print(
            f"- {_QUOTE_TITLES[quote.name]}: {number} at δ = {quote.delta:g}. {quote.sentence}"
        )
    console.print(quotable.verdict)


def progress_bars() -> Progress:
    """Bars on standard error, if that is a terminal."""
    console = plain_console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@contextmanager
def working(words: str) -> Iterator[None]:
    """A sign of life while something of unknown length is done, if standard error is a terminal."""
    console = plain_console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(Text(words)):  # a spinner reads markup in whatever is no Text
        yield


class Terminated(SystemExit):
    """The process was asked to end (SIGTERM), and ends in order, with the shell's code for that."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


@contextmanager
def interruptible(hint: Callable[[], str]) -> Iterator[None]:
    """Whoever presses Ctrl-C, or sends SIGTERM, is told what is kept and how to go on."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)  # whoever asks twice does not wait
        raise Terminated

    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, end) if in_main_thread else None
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        console = plain_console(stderr=True, soft_wrap=True)
        word = "Terminated" if isinstance(error, Terminated) else "Interrupted"
        console.print(f"{word}. {hint()}")
        raise
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def counting_bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """One bar for work in pieces: call it with how many are done and how many there are."""
    with progress_bars() as progress:
        bar = progress.add_task(words, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def download_bars() -> Progress:
    """Bars for files that are fetched."""
    console = plain_console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def stage_bars(progress: Progress) -> Callable[[str, int, int | None], None]:
    """One bar a stage, made when the stage begins and started anew when it is repeated.

    Until the first stage begins, a bar without an end says that something is being done.
    """
    bars: dict[str, TaskID] = {}
    before = [progress.add_task("working", total=None)]

    def show(stage: str, done: int, total: int | None) -> None:
        while before:
            progress.remove_task(before.pop())
        if stage not in bars:
            bars[stage] = progress.add_task(stage, total=total)
        progress.update(bars[stage], completed=done, total=total)

    return show


def round_rows(progress: Progress) -> Callable[[RoundNote], None]:
    """A table of rounds that grows above the bars, on standard error."""
    console = progress.console

    def show(note: RoundNote) -> None:
        if note.number == 1:
            console.print(f"{'Round':>5}  {'':10}  {'Reward':>8}  {'ε so far':>9}  Configuration")
        reward = "" if note.reward is None else f"{note.reward:.4f}"
        console.print(
            f"{note.number:>5}  {note.what:10}  {reward:>8}  {rounded_up(note.epsilon):>9}  "
            + settings(note.config),
            soft_wrap=True,
        )

    return show


LOUD = 0.1
"""Noise of a mean update, in clipping norms, from which on most of the training was lost in
``tacit bench averaging``."""
_WITHOUT_CANDIDATES = ("adaptive", "darts")


def print_outlook(planned: RunPlan, strategy: Strategy | None = None) -> None:
    """What a run is about to do, how its vote was chosen, and whether it can work."""
    search, terms, clients = planned.search, planned.privacy, planned.federation.clients
    console = plain_console()
    who = f"{clients} clients, {planned.task.data}, {planned.federation.partition}"
    if search.method == "selection":
        who = f"one holder of {planned.task.data}"
    if search.method not in _WITHOUT_CANDIDATES:
        who += f", {search.candidates} candidates"
    console.print(styled(search.method, "bold", f": {who}"))
    combined = combining(planned)
    if combined:
        _print_combining(console, planned, combined)
    if search.method != "vote":
        return
    vote = voting(planned)
    if strategy is not None:
        console.print(strategy.why)
        if strategy.loss > POOR_LOSS:
            print_warning(console, strategy.warning)
    if planned.federation.count_abstentions is True:
        count = planned.space.count(search.candidates, search.sampling)
        budget = Budget(terms.epsilon, terms.delta)
        told = counting_words(counting(vote, count, participation_of(planned), budget))
        console.print(f"Abstentions {told}")
    if planned.training.private:
        return
    price = f"ε = {terms.epsilon:g}, δ = {terms.delta:g} (per client, replace-one)"
    if not vote.plain:
        console.print(price if strategy else f"{describe(vote)}, {price}")
        return
    candidates = planned.space.count(search.candidates, search.sampling)
    priced = make_plan(
        participation_of(planned),
        candidates,
        vote.votes,
        Budget(terms.epsilon, terms.delta),
    )
    console.print(
        f"{vote.votes} votes each, {price}; if all agree, a good candidate wins "
        f"{percent(priced.success)} of the time"
    )
    warn_if_poor(console, priced)


def print_training_outlook(planned: RunPlan, method: Tuner) -> None:
    """What of a training is protected, how one budget is shared, and what the noise leaves."""
    search, terms, clients = planned.search, planned.privacy, planned.federation.clients
    participation = participation_of(planned)
    console = plain_console()
    price = f"ε = {terms.epsilon:g}, δ = {terms.delta:g} (per {method.unit}, replace-one)"
    if math.isinf(terms.epsilon):
        console.print(f"mode {search.mode}, ε = ∞: what clients send is not protected")
        return
    variance = noise_for(method, planned.space, Budget(terms.epsilon, terms.delta))
    if isinstance(method, Together):
        alone = spent(method.method.event(planned.space, variance), terms.delta)
        console.print(
            f"{price} for choice and training together; the choice alone takes "
            f"{rounded_up(alone.epsilon)}"
        )
    else:
        console.print(f"mode {search.mode}, {price} for choice and training together")
    if search.method == "vote" and voting(planned).plain:
        votes = voting(planned).votes
        candidates = planned.space.count(search.candidates, search.sampling)
        good, bad = unanimous_votes(clients, candidates, votes, votes)
        sigma = math.sqrt(variance * clients / participation.guaranteed)
        console.print(
            f"{votes} votes each: if all agree, a good candidate wins "
            f"{percent(chance_of_good([good], [bad], sigma))} of the time"
        )
    noise = 0.0
    if isinstance(method, TrainsPrivately):
        noise = method.update_noise(planned.space, variance, participation)
    if noise:
        console.print(
            f"Updates clipped to {planned.training.clip:g}: in a round, the noise of their mean is "
            f"{noise:.2g} times that in every direction"
        )
    if noise > LOUD:
        print_warning(
            console,
            f"beyond {LOUD:g} times the clip, noise drowns most of the training: have more "
            "clients, fewer rounds or a larger epsilon",
        )


def _print_combining(console: Console, planned: RunPlan, method: Tuner) -> None:
    """In which mode, at what price, and whether the noise leaves anything to be seen."""
    search, terms = planned.search, planned.privacy
    what = search.strategy if search.method == "combine" else search.surface
    price = "ε = ∞: nothing is protected by noise"
    if math.isfinite(terms.epsilon):
        price = f"ε = {terms.epsilon:g}, δ = {terms.delta:g} (per client, replace-one)"
    console.print(f"{what}, mode {search.mode}, {price}")
    if not isinstance(method, Combine) or search.mode == "clear":
        return
    clients = planned.federation.clients
    variance = noise_for(method, planned.space, Budget(terms.epsilon, terms.delta))
    participation = participation_of(planned)
    warning = ""
    if what == "dbscan":
        needed = method.dense_from(planned.space, participation, variance)
        console.print(f"a cell is dense if {needed} of the {clients} clients find it promising")
        if needed > clients and variance:
            warning = (
                "no cell can be dense: the noise is too strong for so few clients; raise "
                "privacy.epsilon, lower search.points, take search.strategy = 'mean', or vote"
            )
        elif needed > clients:
            warning = "no cell can be dense; lower search.min_points, or have more clients"
    elif variance:
        error = method.mean_error(planned.space, participation, variance)
        console.print(f"noise moves each number by about {percent(error)} of its axis")
        if error > LARGE_ERROR:
            warning = "that leaves little of the mean; raise privacy.epsilon, or vote"
    if warning:
        print_warning(console, warning)


def print_result(result: Result, folder: Path) -> None:
    """What was chosen, what it cost, and where the report is."""
    console = plain_console()
    guarantee = result.privacy.guarantee
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    if result.warning:
        table.add_row("Warning", result.warning)
    table.add_row("Chosen", settings(result.config))
    if result.architecture:
        table.add_row("Network", result.architecture)
    if result.tally is not None and result.privacy.delivered_variance:
        first, second = sorted(result.tally, reverse=True)[:2]
        sigma = math.sqrt(result.privacy.delivered_variance)
        table.add_row("Tally", f"{first} against {second} of the runner-up; noise σ = {sigma:.3g}")
    if result.run_off is not None:
        counts = " against ".join(map(str, sorted(result.run_off["tally"], reverse=True)))
        sigma = math.sqrt(result.run_off["variance"])
        table.add_row("Run-off", f"{counts}; noise σ = {sigma:.3g}")
    if result.note:
        table.add_row("Note", result.note)
    asked = result.clients
    turnout = f"{asked.asked} asked, {asked.answered} answered, {asked.dropped} dropped out"
    table.add_row("Clients", turnout if asked.asked else "none was asked")
    for vote in result.abstentions:
        table.add_row("Abstained", f"{vote.words} from the {vote.vote}")
    if result.accuracy is not None:
        table.add_row("Accuracy", f"{percent(result.accuracy)} on the public test split")
    table.add_row(
        "Cost",
        f"ε = {rounded_up(guarantee.epsilon)} at δ = {guarantee.delta:g} (per {guarantee.unit}, "
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


def print_json(document: dict[str, Any]) -> None:
    """One document on standard output."""
    typer.echo(json_text(document))
