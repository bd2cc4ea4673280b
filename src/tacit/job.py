"""A planned run on a built-in task: simulate the clients, choose, train with the choice, report.

The folder of a run receives ``plan.toml`` (the plan as run), ``ledger.json`` (what it cost, and the
federation's lifetime total), ``result.json``, ``model.npz`` and ``report.html``. The result is
written as soon as the sums are open and again when the model is trained, so a kill never loses what
was paid for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tacit.data.partitions import dirichlet, iid
from tacit.data.sources import Dataset, digits, split_validation
from tacit.dense import Dense, DenseClient, accuracies
from tacit.federation import Federation, Progress, local_federation
from tacit.files import json_text, write_whole
from tacit.plan import Plan
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.report import render
from tacit.result import Result
from tacit.task import Weights
from tacit.training import federated_average
from tacit.tuners.baselines import MeanOfWinners, Opt, RandomGuess
from tacit.tuners.tuner import Tuner
from tacit.tuners.voting import Vote
from tacit.tuning import conclude, noise_for, run_name

_FILES = ("plan.toml", "ledger.sqlite", "ledger.json", "result.json", "model.npz", "report.html")
_START_SEED = 0


def run(plan: Plan, out: Path, progress: Progress) -> Result:
    """Carry out a plan, and fill the folder ``out``."""
    taken = [name for name in _FILES if (out / name).exists()]
    if taken:
        raise ValueError(
            f"{out} holds a run already ({taken[0]}); allowed is a new or empty folder, since what "
            "was spent is never overwritten"
        )
    budget = Budget(plan.privacy.epsilon, plan.privacy.delta)
    dataset = digits()
    net = Dense(dataset.train.features.shape[1], plan.task.hidden, dataset.classes)
    method = tuner(plan, lambda models: net.initial(models, _START_SEED))
    rng = np.random.default_rng(plan.search.seed)
    clients = simulated_clients(plan, dataset, net, rng)
    variance = noise_for(method, plan.space, budget)

    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "plan.toml", plan.to_toml())
    federation = local_federation(
        clients,
        Participation(plan.federation.clients, plan.privacy.dropout, plan.privacy.colluding),
        _ledger(plan, budget, out),
        run=run_name(method),
        variance=variance,
        secure=plan.federation.secure,
        roster=plan.federation.roster,
        deadline=plan.federation.deadline if math.isfinite(plan.federation.deadline) else None,
        trains=True,
        progress=progress,
    )
    outcome = method.tune(federation, plan.space, rng)
    result = conclude(method, outcome, federation, budget)
    _write(result, plan, out)
    if plan.task.train_rounds:
        weights = _train(plan, result, net, federation)
        accuracy = float(accuracies(weights, dataset.test)[0])
        costs = conclude(method, outcome, federation, budget)  # with the bytes of the training
        result = replace(costs, accuracy=accuracy)
        _save_model(weights, out / "model.npz")
        _write(result, plan, out)
    return result


def simulated_clients(
    plan: Plan, dataset: Dataset, net: Dense, rng: np.random.Generator
) -> list[DenseClient]:
    """The training data dealt to clients, each with a validation part of its own."""
    terms, labels = plan.federation, dataset.train.labels
    try:
        parts = (
            dirichlet(labels, terms.clients, terms.alpha, rng, terms.smallest)
            if terms.partition == "dirichlet"
            else iid(labels, terms.clients, rng)
        )
    except ValueError as error:  # it begins with the name of the key
        raise ValueError(f"federation.{error}") from None
    clients = []
    for number, part in enumerate(parts):
        train, validation = split_validation(dataset.train.take(part), plan.task.validation, rng)
        clients.append(
            DenseClient(
                train,
                validation,
                net,
                plan.task.score_epochs,
                plan.task.batch,
                seed=plan.search.seed + number,
                start_seed=_START_SEED,
                metric=plan.task.score,
            )
        )
    return clients


def tuner(plan: Plan, start: Callable[[int], Weights]) -> Tuner:
    """The method that a plan names."""
    search, task = plan.search, plan.task
    methods: dict[str, Tuner] = {
        "vote": Vote(search.votes, search.candidates, search.sampling),
        "random-guess": RandomGuess(search.candidates, search.sampling),
        "opt": Opt(
            start,
            max(task.train_rounds, 1),
            task.train_epochs,
            search.candidates,
            search.sampling,
        ),
        "mean-of-winners": MeanOfWinners(search.candidates, search.sampling),
    }
    return methods[search.method]


def _ledger(plan: Plan, budget: Budget, out: Path) -> Ledger:
    """A named federation's lifetime ledger; simulated clients of no name end with their run."""
    if plan.federation.name:
        return Ledger.of(plan.federation.name, budget)
    return Ledger.create(out / "ledger.sqlite", "this-run", budget)


def _train(plan: Plan, result: Result, net: Dense, federation: Federation) -> Weights:
    return federated_average(
        lambda query: federation.collect(query, "train"),
        [result.config],
        net.initial(1, _START_SEED),
        plan.task.train_rounds,
        plan.task.train_epochs,
    )


def _save_model(weights: Weights, path: Path) -> None:
    draft = path.with_name(f".{path.name}")
    with draft.open("wb") as file:
        np.savez(file, *(array[0] for array in weights))
    draft.replace(path)


def _write(result: Result, plan: Plan, out: Path) -> None:
    document = result.to_json()
    write_whole(out / "ledger.json", json_text(result.ledger) + "\n")
    write_whole(out / "result.json", json_text(document) + "\n")
    write_whole(out / "report.html", render(document, plan.to_toml(), result.ledger))
