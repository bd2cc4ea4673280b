"""All methods on a score table: many runs in seconds, since nothing is trained.

The methods themselves run, with their noise, on clients who answer from the table; sums are plain,
which changes nothing but who could look. Votes choose among the table's candidates; methods that
combine numbers choose in the box around them, where a configuration counts as its nearest
candidate. Told is the regret: the test accuracy lost against the best candidate of the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.charged_questions import ChargedQuestions
from tacit.compare import Run, Told, begin_folder, row, together
from tacit.contenders import Contender
from tacit.federation import local_federation
from tacit.files import json_text
from tacit.journal import Journal, Number, each, machine
from tacit.plan import AUTO, TRAINING_METHODS
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.events import compose, to_json
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.secure.protocol import PLAIN
from tacit.space import Space
from tacit.strategy import PUBLISHED_VOTES, choose
from tacit.tables import ScoreTable, TableClients
from tacit.tuners.baselines import RandomGuess
from tacit.tuners.combine import Combine
from tacit.tuners.flora import Flora
from tacit.tuners.tuner import Tuner, noise_for
from tacit.tuners.voting import Vote

DROPOUT = 0.1
"""The fraction of clients that may drop out; nobody does."""
RUNS = 20


class _OnTable(Run):
    """A piece of the journal."""

    regret: Number


@dataclass(frozen=True)
class _Ready:
    """A method with its noise; none for what needs no federation."""

    tuner: Tuner | None
    space: Space
    variance: float = 0.0


def run(
    table: ScoreTable,
    contenders: Iterable[Contender],
    budget: Budget,
    runs: int,
    out: Path,
    told: Told,
) -> dict[str, Any]:
    """Hold every method that a table allows, ``runs`` times, over the table's seeds in turn."""
    if runs < 1:
        raise ValueError(f"--seeds is {runs}; allowed is 1 and above")
    recipe = {"table": table.name, "budget": vars(budget), "dropout": DROPOUT}
    begin_folder(out, json_text(recipe) + "\n")
    journal = Journal(out, {"compare": recipe}, each(_OnTable))
    clients = TableClients(table)
    fit: list[Contender] = []
    unfit: dict[str, str] = {}
    wanted = list(contenders)
    total, done = len(wanted) * runs, 0
    for one in wanted:
        told(one.name, done, total)
        try:
            ready = _ready(one, clients, budget)
        except ValueError as error:
            unfit[one.name] = str(error)
            done += runs
            continue
        fit.append(one)
        for number in range(runs):
            piece = f"{one.name} seed {number}"
            if piece not in journal.pieces:
                journal.add(piece, _held(ready, clients, budget, number))
            done += 1
            told(one.name, done, total)
    rows = [row(one, [journal.pieces[f"{one.name} seed {n}"] for n in range(runs)]) for one in fit]
    return {
        "compare": "table",
        "table": table.name,
        "recipe": asdict(table.recipe),
        "seeds": list(range(runs)),
        "budget": vars(budget),
        "clients": table.recipe.clients,
        "rows": rows,
        "not_compared": unfit,
        "together": together(rows, journal, 0, budget.delta),
        "machine": machine(),
    }


def _ready(one: Contender, clients: TableClients, budget: Budget) -> _Ready:
    """The method as it runs on a table, or a ValueError that says why it does not."""
    count = len(clients.table.candidates)
    if one.family in (*TRAINING_METHODS, "selection"):
        raise ValueError("a table holds the ends of trainings, not their course")
    if one.encrypted:
        twin = one.name.removesuffix("-encrypted")
        raise ValueError(
            f"its sums are those of {twin}, and so is its accuracy; what encryption costs shows "
            "in a comparison by a plan, or in `tacit bench encrypted`"
        )
    if one.family == "opt":
        return _Ready(None, clients.grid)
    if one.family == "random-guess":
        return _Ready(RandomGuess(count, "grid"), clients.grid)
    if one.family == "vote":
        vote = Vote(min(PUBLISHED_VOTES, count - 1), count, "grid")
        if one.changes["search.ballot"] == AUTO:
            vote = choose(clients.grid, _participation(clients), budget, count, "grid").vote
        return _Ready(vote, clients.grid, noise_for(vote, clients.grid, budget))
    word = str(one.changes.get("search.strategy") or one.changes.get("search.surface"))
    method: Tuner = (
        Combine(word, "dp", count) if one.family == "combine" else Flora(word, "dp", count)
    )
    return _Ready(method, clients.box, noise_for(method, clients.box, budget))


def _participation(clients: TableClients) -> Participation:
    return Participation(clients.table.recipe.clients, DROPOUT)


def _held(ready: _Ready, clients: TableClients, budget: Budget, number: int) -> dict[str, Any]:
    """One run of one method."""
    table = clients.table
    seed = number % len(table.accuracy)
    ledger, note = Ledger.in_memory("comparison", budget), ""
    if ready.tuner is None:
        config = table.candidates[int(table.validation_accuracy[seed].argmax())]
    else:
        federation = local_federation(
            clients.of_seed(seed),
            _participation(clients),
            ledger,
            "comparison",
            ready.variance,
            secure=PLAIN,
            roster=False,
        )
        questions = ChargedQuestions(federation)
        outcome = ready.tuner.tune(questions, ready.space, np.random.default_rng(number))
        config, note = outcome.config, outcome.note
    events = [charge.event for charge in ledger.charges()]
    cost = spent(compose(events), budget.delta)
    accuracy = clients.accuracy(seed, config)
    reference = ready.tuner is None
    return {
        "accuracy": accuracy,
        "regret": float(table.accuracy[seed].max()) - accuracy,
        "epsilon": "inf" if reference or math.isinf(cost.epsilon) else cost.epsilon,
        "delta": budget.delta,
        "protects": f"per {cost.unit}, {cost.relation}",
        "covers": "nothing" if reference else "choice",
        "config": config,
        "note": note,
        "events": [to_json(event) for event in events],
    }
