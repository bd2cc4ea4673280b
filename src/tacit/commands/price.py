"""``tacit plan``: what a vote, FEATHERS' rewards or a private selection will cost, and leave."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from tacit.commands import completion
from tacit.commands.options import AsJson, Colluding, Delta, Dropout, Epsilon, number, whole
from tacit.plan import load_plan
from tacit.printing import plain_console, print_warning, styled
from tacit.privacy.accounting import Budget
from tacit.privacy.mechanisms import Participation
from tacit.privacy.planner import plan as vote_plan
from tacit.privacy.planner import reward_plan
from tacit.privacy.selection import SHAPES, Runs, selection_plan
from tacit.strategy import POOR_LOSS, choose, counting
from tacit.terminal import (
    counting_words,
    plan_table,
    print_json,
    print_reward_plan,
    print_selection_plan,
    warn_if_poor,
    working,
)

METHODS = ("vote", "feathers", "selection")


def plan(
    epsilon: Epsilon,
    delta: Delta,
    clients: Annotated[
        int | None,
        typer.Option(
            parser=whole,
            metavar="N",
            help="Vote, FEATHERS: clients that take part, at least 2.",
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.one_of(METHODS),
            help=f"What is priced: {', '.join(METHODS)}.",
        ),
    ] = "vote",
    candidates: Annotated[
        int | None,
        typer.Option(parser=whole, metavar="N", help="Vote: how many configurations there are."),
    ] = None,
    votes: Annotated[
        int | None,
        typer.Option(
            parser=whole,
            metavar="N",
            help="Vote: how many candidates a client votes for, as published; default: the kind of "
            "vote is chosen.",
        ),
    ] = None,
    good: Annotated[
        int | None,
        typer.Option(
            parser=whole,
            metavar="N",
            help="Vote: good candidates assumed; default: as many as votes.",
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
    mean_runs: Annotated[
        float, typer.Option(parser=number, metavar="X", help="Selection: runs expected, above 1.")
    ] = 10.0,
    shape: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.one_of(SHAPES),
            help=f"Selection: {', '.join(SHAPES)}.",
        ),
    ] = "logarithmic",
    rate: Annotated[
        float,
        typer.Option(parser=number, metavar="Q", help="Selection: a lot over all records."),
    ] = 0.05,
    steps: Annotated[
        int, typer.Option(parser=whole, metavar="N", help="Selection: steps of a run of DP-SGD.")
    ] = 200,
    dropout: Dropout = "0.1",
    colluding: Colluding = "0",
    as_json: AsJson = False,
) -> None:
    """Price a private vote, FEATHERS' rewards or a private selection before anybody is asked.

    Says how likely a vote succeeds, what the noise leaves of rewards, or how much more noise the
    runs of a selection need.

    Example: tacit plan --clients 50 --candidates 100 --votes 5 --epsilon 1 --delta 1e-5

    Example: tacit plan --clients 50 --candidates 100 --epsilon 0.5 --delta 1e-5

    Example: tacit plan --method feathers --clients 100 --rounds 20 --epsilon 3 --delta 1e-5

    Example: tacit plan --method selection --mean-runs 10 --epsilon 2 --delta 1e-5
    """
    budget, console = Budget(epsilon, delta), plain_console()
    terms: dict[str, Any] = {"epsilon": epsilon, "delta": delta}
    if method == "selection":
        if shape not in SHAPES:
            raise ValueError(f"--shape is {shape!r}; allowed are {', '.join(SHAPES)}")
        terms |= {"unit": "record", "relation": "replace-one"}
        with working("pricing"):
            run = selection_plan(Runs(mean_runs, SHAPES[shape]), rate, steps, budget)
        if as_json:
            told = {"rate": rate, "steps": steps, "shape": shape, **asdict(run)}
            print_json({"privacy": terms, "method": method, **told})
        else:
            print_selection_plan(console, run, shape, rate, steps, budget)
        return
    if method not in METHODS:
        raise ValueError(f"--method is {method!r}; allowed are {', '.join(METHODS)}")
    if clients is None:
        raise ValueError(f"--clients is missing; the method {method!r} needs to know how many")
    participation = Participation(clients, dropout, colluding)
    terms |= {
        "unit": "client",
        "relation": "replace-one",
        "dropout": participation.dropout,
        "colluding": participation.colluding,
    }
    if method == "feathers":
        with working("pricing"):
            priced = reward_plan(participation, drawn, rounds, budget, reward_share)
        if as_json:
            print_json({"privacy": terms, "method": method, **asdict(priced)})
        else:
            print_reward_plan(console, priced, participation, budget, reward_share)
        return
    if candidates is None:
        raise ValueError("--candidates is missing; a vote needs a whole number of them")
    if votes is None:
        _plan_chosen_vote(console, participation, candidates, budget, terms if as_json else None)
        return
    with working("pricing"):
        planned = vote_plan(participation, candidates, votes, budget, good)
    if as_json:
        print_json({"privacy": terms, **asdict(planned)})
        return
    console.print(
        styled(
            "A private vote",
            "bold",
            f": {clients} clients, {votes} of {candidates} candidates each, ε = {epsilon:g}, "
            f"δ = {delta:g} (per client, replace-one)",
        )
    )
    console.print(plan_table(planned, participation, good or votes))
    if warn_if_poor(console, planned) and planned.recommended_votes != votes:
        console.print(f"Votes a client: better {planned.recommended_votes} than {votes} here.")


def _plan_chosen_vote(
    console: Console,
    participation: Participation,
    candidates: int,
    budget: Budget,
    terms: dict[str, Any] | None,
) -> None:
    """The vote that a run with these numbers would hold, on the default space."""
    space = load_plan(None, ()).space
    with working("deciding which vote to hold"):
        found = choose(space, participation, budget, candidates)
        count = space.count(candidates, found.vote.sampling)
        counted = counting(found.vote, count, participation, budget)
    if terms is not None:
        told = {"vote": asdict(found.vote), "loss": found.loss, "published": found.published}
        abstentions = None if counted is None else asdict(counted)
        print_json({"privacy": terms, **told, "why": found.why, "abstentions": abstentions})
        return
    console.print(
        styled(
            "A private vote",
            "bold",
            f": {participation.clients} clients, {candidates} candidates, ε = {budget.epsilon:g}, "
            f"δ = {budget.delta:g} (per client, replace-one)",
        )
    )
    console.print(found.why)
    if found.loss > POOR_LOSS:
        print_warning(console, found.warning)
    console.print(f"Abstentions {counting_words(counted)}.")
    console.print(f"For {', '.join(space.dimensions)} as in a plan without a space of its own.")
